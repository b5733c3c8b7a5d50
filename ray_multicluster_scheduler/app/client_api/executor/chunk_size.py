"""How many calls go into the next chunk. Pure: observations in, a number out."""

from __future__ import annotations

from typing import Protocol

TARGET_S = 0.3
"""What a chunk should take: long beside the cost of sending one, short beside what somebody waits for."""
SLOWEST_S = 1.0
"""The most that a chunk may take on the slowest cluster seen: it may land there."""
LEAST_S = 0.03
"""Towards the end chunks shrink, but not below this: sending one costs some milliseconds."""
GROWTH = 16
"""A chunk is at most this many times the largest that came back: the first measurements are mostly noise."""
MOST_ITEMS = 10_000
MOST_BYTES = 8 * 1024 * 1024
_MEMORY = 0.7
"""How much of what was known is kept when a chunk comes back."""


class ChunkSizer(Protocol):
    """Decides on the size of chunks. ``exact``: a chunk is filled up to it, however long its input takes."""

    exact: bool

    def observe(self, cluster: str | None, items: int, seconds: float, size: int = 0) -> None:
        """A chunk came back: where it ran, how many calls it held, how long they took, bytes in and out."""

    def next_size(self, *, cluster: str | None, remaining: int | None, slots: int) -> int:
        """At least 1. ``cluster`` is the one that has just become free, ``remaining`` how many calls there are still
        (None: unknown), ``slots`` how many chunks run at a time."""


class FixedSize:
    """What the caller said."""

    exact = True

    def __init__(self, size: int) -> None:
        self._size = size

    def observe(self, cluster: str | None, items: int, seconds: float, size: int = 0) -> None:
        """Nothing is learned from it."""

    def next_size(self, *, cluster: str | None, remaining: int | None, slots: int) -> int:
        return self._size


class BalancedSize:
    """By observed speed: single calls first, then chunks of about TARGET_S for the cluster that has become free,
    and smaller ones towards the end, so that nobody waits for one last large chunk."""

    exact = False

    def __init__(self) -> None:
        self._speeds: dict[str | None, _Mean] = {}
        self._bytes = _Mean()
        self._largest = 0

    def observe(self, cluster: str | None, items: int, seconds: float, size: int = 0) -> None:
        self._speeds.setdefault(cluster, _Mean()).add(max(seconds, 1e-9), items)
        self._bytes.add(size, items)
        self._largest = max(self._largest, items)

    def next_size(self, *, cluster: str | None, remaining: int | None, slots: int) -> int:
        if not self._largest:
            return 1
        slowest = max(mean.value for mean in self._speeds.values())
        known = self._speeds.get(cluster)
        seconds = slowest if known is None else known.value
        size = min(TARGET_S / seconds, SLOWEST_S / slowest, self._largest * GROWTH, MOST_ITEMS)
        if self._bytes.value > 0:
            size = min(size, MOST_BYTES / self._bytes.value)
        if remaining is not None:
            size = min(size, max(remaining / (2 * max(slots, 1)), LEAST_S / seconds))
        return max(1, int(size))


class _Mean:
    """An amount per item, over the last chunks; a large chunk counts for more than a small one."""

    def __init__(self) -> None:
        self._sum, self._items = 0.0, 0.0

    def add(self, amount: float, items: int) -> None:
        self._sum = self._sum * _MEMORY + amount
        self._items = self._items * _MEMORY + items

    @property
    def value(self) -> float:
        return self._sum / self._items if self._items else 0.0
