"""How much goes into one call: as much as a slow line still carries in moments."""

from __future__ import annotations

LEAST_BYTES, FIRST_BYTES, MOST_BYTES = 16 * 1024, 64 * 1024, 4 * 1024 * 1024
QUICK_S, SLOW_S = 0.3, 1.0


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
