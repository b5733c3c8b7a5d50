"""The actor class of test_service_actors.py. It imports only modules that a cluster has."""

from __future__ import annotations

import time
from typing import Any


class Counter:
    """Records its calls in a file."""

    def __init__(self, path: str = "", start: int = 0) -> None:
        self.value, self.path = start, path
        self._note(f"made {start}")

    def add(self, number: int, seconds: float = 0.0) -> int:
        if seconds:
            self._note(f"begins {number}")
            time.sleep(seconds)
        self.value += number
        self._note(f"add {number}")
        return self.value

    def read(self) -> int:
        return self.value

    def boom(self) -> None:
        raise ValueError("no such thing")

    def large(self, size: int) -> bytes:
        return b"x" * size

    def plus(self, other: Any) -> int:
        """Add the value of another actor."""
        return self.value + int(other.read.remote().result(20))

    def _note(self, text: str) -> None:
        if self.path:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(text + "\n")


Counter.__module__ = "__main__"  # pickled by value: nothing of these tests has to be shipped
