"""When may a waiting item start? Arithmetic over how long others are seen to run; never more than a guess.

Each node is looked at by itself: what runs there ends one after the other and leaves its room. Those ahead in the queue
are taken to be like the item. It is done three times, for the shortest, the mean and the longest runs that were seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ray_multicluster_scheduler.common.model import Resources
from ray_multicluster_scheduler.common.model.resources import fits, minus, plus
from ray_multicluster_scheduler.scheduler.lifecycle.run_times import RunTime

MOST_OPENINGS = 1000
"""Of one node: more of them say nothing more."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Something of ours that runs on a node: what it holds, and how much longer it may (None: nobody knows)."""

    holds: Resources
    left: RunTime | None


@dataclass(frozen=True, slots=True)
class Node:
    """What is free on it now, and what will be."""

    free: Resources
    busy: tuple[Busy, ...] = ()


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds from now; None where nothing is known, and then ``why`` says why.

    With ``low`` alone it is known when it may start at the earliest, and no more.
    """

    low: float | None = None
    likely: float | None = None
    high: float | None = None
    why: str = ""

    def not_faster_than(self, per_s: float | None, position: int) -> Forecast:
        """The same, where so many items were seen to end in a second: there is more to it than running."""
        if self.low is None or self.likely is None or self.high is None or per_s is None:
            return self
        turn = position / per_s
        return Forecast(max(self.low, turn / 2), max(self.likely, turn), max(self.high, turn * 2), self.why)

    @property
    def text(self) -> str:
        """One phrase for people."""
        if self.low is None:
            return f"unknown: {self.why}" if self.why else "unknown"
        if self.likely is None or self.high is None:
            return f"not before {span(self.low)} from now"
        if self.high == 0:
            return "at once"
        return f"in about {span(self.likely)} (between {_numbers(self.low, self.high)})"

    def to_dict(self) -> dict[str, Any]:
        return {"text": self.text, "earliest_s": self.low, "likely_s": self.likely, "latest_s": self.high}


def left_of(seen: RunTime | None, ran: float) -> RunTime | None:
    """How much longer something runs that has run for so long.

    Beyond the mean it is likely to end halfway to the longest that is expected. One that takes longer than that is of
    another kind than those that were seen: the longer it has run, the longer it will, as a rule half as long again.
    """
    if seen is None:
        return None
    if ran >= seen.high:
        return RunTime(0.0, ran / 2, ran)
    likely = seen.likely - ran if ran < seen.likely else (seen.high - ran) / 2
    return RunTime(max(0.0, seen.low - ran), likely, seen.high - ran)


def until_there_is_room(position: int, need: Resources, own: RunTime | None, nodes: Sequence[Node]) -> Forecast:
    """For the item at this ``position`` in the queue (1: the next) that needs this on one node.

    ``own`` is how long such items run.
    """
    if not need:
        return Forecast(why="it asks for nothing, so it does not wait for room")
    if not any(one.left for node in nodes for one in node.busy):
        return Forecast(why="nothing is known of how long runs what it waits for")
    times = [_start(position, need, own, nodes, which) for which in range(3)]
    if any(time is None for time in times):
        return Forecast(why=_too_little(position, own))
    low, likely, high = sorted(time for time in times if time is not None)
    return Forecast(low, likely, high)


def _start(position: int, need: Resources, own: RunTime | None, nodes: Iterable[Node], which: int) -> float | None:
    """Each opening is used by the next in the queue, and is there again when that one has ended."""
    openings = sorted(at for node in nodes for at in _openings(node, need, which))
    if not openings:
        return None
    rounds, place = divmod(position - 1, len(openings))
    if rounds and own is None:
        return None
    return openings[place] + (rounds * own[which] if own is not None else 0.0)


def _openings(node: Node, need: Resources, which: int) -> list[float]:
    """When there is room for one more on this node, each time without ending those before it."""
    openings: list[float] = []
    free = dict(node.free)
    ends = sorted((one.left[which], index) for index, one in enumerate(node.busy) if one.left is not None)
    for at, index in [(0.0, None), *ends]:
        if index is not None:
            free = plus(free, node.busy[index].holds)
        while len(openings) < MOST_OPENINGS and fits(need, free):
            openings.append(at)
            free = minus(free, need)
    return openings


def _too_little(position: int, own: RunTime | None) -> str:
    if own is None and position > 1:
        return f"{position - 1} are ahead of it, and nothing is known of how long such items run"
    return "what is known to end does not leave enough room for it"


def span(seconds: float) -> str:
    """``12 s``, ``5 min``, ``3 h``."""
    number, unit = _in_units(seconds)
    return f"{number} {unit}"


def _numbers(low: float, high: float) -> str:
    (first, unit), (second, other) = _in_units(low), _in_units(high)
    return f"{first} and {second} {other}" if unit == other else f"{first} {unit} and {second} {other}"


def _in_units(seconds: float) -> tuple[str, str]:
    if seconds < 10:
        return f"{round(seconds, 1):g}", "s"
    if seconds < 120:
        return f"{seconds:.0f}", "s"
    if seconds < 7200:
        return f"{seconds / 60:.0f}", "min"
    return f"{seconds / 3600:.0f}", "h"
