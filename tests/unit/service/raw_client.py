"""RawClient: a client that says byte by byte what it wants, over a socket of its own."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from tests.unit.service.http_service import HttpService


class RawClient:
    def __init__(self, service: HttpService, timeout: float = 20.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", service.port), timeout)

    def say(self, text: str | bytes) -> None:
        self.socket.sendall(text.encode("latin-1") if isinstance(text, str) else text)

    def trickle(self, text: bytes, pause: float, limit: float) -> float:
        """Byte by byte, again and again, until it is cut off. Returns how long that took."""
        begun = time.monotonic()
        try:
            while time.monotonic() - begun < limit:
                for at in range(len(text)):
                    self.socket.sendall(text[at : at + 1])
                    self.socket.settimeout(pause)
                    try:
                        if self.socket.recv(65536, socket.MSG_PEEK) or True:
                            return time.monotonic() - begun
                    except TimeoutError:
                        pass
        except OSError:
            pass
        return time.monotonic() - begun

    def answer(self) -> tuple[int, Any]:
        """The next one; 0 if there is none, since it was cut off. A problem document is read."""
        self.socket.settimeout(60.0)
        data = b""
        try:
            while b"\r\n\r\n" not in data:
                data += self._more()
            head, _, rest = data.partition(b"\r\n\r\n")
            lines = head.decode("latin-1").lower().split("\r\n")
            length = next((int(one.split(":")[1]) for one in lines if one.startswith("content-length:")), 0)
            while len(rest) < length:
                rest += self._more()
        except ConnectionError:
            return 0, data
        output = rest[:length]
        return int(lines[0].split()[1]), json.loads(output) if "json" in head.decode("latin-1") else output

    def is_cut_off(self, within: float = 60.0) -> bool:
        self.socket.settimeout(within)
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def _more(self) -> bytes:
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("cut off")
        return data

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
