"""Copies bytes both ways between the control plane's port for agents and the agent's connection, in batches."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any, Protocol

LEAST_BYTES, FIRST_BYTES, MOST_BYTES = 16 * 1024, 64 * 1024, 4 * 1024 * 1024
QUICK_S, SLOW_S = 0.3, 1.0
MANY_BYTES, GATHER_S, BUSY_S = 1024, 0.02, 0.15


class Gathering:
    """A call costs the cluster some milliseconds, whatever it carries. While many messages pass both ways, each call
    waits a moment for others to travel with. A single one, for which somebody may wait, goes at once."""

    def __init__(self) -> None:
        self._many_at = {"here": -BUSY_S, "there": -BUSY_S}

    def pause_after(self, way: str, size: int, now: float) -> float:
        """Seconds before the next call that way, after one with so many bytes. None after something large, the rest of
        which waits already."""
        if size >= FIRST_BYTES:
            return 0.0
        if size >= MANY_BYTES:
            self._many_at[way] = now
        return GATHER_S if now - min(self._many_at.values()) < BUSY_S else 0.0


class ChunkSize:
    """Grows while whole chunks are quick, shrinks when one was slow. What is smaller than a chunk says nothing of how
    fast the line is, unless it was slow."""

    def __init__(self) -> None:
        self.bytes = FIRST_BYTES

    def took(self, size: int, seconds: float) -> None:
        """A call with so many bytes was answered after so long."""
        if seconds > SLOW_S and size >= LEAST_BYTES:
            self.bytes = max(LEAST_BYTES, min(self.bytes, size) // 2)
        elif size >= self.bytes and seconds < QUICK_S:
            self.bytes = min(MOST_BYTES, self.bytes * 2)


class Calls(Protocol):
    """The gateway's actor."""

    async def call(self, method: str, *args: Any, patience_s: float | None = None) -> Any: ...


class Tunnel:
    """One connection. One call with bytes is under way in each direction, with everything that waits by then."""

    def __init__(self, gateway: Calls, listener: tuple[str, int], wait_s: float) -> None:
        self._gateway, self._listener, self._wait_s = gateway, listener, wait_s
        self._name = secrets.token_hex(8)
        self._gathering = Gathering()

    async def open(self, patience_s: float | None = None) -> dict[str, Any]:
        """What the gateway says of itself. Raises OSError (nobody listens at our port), and what calls raise."""
        opened: dict[str, Any] = await self._gateway.call("open", self._name, patience_s=patience_s)
        # Only now: our port gives who comes in a few seconds to say who it is, and an actor may take longer to start.
        self._reader, self._writer = await asyncio.open_connection(*self._listener)
        return opened

    async def carry(self) -> None:
        """Until one of the two ends closes it. Raises what calls raise, TimeoutError among it."""
        both = [asyncio.ensure_future(self._here()), asyncio.ensure_future(self._there())]
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
        """Tell the other end; it says why the agent has ended, if it has."""
        ended: str | None = await self._gateway.call("close", self._name)
        return ended

    async def _here(self) -> None:
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
                await self._pause("here", len(data))

    async def _there(self) -> None:
        size = ChunkSize()
        while data := await self._reader.read(size.bytes):
            began = time.monotonic()
            if not await self._gateway.call("push", self._name, data):
                return
            size.took(len(data), time.monotonic() - began)
            await self._pause("there", len(data))

    async def _pause(self, way: str, size: int) -> None:
        pause_s = self._gathering.pause_after(way, size, time.monotonic())
        if pause_s:
            await asyncio.sleep(pause_s)
