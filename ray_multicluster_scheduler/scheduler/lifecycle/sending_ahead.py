"""Sending ahead: short work waits beside the place that it will get, so that no place waits for it.

One place at a time, small tasks are bound by the round trip to their cluster. Of work that is known to be short,
as much is sent as keeps the places of ours there busy for about ``prefetch_ms``. It waits with the gateway, starts
when a place of ours of the same class is freed, and can be taken back. It holds no resources and is counted apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ray_multicluster_scheduler.common.model import (
    CandidateReport,
    Resources,
    SchedulingDecision,
    TaskDescription,
)
from ray_multicluster_scheduler.common.model.resources import fits, minus, plus, shape_of
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import NodeView
from ray_multicluster_scheduler.scheduler.lifecycle import codes, timers
from ray_multicluster_scheduler.scheduler.lifecycle.core import Core
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Ahead, RecallAttempt
from ray_multicluster_scheduler.scheduler.lifecycle.record import Ending, TaskRecord
from ray_multicluster_scheduler.scheduler.policy.reasons import ABOVE_THRESHOLD, NO_CAPACITY
from ray_multicluster_scheduler.scheduler.queue.backpressure_controller import BackpressureController
from ray_multicluster_scheduler.scheduler.queue.order import OrderKey
from ray_multicluster_scheduler.scheduler.queue.task_queue import ShapeGroup

MOST_PER_PLACE = 50
"""However short it is: more would not make it faster, and only be taken back when plans change."""

PATIENCE_S = 1.0
"""What has not begun after this was not behind short work after all, and is taken back."""

LIGHT_BYTES = 64 * 1024
"""More has to be carried: what is sent ahead would hold up what has a place."""

_FULL = frozenset({NO_CAPACITY, ABOVE_THRESHOLD})


class SendingAhead:
    """Who may be sent ahead, where, and who is taken back."""

    def __init__(self, core: Core) -> None:
        self._core = core
        settings = core.settings
        self._controller = BackpressureController(settings)
        self._cover_s = settings.prefetch_ms / 1000 if settings.execution_mode == "parallel" else 0.0

    def target(
        self, group: ShapeGroup, decision: SchedulingDecision, now: float, takers: dict[str, bool]
    ) -> tuple[str, Ahead] | None:
        """Where the group's head may be sent although ``decision`` has no place for it, and how; None if nowhere.

        ``takers`` is empty for the first of a group, and the same for all that are sent with it: sending ahead does not
        change who would take them.
        """
        key, task_id = group.head()
        record = self._core.records[task_id]
        per_place = self._per_place(record)
        if not per_place or record.task.kind != "task" or record.load_bytes > LIGHT_BYTES:
            return None
        room = {row.cluster: self._room(row, record, per_place, now, takers) for row in decision.candidates}
        rows = [row for row in decision.candidates if room[row.cluster] > 0]
        for row in sorted(rows, key=lambda row: -room[row.cluster]):
            state = self._core.registry.state(row.cluster)
            if not any(waiting_for_a_place(other, record.task, state) for other in self._before(key, group)):
                return row.cluster, "overlap" if any(one.code == NO_CAPACITY for one in row.rejections) else "queue"
        return None

    def _before(self, key: OrderKey, group: ShapeGroup) -> Iterator[ShapeGroup]:
        """Whose turn comes earlier."""
        return (other for other in self._core.queue.groups() if other is not group and other.head()[0] < key)

    def is_short(self, record: TaskRecord) -> bool:
        """Will its place soon be free again?"""
        return self._per_place(record) > 0

    def is_low(self, record: TaskRecord, cluster: str) -> bool:
        """Is less than half of what may be there still there, behind work like this one?"""
        state = self._core.registry.find(cluster)
        if state is None:
            return False
        of = shape_of(record.task.requirements)
        most = state.places.short_places(of) * self._per_place(record)
        return state.places.waiting(of) * 2 < most

    def watch(self, state: ClusterState) -> None:
        """Look after those that wait there when the first of them has waited too long."""
        key = timers.ahead_key(state.name)
        if key in self._core.out.timer_keys:
            return
        waiting = (
            record.task.id for record in self._waiting(state) if record.ending is None and record.started_at is None
        )
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
            if since + PATIENCE_S <= now and record.started_at is None:  # Ray may have begun before its turn
                self._core.run_times.forget(record.task.function_digest)
                self._recall(record, f"waited longer than {PATIENCE_S:g} s for a place on {cluster}", now)
        self.watch(state)

    def make_way(self, group: ShapeGroup, now: float) -> None:
        """These wait: take back whoever is less urgent and would get a place that they could have."""
        priority = -group.head()[0][0]
        for state in self._core.registry:
            for record in self._waiting(state) if state.places.ahead else ():
                if record.task.priority < priority and waiting_for_a_place(group, record.task, state):
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

    def _room(
        self, row: CandidateReport, record: TaskRecord, per_place: int, now: float, takers: dict[str, bool]
    ) -> int:
        """How many more may be sent there; only where nothing but a lack of room keeps it away."""
        if not lacks_room_only(row):
            return 0
        state = self._core.registry.find(row.cluster)
        if state is None or state.link != "up" or state.cordoned:
            return 0
        of = shape_of(record.task.requirements)
        most = state.places.short_places(of) * per_place
        others = state.metadata.max_in_flight - len(state.places.held) - len(state.places.ahead)
        room = min(most - state.places.waiting(of), others)
        if room <= 0:
            return 0
        if row.cluster not in takers:
            takers[row.cluster] = self._would_be_taken(row, record, state, now)
        return room if takers[row.cluster] else 0

    def _would_be_taken(self, row: CandidateReport, record: TaskRecord, state: ClusterState, now: float) -> bool:
        """Would it pass the threshold if one of our places were free?"""
        if all(one.code != ABOVE_THRESHOLD for one in row.rejections):
            return True
        view = self._core.view(state, now)
        nodes = [with_one_place_less(node, record.task.requirements) for node in view.nodes]
        relieved = next((index for index, node in enumerate(nodes) if node is not None), None)
        if relieved is None:
            return False
        changed = (*view.nodes[:relieved], nodes[relieved] or view.nodes[relieved], *view.nodes[relieved + 1 :])
        return self._controller.pressure(record.task, replace(view, nodes=changed)) is None

    def _waiting(self, state: ClusterState) -> Iterator[TaskRecord]:
        return iter([self._core.records[task_id] for task_id in state.places.ahead])

    def _recall(self, record: TaskRecord, sentence: str, now: float) -> None:
        if record.ending is not None or record.cluster is None or record.started_at is not None:
            return
        record.ending = Ending("take_back", f"was taken back from {record.cluster}: {sentence}", force=False)
        self._core.transition(record, record.state, codes.TAKEN_BACK, record.ending.sentence, now)
        self._core.out.put(RecallAttempt(record.task.id, record.attempt, record.cluster))


def lacks_room_only(row: CandidateReport) -> bool:
    """Does nothing but a lack of room keep an item away from this cluster?"""
    return bool(row.rejections) and all(one.code in _FULL for one in row.rejections)


def waiting_for_a_place(group: ShapeGroup, holder: TaskDescription, state: ClusterState) -> bool:
    """Would these go to that cluster if a place like the one of ``holder`` were free there?

    More urgent ones wait for any room there: who needs several places must see them get free.
    """
    if group.decision is None:
        return True  # nobody has looked at them yet
    row = next((row for row in group.decision.candidates if row.cluster == state.name), None)
    if row is None or not lacks_room_only(row):
        return False
    if -group.head()[0][0] > holder.priority:
        return True
    need = dict(group.shape.placement)
    return any(
        node.free is not None and fits(need, plus(node.free, holder.requirements)) for node in state.ledger.nodes()
    )


def with_one_place_less(node: NodeView, amounts: Resources) -> NodeView | None:
    """The node as it would be without one of our places; None if we have none there."""
    if node.free is None or not fits(amounts, node.ours):
        return None
    return replace(node, ours=minus(node.ours, amounts), free=plus(node.free, amounts))
