"""Sending ahead: short work waits beside the place that it will get, so that no place waits for it.

One place at a time, small tasks are bound by the round trip to their cluster. Of work that is known to be short,
as much is sent as keeps the places of ours there busy for about ``prefetch_ms``. It waits with the gateway, starts
when a place of ours of the same class is freed, and can be taken back. It holds no resources and is counted apart.
"""

from __future__ import annotations

from collections.abc import Iterator

from ray_multicluster_scheduler.common.model import CandidateReport, SchedulingDecision
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState
from ray_multicluster_scheduler.scheduler.cluster.places import place_class
from ray_multicluster_scheduler.scheduler.lifecycle import codes, timers
from ray_multicluster_scheduler.scheduler.lifecycle.core import Core
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Ahead, RecallAttempt
from ray_multicluster_scheduler.scheduler.lifecycle.record import Ending, TaskRecord
from ray_multicluster_scheduler.scheduler.policy.reasons import ABOVE_THRESHOLD, NO_CAPACITY

MOST_PER_PLACE = 50
"""However short it is: more would not make it faster, and only be taken back when plans change."""

PATIENCE_S = 1.0
"""What has not begun after this was not behind short work after all, and is taken back."""

_FULL = frozenset({NO_CAPACITY, ABOVE_THRESHOLD})


class SendingAhead:
    """Who may be sent ahead, where, and who is taken back."""

    def __init__(self, core: Core) -> None:
        self._core = core
        settings = core.settings
        self._cover_s = settings.prefetch_ms / 1000 if settings.execution_mode == "parallel" else 0.0

    def target(self, record: TaskRecord, decision: SchedulingDecision) -> tuple[str, Ahead] | None:
        """Where it may be sent although ``decision`` has no place for it, and how; None if it has to wait here."""
        per_place = self._per_place(record)
        if not per_place or record.task.kind != "task":
            return None
        open_rows = [row for row in decision.candidates if self._room(row, record, per_place) > 0]
        if not open_rows:
            return None
        best = max(open_rows, key=lambda row: self._room(row, record, per_place))
        full = any(one.code == NO_CAPACITY for one in best.rejections)
        return best.cluster, "overlap" if full else "queue"

    def is_short(self, record: TaskRecord) -> bool:
        """Will its place soon be free again?"""
        return self._per_place(record) > 0

    def is_low(self, record: TaskRecord, cluster: str) -> bool:
        """Is less than half of what may be there still there, behind work like this one?"""
        state = self._core.registry.find(cluster)
        if state is None:
            return False
        of = place_class(record.task.requirements)
        most = state.places.short_places(of) * self._per_place(record)
        return state.places.waiting(of) * 2 < most

    def watch(self, state: ClusterState) -> None:
        """Look after those that wait there when the first of them has waited too long."""
        key = timers.ahead_key(state.name)
        if key in self._core.out.timer_keys:
            return
        waiting = (record.task.id for record in self._waiting(state) if record.ending is None)
        oldest = next(waiting, None)
        if oldest is not None:
            self._core.out.set_timer(key, state.places.ahead[oldest].since + PATIENCE_S)

    def patience_over(self, cluster: str, now: float) -> None:
        """Take back what has waited too long; its function is not thought to be short any more."""
        state = self._core.registry.find(cluster)
        if state is None:
            return
        for record in self._waiting(state):
            since = state.places.ahead[record.task.id].since
            if since + PATIENCE_S <= now:
                self._core.run_times.forget(record.task.function_digest)
                self._recall(record, f"waited longer than {PATIENCE_S:g} s for a place on {cluster}", now)
        self.watch(state)

    def make_way(self, priority: int, now: float) -> None:
        """Somebody of this priority waits: take back whoever is less urgent."""
        for state in self._core.registry:
            for record in self._waiting(state) if state.places.ahead else ():
                if record.task.priority < priority:
                    self._recall(record, "a more urgent item waits", now)

    def leave(self, state: ClusterState, sentence: str, now: float) -> None:
        """Take back all that waits on a cluster."""
        for record in self._waiting(state):
            self._recall(record, sentence, now)

    def _per_place(self, record: TaskRecord) -> int:
        if not self._cover_s:
            return 0
        expected = self._core.run_times.expected(record.task.function_digest)
        return 0 if expected is None else min(int(self._cover_s / expected), MOST_PER_PLACE)

    def _room(self, row: CandidateReport, record: TaskRecord, per_place: int) -> int:
        """How many more may be sent there; only where nothing but a lack of room keeps it away."""
        if not row.rejections or any(one.code not in _FULL for one in row.rejections):
            return 0
        state = self._core.registry.find(row.cluster)
        if state is None or state.link != "up" or state.cordoned:
            return 0
        of = place_class(record.task.requirements)
        most = state.places.short_places(of) * per_place
        others = state.metadata.max_in_flight - len(state.places.held) - len(state.places.ahead)
        return min(most - state.places.waiting(of), others)

    def _waiting(self, state: ClusterState) -> Iterator[TaskRecord]:
        return iter([self._core.records[task_id] for task_id in state.places.ahead])

    def _recall(self, record: TaskRecord, sentence: str, now: float) -> None:
        if record.ending is not None or record.cluster is None:
            return
        record.ending = Ending("take_back", f"was taken back from {record.cluster}: {sentence}", force=False)
        self._core.transition(record, record.state, codes.TAKEN_BACK, record.ending.sentence, now)
        self._core.out.put(RecallAttempt(record.task.id, record.attempt, record.cluster))
