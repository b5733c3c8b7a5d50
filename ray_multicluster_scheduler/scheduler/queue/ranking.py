"""Ranking: counts how many waiting items come before a given one, without walking through all of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

_SLACK = 64


class Ranking:
    """A multiset of numbers with rank queries. It is sorted on demand, and mostly sorted already. Removed numbers are
    kept in a second list until there are many."""

    __slots__ = ("_all", "_removed", "_removed_sorted", "_sorted")

    def __init__(self) -> None:
        self._all: list[float] = []
        self._removed: list[float] = []
        self._sorted = self._removed_sorted = True

    def add(self, number: float) -> None:
        if self._sorted and self._all and number < self._all[-1]:
            self._sorted = False
        self._all.append(number)

    def remove(self, number: float) -> None:
        """One that was added."""
        if self._removed_sorted and self._removed and number < self._removed[-1]:
            self._removed_sorted = False
        self._removed.append(number)
        if len(self._removed) > len(self) + _SLACK:
            self._all, self._removed = self._remaining(), []

    def count_before(self, number: float, key: Callable[[float], float] | None = None) -> int:
        """The number of smaller numbers; with a monotonic ``key``, of smaller keys."""
        self._sort()
        if key is None:
            return bisect_left(self._all, number) - bisect_left(self._removed, number)
        return bisect_left(self._all, number, key=key) - bisect_left(self._removed, number, key=key)

    def _sort(self) -> None:
        if not self._sorted:
            self._all.sort()
            self._sorted = True
        if not self._removed_sorted:  # even one that is in order is walked through to find that out
            self._removed.sort()
            self._removed_sorted = True

    def _remaining(self) -> list[float]:
        self._sort()
        left, at, gone = [], 0, self._removed
        for number in self._all:
            if at < len(gone) and gone[at] == number:
                at += 1
            else:
                left.append(number)
        return left

    def __len__(self) -> int:
        return len(self._all) - len(self._removed)
