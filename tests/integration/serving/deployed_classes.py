"""Classes that tests deploy. Loaded in clusters, so it imports only the standard library."""

from __future__ import annotations

import os
import time
from typing import Any


class Ocr:
    """One request at a time."""

    def __init__(self, prefix: str = "page") -> None:
        self._prefix = prefix

    def infer(self, task: dict[str, Any]) -> dict[str, Any]:
        time.sleep(task.get("seconds", 0.0))
        if task.get("page") is None:
            raise ValueError("there is no page")
        return {"text": f"{self._prefix} {task['page']}", "pid": os.getpid()}


class Embed:
    """Batches of requests, on an event loop."""

    async def __call__(self, texts: list[str]) -> list[list[int]]:
        return [[len(text), len(texts)] for text in texts]
