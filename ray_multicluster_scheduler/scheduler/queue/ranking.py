"""Ranking: how many of those that wait come before a given one, without a walk through all of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

_SLACK = 64


class Ranking:
    """Numbers, each as often as it was added and not taken out. They are put in order when somebody asks, and mostly
    are so already: who waits came one after the other. Those that left are a list of their own until they are many."""

    __slots__ = ("_all", "_gone", "_gone_in_order", "_in_order")

    def __init__(self) -> None:
        self._all: list[float] = []
        self._gone: list[float] = []
        self._in_order = self._gone_in_order = True

    def add(self, number: float) -> None:
        if self._in_order and self._all and number < self._all[-1]:
            self._in_order = False
        self._all.append(number)

    def take_out(self, number: float) -> None:
        """One that was added."""
        if self._gone_in_order and self._gone and number < self._gone[-1]:
            self._gone_in_order = False
        self._gone.append(number)
        if len(self._gone) > len(self) + _SLACK:
            self._all, self._gone = self._left(), []

    def before(self, number: float, key: Callable[[float], float] | None = None) -> int:
        """How many are smaller. By a ``key`` that keeps them in order, if one is given: then how many keys are."""
        self._sort()
        if key is None:
            return bisect_left(self._all, number) - bisect_left(self._gone, number)
        return bisect_left(self._all, number, key=key) - bisect_left(self._gone, number, key=key)

    def _sort(self) -> None:
        if not self._in_order:
            self._all.sort()
            self._in_order = True
        if not self._gone_in_order:  # even one that is in order is walked through to find that out
            self._gone.sort()
            self._gone_in_order = True

    def _left(self) -> list[float]:
        self._sort()
        left, at, gone = [], 0, self._gone
        for number in self._all:
            if at < len(gone) and gone[at] == number:
                at += 1
            else:
                left.append(number)
        return left

    def __len__(self) -> int:
        return len(self._all) - len(self._gone)
