"""How much goes into one call: as much as a slow line still carries in moments."""

from __future__ import annotations

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
