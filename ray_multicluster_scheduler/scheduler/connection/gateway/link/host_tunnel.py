"""The agent's connection, where it is brought by a connector: bytes that come and go in calls of an actor."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator

from ray_multicluster_scheduler.scheduler.connection.gateway.link.dial import Streams

_PUSH_PATIENCE_S = 10.0
_BUFFER_BYTES = 1 << 20


class Tunnel:
    """Our end of a connection of the agent's, for bytes that come and go in calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._ours, self.theirs = socket.socketpair()
        for end in (self._ours, self.theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            end.setblocking(False)
        self._closed = threading.Event()
        self._lock, self._users = threading.Lock(), 0

    def pull(self, most: int, wait_s: float) -> bytes | None:
        """What the agent has written, up to ``most`` bytes; nothing when it wrote nothing for so long. None: closed."""
        with self._in_use() as usable:
            if not usable:
                return None
            if not self._ready(select.POLLIN, wait_s):
                return b""
            parts: list[bytes] = []
            with contextlib.suppress(BlockingIOError):
                while most > 0:
                    data = self._ours.recv(most)
                    if not data:
                        return b"".join(parts) if parts else None
                    parts.append(data)
                    most -= len(data)
            return b"".join(parts)

    def push(self, data: bytes) -> bool:
        """Give this to the agent. False: the connection is closed, or the agent does not read."""
        until = time.monotonic() + _PUSH_PATIENCE_S
        rest = memoryview(data)
        with self._in_use() as usable:
            while rest:
                if not usable or not self._ready(select.POLLOUT, until - time.monotonic()):
                    self.close()
                    return False
                try:
                    rest = rest[self._ours.send(rest) :]
                except BlockingIOError:
                    continue  # there was less room than it seemed
                except OSError:
                    return False  # the agent has closed its end
        return True

    def close(self) -> None:
        """The agent sees a closed connection. Whoever waits here is woken."""
        with self._lock:
            self._closed.set()
            with contextlib.suppress(OSError):
                self._ours.shutdown(socket.SHUT_RDWR)
            if not self._users:
                self._ours.close()

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[bool]:
        """Whoever uses it last after it was closed closes it for good: its number may be another's soon."""
        with self._lock:
            usable = not self._closed.is_set()
            self._users += usable
        try:
            yield usable
        finally:
            with self._lock:
                self._users -= usable
                if self._closed.is_set() and not self._users:
                    self._ours.close()

    def _ready(self, what: int, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._ours, what)
        return bool(poll.poll(max(seconds, 0.0) * 1000))


class Offers:
    """Hands connections to the agent's loop, from any thread. One that was not taken gives way to the next."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: socket.socket | None = None
        self._there = asyncio.Event()

    def put(self, end: socket.socket) -> None:
        self._loop.call_soon_threadsafe(self._put, end)

    def _put(self, end: socket.socket) -> None:
        if self._waiting is not None:
            self._waiting.close()
        self._waiting = end
        self._there.set()

    async def take(self) -> Streams:
        """Waits until there is one."""
        while self._waiting is None:
            self._there.clear()
            await self._there.wait()
        end, self._waiting = self._waiting, None
        return await asyncio.open_connection(sock=end)
