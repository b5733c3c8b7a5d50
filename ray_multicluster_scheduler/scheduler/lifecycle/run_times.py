"""How long functions ran lately: what is known to be short may be sent ahead."""

from __future__ import annotations

from collections import OrderedDict, deque

OVERHEAD_S = 0.001
"""What a task costs Ray at the least, however little it does."""

_ENOUGH = 2
_RECENT = 8
_KEPT = 10_000


class RunTimes:
    """By the digest of a function. Careful: the slowest of the recent runs counts, and one run says nothing."""

    def __init__(self) -> None:
        self._recent: OrderedDict[str, deque[float]] = OrderedDict()

    def observe(self, function: str | None, took: float | None) -> None:
        """It ran this long."""
        if function is None or took is None:
            return
        recent = self._recent.get(function)
        if recent is None:
            recent = self._recent[function] = deque(maxlen=_RECENT)
            if len(self._recent) > _KEPT:
                self._recent.popitem(last=False)
        recent.append(took)

    def expected(self, function: str | None) -> float | None:
        """Seconds that its next run will keep a place busy; None if nobody knows."""
        recent = self._recent.get(function) if function is not None else None
        return max(recent) + OVERHEAD_S if recent is not None and len(recent) >= _ENOUGH else None

    def forget(self, function: str | None) -> None:
        """What was seen before does not hold any more."""
        if function is not None:
            self._recent.pop(function, None)
