"""RunTimes: recent run times by function and by kind and size; CompletionRate: items that end per second."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from ray_multicluster_scheduler.common.model import TaskDescription

OVERHEAD_S = 0.001
"""The least time that Ray needs for a task."""

_MIN_SAMPLES = 2
_RECENT = 8
_KEPT = 10_000
_PACED = 50
_SHOWN_OF_ENTRYPOINT = 200


class RunTime(NamedTuple):
    """Expected seconds: minimum, mean and maximum."""

    low: float
    likely: float
    high: float


class RunTimes:
    """Recent run times by function digest. Conservative: the slowest recent run counts, and one run is not enough."""

    def __init__(self) -> None:
        self._recent: OrderedDict[str, deque[float]] = OrderedDict()
        self.changed = False
        """Set when the expected time of a function became shorter, or known; the reader resets it."""

    def observe(self, function: str | None, took: float | None) -> None:
        """Record a run time."""
        if function is None or took is None:
            return
        recent = self._recent.get(function)
        if recent is None:
            recent = self._recent[function] = deque(maxlen=_RECENT)
            if len(self._recent) > _KEPT:
                self._recent.popitem(last=False)
        forgotten = recent[0] if len(recent) == _RECENT else 0.0
        recent.append(took)
        if len(recent) == _MIN_SAMPLES or (forgotten > took and forgotten > max(recent)):
            self.changed = True

    def item_ended(self, task: TaskDescription, took: float) -> None:
        """Record the run time of an item as we saw it. For the code of a task the cluster reports a better value."""
        self.observe(size_key(task), took)
        if task.job is not None:
            self.observe(code_key(task), took)

    def expected_s(self, function: str | None) -> float | None:
        """Seconds that the next run will occupy a slot; None if unknown."""
        recent = self._recent.get(function) if function is not None else None
        return max(recent) + OVERHEAD_S if recent is not None and len(recent) >= _MIN_SAMPLES else None

    def observed_range(self, task: TaskDescription) -> RunTime | None:
        """Run time of such an item, from the last runs of the same code, else of the same kind and size."""
        for key in (code_key(task), size_key(task)):
            recent = self._recent.get(key) if key is not None else None
            if recent:
                number = len(recent)
                few = 1 / (number + 1), 1 / number  # few samples: a wider range
                return RunTime(min(recent) * (1 - few[0]), sum(recent) / number, max(recent) * (1 + few[1]))
        return None

    def forget(self, function: str | None) -> None:
        """Discard what was observed for this function."""
        if function is not None:
            self._recent.pop(function, None)


def code_key(task: TaskDescription) -> str | None:
    """Key of the code that the item runs; None for an actor, which has no run time of its own."""
    if task.job is not None:
        return f"job:{task.job.entrypoint[:_SHOWN_OF_ENTRYPOINT]}"
    return task.function_digest if task.kind == "task" else None


def size_key(task: TaskDescription) -> str | None:
    """Key of kind and size; None for actors, which do not end by themselves."""
    if task.runs_actors:
        return None
    needs = task.requirements
    return f"{task.kind}:{needs.get('CPU', 0)}:{needs.get('GPU', 0)}"


class CompletionRate:
    """Items that ended per second recently, over all clusters."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=_PACED)

    def ended(self, now: float) -> None:
        self._ends.append(now)

    def per_s(self, now: float) -> float | None:
        """None if too few items have ended."""
        if len(self._ends) < _PACED or now <= self._ends[0]:
            return None
        return len(self._ends) / (now - self._ends[0])
