"""ActorTunnel: the connection of an agent in a Ray actor, for ``GatewayHost``; calls of the actor carry its bytes."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator

from ray_multicluster_scheduler.scheduler.connection.gateway.link.connection import Streams

_PUSH_TIMEOUT_S = 10.0
_BUFFER_BYTES = 1 << 20


class ActorTunnel:
    """The actor's end of a socket pair; the agent has the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._ours, self.theirs = socket.socketpair()
        for end in (self._ours, self.theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            end.setblocking(False)
        self._closed = threading.Event()
        self._lock, self._users = threading.Lock(), 0

    def pull(self, most: int, wait_s: float) -> bytes | None:
        """Up to ``most`` bytes that the agent has written; empty if it wrote none for ``wait_s``. None: closed."""
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
        """Pass bytes to the agent. False: the connection is closed, or the agent does not read."""
        until = time.monotonic() + _PUSH_TIMEOUT_S
        rest = memoryview(data)
        with self._in_use() as usable:
            while rest:
                if not usable or not self._ready(select.POLLOUT, until - time.monotonic()):
                    self.close()
                    return False
                try:
                    rest = rest[self._ours.send(rest) :]
                except BlockingIOError:
                    continue  # there was less room than poll() reported
                except OSError:
                    return False  # the agent has closed its end
        return True

    def close(self) -> None:
        """Close the connection, and wake the calls that wait on it."""
        with self._lock:
            self._closed.set()
            with contextlib.suppress(OSError):
                self._ours.shutdown(socket.SHUT_RDWR)
            if not self._users:
                self._ours.close()

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[bool]:
        """After :meth:`close`, the last user closes the socket: its number may be reused at once."""
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


class PendingConnection:
    """Passes connections to the agent's loop, from any thread; a new one replaces one that was not taken."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: socket.socket | None = None
        self._available = asyncio.Event()

    def put(self, end: socket.socket) -> None:
        self._loop.call_soon_threadsafe(self._put, end)

    def _put(self, end: socket.socket) -> None:
        if self._waiting is not None:
            self._waiting.close()
        self._waiting = end
        self._available.set()

    async def take(self) -> Streams:
        """Wait for the next connection."""
        while self._waiting is None:
            self._available.clear()
            await self._available.wait()
        end, self._waiting = self._waiting, None
        return await asyncio.open_connection(sock=end)
