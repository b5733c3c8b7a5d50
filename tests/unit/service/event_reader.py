"""A reader of server-sent events over a plain connection, as a test wants it."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPResponse
from typing import Any


class EventReader:
    """Yields ``id`` and the object of each event."""

    def __init__(self, port: int, path: str, headers: dict[str, str] | None = None) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=20)
        self._connection.request("GET", path, headers=headers or {})
        self.response: HTTPResponse = self._connection.getresponse()

    def next(self) -> tuple[int | None, dict[str, Any]]:
        number: int | None = None
        for line in iter(self.response.readline, b""):
            text = line.decode().rstrip("\n")
            if text.startswith("id: "):
                number = int(text[4:])
            elif text.startswith("data: "):
                return number, json.loads(text[6:])
            elif not text:
                number = None
            else:
                assert text.startswith((":", "retry:")), text
        raise EOFError

    def until(self, **fields: Any) -> list[dict[str, Any]]:
        """All up to one that has these."""
        reported = []
        while True:
            output = self.next()[1]
            reported.append(output)
            if all(output.get(key) == value for key, value in fields.items()):
                return reported

    def close(self) -> None:
        self.response.close()
        self._connection.close()
