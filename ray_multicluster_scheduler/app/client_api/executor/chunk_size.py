"""Computes the size of the next chunk of a map from observed run times. Pure: no I/O, no clock."""

from __future__ import annotations

from typing import TypeAlias

TARGET_S = 0.3
"""Target run time of a chunk: long compared with the cost of sending one, short for a waiting reader."""
SLOWEST_S = 1.0
"""Limit for the run time of a chunk on the slowest cluster seen, where it may be placed."""
MIN_END_S = 0.03
"""Lower limit for the chunks at the end of the input, which shrink: sending one costs some milliseconds."""
GROWTH = 16
"""A chunk is at most this many times as large as the largest finished one: the first measurements are noisy."""
MAX_ITEMS = 10_000
MAX_BYTES = 8 * 1024 * 1024
_MEMORY = 0.7
"""Weight of earlier observations when a chunk finishes."""


class FixedSize:
    """The ``chunksize`` of the caller. ``exact``: wait for a full chunk, however slow the input is."""

    exact = True

    def __init__(self, size: int) -> None:
        self._size = size

    def observe(self, cluster: str | None, items: int, seconds: float, size: int = 0) -> None:
        """Ignored: the size is fixed."""

    def next_size(self, *, cluster: str | None, remaining: int | None, slots: int) -> int:
        return self._size


class BalancedSize:
    """Sizes by observed speed: single calls first, then chunks of about TARGET_S for the cluster that became free,
    and smaller ones towards the end, so that the map does not wait for one last large chunk."""

    exact = False

    def __init__(self) -> None:
        self._speeds: dict[str | None, _Mean] = {}
        self._bytes = _Mean()
        self._largest = 0

    def observe(self, cluster: str | None, items: int, seconds: float, size: int = 0) -> None:
        """Record a finished chunk: its cluster, number of calls, run time, and bytes in and out."""
        self._speeds.setdefault(cluster, _Mean()).add(max(seconds, 1e-9), items)
        self._bytes.add(size, items)
        self._largest = max(self._largest, items)

    def next_size(self, *, cluster: str | None, remaining: int | None, slots: int) -> int:
        """Return the size of the next chunk, at least 1. ``cluster`` has just become free, ``remaining`` is the number
        of calls left (None: unknown), ``slots`` the number of chunks that run at a time."""
        if not self._largest:
            return 1
        slowest = max(mean.value for mean in self._speeds.values())
        known = self._speeds.get(cluster)
        seconds = slowest if known is None else known.value
        size = min(TARGET_S / seconds, SLOWEST_S / slowest, self._largest * GROWTH, MAX_ITEMS)
        if self._bytes.value > 0:
            size = min(size, MAX_BYTES / self._bytes.value)
        if remaining is not None:
            size = min(size, max(remaining / (2 * max(slots, 1)), MIN_END_S / seconds))
        return max(1, int(size))


ChunkSizer: TypeAlias = FixedSize | BalancedSize


class _Mean:
    """Decaying mean of an amount per item, weighted by chunk size."""

    def __init__(self) -> None:
        self._sum, self._items = 0.0, 0.0

    def add(self, amount: float, items: int) -> None:
        self._sum = self._sum * _MEMORY + amount
        self._items = self._items * _MEMORY + items

    @property
    def value(self) -> float:
        return self._sum / self._items if self._items else 0.0
