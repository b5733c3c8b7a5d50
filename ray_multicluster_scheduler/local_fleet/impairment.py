"""What a forwarder does to the traffic of one cluster: nothing, delay, throttle, or hold it."""

from __future__ import annotations

import asyncio
import time

_SLICE_S = 0.05
"""A throttled stream moves in slices of this length, so that a change takes effect soon."""
_MAX_READ = 65536


class Impairment:
    """Shared by all connections of a cluster; may be changed while bytes flow."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._free_at = {"in": 0.0, "out": 0.0}

    def freeze(self) -> None:
        """Hold every byte; connections stay open on both sides."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Let the held bytes go on, none lost, in order."""
        self._flowing.set()

    @property
    def frozen(self) -> bool:
        return not self._flowing.is_set()

    def read_size(self) -> int:
        """How much to take at once."""
        if self.bytes_per_s is None:
            return _MAX_READ
        return max(1, min(_MAX_READ, int(self.bytes_per_s * _SLICE_S)))

    async def pace(self, direction: str, size: int) -> None:
        """Wait until the cluster's line has carried ``size`` bytes; all its connections share the rate."""
        if self.bytes_per_s is None:
            return
        begin = max(time.monotonic(), self._free_at[direction])
        self._free_at[direction] = begin + size / self.bytes_per_s
        await asyncio.sleep(self._free_at[direction] - time.monotonic())

    async def hold_until(self, due: float) -> None:
        """Wait for the moment a byte is due, and then for as long as the line is frozen."""
        late = due - time.monotonic()
        if late > 0:
            await asyncio.sleep(late)
        await self._flowing.wait()
