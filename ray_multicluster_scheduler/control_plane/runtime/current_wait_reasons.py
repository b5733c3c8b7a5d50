"""Why items wait, as of now: what was said when that was decided tells of seconds that are over."""

from __future__ import annotations

from ray_multicluster_scheduler.common.exception import PolicyEvaluationError
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.lifecycle import retry
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.queue.shape_group import ShapeGroup

MOST_SHAPES = 100
"""Of one answer: a long list of items that all differ shows the rest as they were last decided."""

Reason = tuple[str, str]


class ReasonsNow:
    """On the loop, for one answer. Items of one shape wait for the same, so each shape is asked about once; and all of
    them about the same clusters, which are looked at once."""

    def __init__(self, machine: SchedulerMachine, now: float) -> None:
        self._machine, self._now = machine, now
        self._known: dict[ShapeGroup, Reason | None] = {}
        self._views: tuple[ClusterView, ...] | None = None

    def of(self, record: TaskRecord) -> Reason:
        """Code and sentence of its state; of one that does not wait, as they were told when it came to be so."""
        missing = self._machine.missing(record.task.id)
        if missing is not None:
            held = "" if record.held is None else f"; is held{f': {record.held}' if record.held else ''}"
            return missing.code, missing.sentence + held
        left = self._machine.retried_in(record.task.id, self._now)
        if left is not None:
            return record.code, retry.as_of_now(record.sentence, left)
        group = record.group
        if group is None or (group not in self._known and len(self._known) >= MOST_SHAPES):
            return record.code, record.sentence
        if group not in self._known:
            self._known[group] = self._asked(record)
        return self._known[group] or (record.code, record.sentence)

    def _asked(self, record: TaskRecord) -> Reason | None:
        """None: it is about to go, and what was told last holds, of each its own."""
        if self._views is None:
            self._views = self._machine.fresh_views(self._now)
        try:
            decision = self._machine.why(record.task.id, self._now, self._views)
        except PolicyEvaluationError:
            decision = None  # the pass hears of it, and ends the item with it
        if decision is None or decision.cluster is not None:
            return None
        return decision.code, decision.sentence
