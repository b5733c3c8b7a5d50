"""Clockwork: virtual time. What is to happen waits in one heap, ordered by time and then by when it was asked for."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Clockwork:
    """No clock, no chance: the same calls give the same order, always."""

    __slots__ = ("_heap", "_number", "_stopped", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[Any], object], Any]] = []
        self._number = 0
        self._stopped = False

    def at(self, when: float, action: Callable[[Any], object], about: Any = None) -> None:
        """Call ``action(about)`` at this time, after everything that was asked for the same time before."""
        self._number += 1
        heappush(self._heap, (when, self._number, action, about))

    def after(self, seconds: float, action: Callable[[Any], object], about: Any = None) -> None:
        """The same, so many seconds from now."""
        self._number += 1
        heappush(self._heap, (self.now + seconds, self._number, action, about))

    def stop(self) -> None:
        """Let :meth:`run` return after what happens just now."""
        self._stopped = True

    def run(self) -> None:
        """Let time pass until somebody stops it, or nothing is left to happen."""
        self._stopped = False
        heap = self._heap
        while heap and not self._stopped:
            when, _, action, about = heappop(heap)
            self.now = when
            action(about)
