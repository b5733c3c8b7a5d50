"""RawWebSocket: a client of a WebSocket that says any frame it wants, right or wrong, over a socket of its own."""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import NamedTuple

CONTINUES, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
ANSWER_S = 20.0


class Frame(NamedTuple):
    opcode: int
    payload: bytes

    @property
    def close_code(self) -> int | None:
        return struct.unpack("!H", self.payload[:2])[0] if self.opcode == CLOSE and len(self.payload) > 1 else None


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, masked: bool = True, rsv: int = 0, says: int | None = None
) -> bytes:
    """As it is sent; ``says`` is a length that is not that of the payload."""
    size = len(payload) if says is None else says
    head = bytes([(0x80 if fin else 0) | (rsv << 4) | opcode])
    mask = 0x80 if masked else 0
    if size < 126:
        head += bytes([mask | size])
    elif size < 2**16:
        head += bytes([mask | 126]) + struct.pack("!H", size)
    else:
        head += bytes([mask | 127]) + struct.pack("!Q", size)
    if not masked:
        return head + payload
    key = os.urandom(4)
    return head + key + bytes(one ^ key[at % 4] for at, one in enumerate(payload))


class RawWebSocket:
    """``status`` is what the handshake was answered with: 101 if it is a WebSocket now, 0 if it was cut off."""

    def __init__(self, port: int, path: str, headers: dict[str, str], *, upgrade: bool = True) -> None:
        wanted = {
            "Host": f"127.0.0.1:{port}",
            "Connection": "Upgrade" if upgrade else "close",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            **headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in wanted.items())
        request = f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")
        self.socket = socket.create_connection(("127.0.0.1", port), ANSWER_S)
        self.socket.sendall(request)
        self._data = b""
        try:
            self.status = self._shake_hands()
        except BaseException:
            self.socket.close()
            raise

    def say(self, data: bytes) -> bool:
        """False: it is cut off."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def hear(self, within: float) -> Frame | None:
        """The next frame; None if there is none in time, or any more. Raises TimeoutError, EOFError."""
        end = time.monotonic() + within
        while (found := self._take()) is None:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._more(left)
        return found

    def close(self, *, rudely: bool = False) -> None:
        if rudely:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _shake_hands(self) -> int:
        try:
            while b"\r\n\r\n" not in self._data:
                self._more(ANSWER_S)
        except EOFError:
            return 0
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1])

    def _more(self, within: float) -> None:
        self.socket.settimeout(within)
        try:
            data = self.socket.recv(2**16)
        except ConnectionError as error:
            raise EOFError from error
        finally:
            self.socket.settimeout(ANSWER_S)
        if not data:
            raise EOFError
        self._data += data

    def _take(self) -> Frame | None:
        data = self._data
        if len(data) < 2:
            return None
        size, at = data[1] & 0x7F, 2
        if size > 125:
            at = 4 if size == 126 else 10
            if len(data) < at:
                return None
            size = int.from_bytes(data[2:at], "big")
        if len(data) < at + size:
            return None
        self._data = data[at + size :]
        return Frame(data[0] & 0x0F, data[at : at + size])
