"""MetricsAggregator: counts state transitions of items and measures durations, in memory that does not grow with the
number of items. ``monitor/prometheus_client.py`` renders the values for a scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from math import inf
from time import perf_counter
from typing import Any

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import codes
from ray_multicluster_scheduler.scheduler.lifecycle.events import Event
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Instruction, Transition
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine

MAX_REASONS = 64
OTHER = "OTHER"
_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 86_400.0)
_SHORT = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 1.0)
_COMMIT = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 30.0)
_QUEUED, _DISPATCHING, _RUNNING = TaskState.QUEUED, TaskState.DISPATCHING, TaskState.RUNNING
_RETRYING, _FAILED, _LOST = TaskState.RETRYING, TaskState.FAILED, TaskState.LOST
_FAILED_IN_USER_CODE = frozenset({
    codes.FAILED["user"], codes.FAILED["permanent"], "JOB_FAILED", "MODULE_NOT_FOUND", "NOT_LOADABLE",
    "RESULT_NOT_PICKLABLE", "RESULT_TOO_LARGE",
})  # fmt: skip
"""Codes of attempts that their cluster did start, though no start was seen (an __init__ raised, a job failed fast)."""
_NEVER_SENT = frozenset({"PAYLOAD_LOST", "PREPARATION_FAILED"})
_LOST_WITH_CLUSTER = frozenset(
    {codes.FAILED["cluster"], codes.CLUSTER_RESTARTED, codes.PROCESSES_DEAD, codes.DECLARED_DEAD}
)


class Histogram:
    """Counts of values per bucket, and their sum. Cheap to add to; only one thread may add."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[float, int]]:
        """Each upper bound with the number of values up to it (cumulative); the last bound is infinite."""
        total, rows = 0, []
        for bound, count in zip((*self._bounds, inf), self._counts, strict=True):
            total += count
            rows.append((bound, total))
        return rows


class TimedMachine(SchedulerMachine):
    """SchedulerMachine that records the duration of each event in a histogram."""

    def __init__(self, *args: Any, durations: Histogram, **kwargs: Any) -> None:
        self._durations = durations
        super().__init__(*args, **kwargs)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        started = perf_counter()
        instructions = super().handle(event, now)
        self._durations.add(perf_counter() - started)
        return instructions


class MetricsAggregator:
    """Counts since the start of the process. One thread writes and reads."""

    def __init__(self) -> None:
        self.entered: dict[str, int] = {str(state): 0 for state in TaskState}
        self.retries: Counter[str] = Counter(dict.fromkeys(codes.FAILED.values(), 0))
        """By reason. Prometheus sees no increase from a missing value, so the usual reasons begin at 0."""
        self.started: Counter[str] = Counter()
        """By cluster: attempts that started there."""
        self.not_started: Counter[str] = Counter()
        """By cluster: attempts that were sent there and did not start: refused, recalled, or lost."""
        self.lost: Counter[str] = Counter()
        """By cluster: attempts that were there when it was lost."""
        self.queue_wait, self.dispatch, self.decision = Histogram(_SECONDS), Histogram(_SECONDS), Histogram(_SHORT)
        self.commit = Histogram(_COMMIT)
        """Written by the thread that writes to the store."""

    def record(self, before: Transition | None, now: Transition, queued_at: float | None = None) -> None:
        """Count a transition of an item; ``before`` is its previous one, ``queued_at`` when it was queued. Called for
        each transition, so it must be fast."""
        state, was = now.state, None if before is None else before.state
        if state is was:
            return  # only the reason has changed
        self.entered[state._value_] += 1  # hashing the enum itself is slower
        if before is not None:
            if now.code in _LOST_WITH_CLUSTER or state is _LOST:
                self._count_lost(before)
            if was is _DISPATCHING:
                self._left_dispatching(before, now)
            elif was is _QUEUED and state is _DISPATCHING:
                since = queued_at if queued_at is not None and queued_at <= now.at else before.at
                self.queue_wait.add(max(0.0, now.at - since))
        if state is _RETRYING:
            known = now.code in self.retries or len(self.retries) < MAX_REASONS
            self.retries[now.code if known else OTHER] += 1

    def _left_dispatching(self, before: Transition, now: Transition) -> None:
        if before.cluster is None:
            return
        if now.state is _RUNNING:
            self.started[before.cluster] += 1
            self.dispatch.add(max(0.0, now.at - before.at))
        elif now.code in _FAILED_IN_USER_CODE:
            self.started[before.cluster] += 1
        elif now.code == codes.NOT_STARTED or (
            now.state in (_RETRYING, _FAILED, _LOST) and now.code not in _NEVER_SENT
        ):
            self.not_started[before.cluster] += 1

    def _count_lost(self, before: Transition) -> None:
        if before.cluster is not None and before.state in (_DISPATCHING, _RUNNING):  # otherwise it was counted before
            self.lost[before.cluster] += 1

    def success_ratio(self, cluster: str) -> float | None:
        """The fraction of sent attempts that started there; None if none was sent."""
        started, sent = self.started[cluster], self.started[cluster] + self.not_started[cluster]
        return started / sent if sent else None

    def forget(self, cluster: str) -> None:
        """Drop the counts of a cluster that was removed."""
        for counter in (self.started, self.not_started, self.lost):
            counter.pop(cluster, None)
