"""Tunnel: copies bytes both ways between the control plane's port for agents and an agent in an actor, in batches."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any, Protocol

MIN_BYTES, FIRST_BYTES, MAX_BYTES = 16 * 1024, 64 * 1024, 4 * 1024 * 1024
FAST_S, SLOW_S = 0.3, 1.0
MANY_BYTES, BATCH_DELAY_S, BUSY_S = 1024, 0.02, 0.15


class BatchDelay:
    """Decides how long the next call waits for more bytes. A call of any size costs the cluster some milliseconds, so
    while many messages pass in both directions each call is delayed; a single message is sent at once."""

    def __init__(self) -> None:
        self._many_at = {"pull": -BUSY_S, "push": -BUSY_S}

    def after(self, way: str, size: int, now: float) -> float:
        """Seconds to wait after a call with ``size`` bytes; 0 after a large one, because its rest waits already."""
        if size >= FIRST_BYTES:
            return 0.0
        if size >= MANY_BYTES:
            self._many_at[way] = now
        return BATCH_DELAY_S if now - min(self._many_at.values()) < BUSY_S else 0.0


class ChunkSize:
    """Grows while whole chunks are fast, shrinks when one was slow. A smaller piece counts only if it was slow."""

    def __init__(self) -> None:
        self.bytes = FIRST_BYTES

    def took(self, size: int, seconds: float) -> None:
        """Adapt to a call with ``size`` bytes that took ``seconds``."""
        if seconds > SLOW_S and size >= MIN_BYTES:
            self.bytes = max(MIN_BYTES, min(self.bytes, size) // 2)
        elif size >= self.bytes and seconds < FAST_S:
            self.bytes = min(MAX_BYTES, self.bytes * 2)


class Caller(Protocol):
    """Calls methods of the gateway's actor."""

    async def call(self, method: str, *args: Any, patience_s: float | None = None) -> Any: ...


class Tunnel:
    """One connection. In each direction there is one call at a time, with all bytes that wait when it starts."""

    def __init__(self, gateway: Caller, listener: tuple[str, int], wait_s: float) -> None:
        self._gateway, self._listener, self._wait_s = gateway, listener, wait_s
        self._name = secrets.token_hex(8)
        self._delay = BatchDelay()

    async def open(self, patience_s: float | None = None) -> dict[str, Any]:
        """Open both ends; returns the actor's answer. Raises OSError if our port is closed, and errors of calls."""
        opened: dict[str, Any] = await self._gateway.call("open", self._name, patience_s=patience_s)
        # Last: an actor may start slowly, and our port closes a connection without a HELLO after seconds.
        self._reader, self._writer = await asyncio.open_connection(*self._listener)
        return opened

    async def carry(self) -> None:
        """Copy until one of the two ends closes. Raises the errors of calls, such as TimeoutError."""
        both = [asyncio.ensure_future(self._pull()), asyncio.ensure_future(self._push())]
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            self._writer.transport.abort()

    async def close(self) -> str | None:
        """Close the actor's end; returns why the agent has ended, if it has."""
        ended: str | None = await self._gateway.call("close", self._name)
        return ended

    async def _pull(self) -> None:
        size = ChunkSize()
        while True:
            began = time.monotonic()
            data = await self._gateway.call("pull", self._name, size.bytes, self._wait_s)
            if data is None:
                return
            if data:
                if len(data) >= size.bytes:  # else most of the time was spent waiting for bytes
                    size.took(len(data), time.monotonic() - began)
                self._writer.write(data)
                await self._writer.drain()
                await self._pause("pull", len(data))

    async def _push(self) -> None:
        size = ChunkSize()
        while data := await self._reader.read(size.bytes):
            began = time.monotonic()
            if not await self._gateway.call("push", self._name, data):
                return
            size.took(len(data), time.monotonic() - began)
            await self._pause("push", len(data))

    async def _pause(self, way: str, size: int) -> None:
        delay_s = self._delay.after(way, size, time.monotonic())
        if delay_s:
            await asyncio.sleep(delay_s)
