"""Virtual time and reproducible randomness: the clock of a simulation, and random streams by seed and purpose."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any


def random_stream(seed: int, purpose: str) -> Random:
    """Random numbers for one purpose, independent of what is drawn for any other purpose."""
    return Random(f"{seed}/{purpose}")  # nosec B311 # reproducible on purpose


class VirtualClock:
    """An event loop in virtual time: calls wait in a heap, ordered by time and then by when they were scheduled."""

    __slots__ = ("_heap", "_number", "_stopped", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[Any], object], Any]] = []
        self._number = 0
        self._stopped = False

    def at(self, when: float, action: Callable[[Any], object], argument: Any = None) -> None:
        """Schedule ``action(argument)`` for this time, after everything already scheduled for the same time."""
        self._number += 1
        heappush(self._heap, (when, self._number, action, argument))

    def after(self, seconds: float, action: Callable[[Any], object], argument: Any = None) -> None:
        """Schedule ``action(argument)`` so many seconds from now."""
        self._number += 1
        heappush(self._heap, (self.now + seconds, self._number, action, argument))

    def stop(self) -> None:
        """Let :meth:`run` return after the current call."""
        self._stopped = True

    def run(self) -> None:
        """Run scheduled calls until :meth:`stop`, or until none is left."""
        self._stopped = False
        heap = self._heap
        while heap and not self._stopped:
            when, _, action, argument = heappop(heap)
            self.now = when
            action(argument)
