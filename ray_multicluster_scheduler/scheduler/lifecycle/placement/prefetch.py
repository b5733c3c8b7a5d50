"""Prefetch: sends short tasks to a cluster before a slot is free there, so that no slot idles for a network round trip.

Only tasks whose function is known to be short are prefetched, as many as keep our slots there busy for about
``prefetch_ms``. A prefetched task waits in the gateway, starts when a slot of its class is freed, and can be recalled.
It reserves no capacity, but counts fully in its owner's share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ray_multicluster_scheduler.common.exception import PolicyEvaluationError
from ray_multicluster_scheduler.common.model import Resources, SchedulingDecision
from ray_multicluster_scheduler.common.model.resources import ResourceShape, fits, minus, plus, shape_of
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView, NodeView
from ray_multicluster_scheduler.scheduler.cluster.fit import find_placement
from ray_multicluster_scheduler.scheduler.lifecycle import codes, timers
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import RecallAttempt
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import MachineState
from ray_multicluster_scheduler.scheduler.lifecycle.placement.free_slots import FreeSlots
from ray_multicluster_scheduler.scheduler.lifecycle.record import Ending, TaskRecord
from ray_multicluster_scheduler.scheduler.policy.verdict import lacks_capacity_only
from ray_multicluster_scheduler.scheduler.queue.shape_group import ShapeGroup

MAX_PER_SLOT = 50
"""Upper limit however short the tasks are: more would not be faster, and would be recalled when plans change."""

START_TIMEOUT_S = 1.0
"""A prefetched attempt that has not started after this time is recalled."""

LIGHT_BYTES = 64 * 1024
"""Tasks with a larger payload are not prefetched: they would delay attempts that have a slot."""

SLACK = 64
"""Stale shapes that may be kept, in addition to as many as there are current ones."""

MAX_SENT = 200
"""Limit per call; the rest continues with Continued, so that other events are handled in between."""


class Prefetch:
    """Decides which tasks are prefetched to which cluster, and which are recalled.

    A task is prefetched only if it would get the next slot that is freed anyway.
    """

    def __init__(self, machine: MachineState) -> None:
        self._machine = machine
        settings = machine.settings
        spaced = settings.submission_interval_s > 0 and "task" in settings.submission_interval_kinds
        one_by_one = spaced or settings.execution_mode == "serial"
        self._cover_s = 0.0 if one_by_one else settings.prefetch_ms / 1000
        self._short_at: dict[ResourceShape, set[str]] = {}
        self._cleanup_at = SLACK
        self._needs_more: set[str] = set()

    # ---- dispatch

    @property
    def has_more(self) -> bool:
        """Is there a cluster left to which more tasks may be sent?"""
        return bool(self._needs_more)

    def slot_assigned(self, record: TaskRecord, cluster: str) -> None:
        """A short task got a slot there: similar tasks may be prefetched behind it."""
        self._short_at.setdefault(shape_of(record.task.requirements), set()).add(cluster)
        if len(self._short_at) > self._cleanup_at:
            self._drop_stale_shapes()

    def item_waits(self, record: TaskRecord, *, behind_others: bool = False) -> None:
        """An item was queued: refill the clusters where similar short tasks have slots. ``behind_others``: similar
        items wait before it, so a refill is due only at half the level."""
        if self._short_at:
            enough = 2 if behind_others else 1
            for cluster in self._short_at.get(shape_of(record.task.requirements), ()):
                self._check_level(record, cluster, enough)

    def attempt_ended(self, record: TaskRecord, cluster: str) -> None:
        """An attempt ended there: refill the cluster if it is below half its level."""
        if self._machine.queue:
            self._check_level(record, cluster, 2)

    def _check_level(self, record: TaskRecord, cluster: str, enough: int) -> None:
        """Refill if less than all (``enough`` 1) or half (2) of the possible number is prefetched."""
        state = self._machine.registry.find(cluster)
        if state is not None:
            of = shape_of(record.task.requirements)
            if state.slots.prefetched_count(of) * enough < state.slots.short_slots(of) * self._per_slot(record):
                self._needs_more.add(cluster)

    def dispatch_more(self, now: float) -> None:
        """Prefetch what may be sent, a bounded number per call."""
        left = MAX_SENT
        while self._needs_more and left > 0 and self._machine.queue:
            states = [
                state for state in map(self._machine.registry.find, sorted(self._needs_more)) if state is not None
            ]
            self._needs_more = {state.name for state in states}
            if not states:
                break
            state = max(states, key=_free_prefetch_slots)
            others = [_free_prefetch_slots(other) for other in states if other is not state]
            share = max(1, _free_prefetch_slots(state) - max(others)) if others else left
            sent = sum(self._fill(state, of, min(share, left), now) for of in state.slots.short_slot_shapes())
            if not sent:
                self._needs_more.discard(state.name)
            left -= sent
        if not self._machine.queue:
            self._needs_more.clear()

    def _drop_stale_shapes(self) -> None:
        """Forget clusters without short tasks of a shape. Runs rarely: most short tasks are followed by others."""
        for of, clusters in list(self._short_at.items()):
            states = [state for state in map(self._machine.registry.find, clusters) if state is not None]
            left = {one.name for one in states if one.slots.short_slots(of) or one.slots.prefetched_count(of)}
            if left:
                self._short_at[of] = left
            else:
                del self._short_at[of]
        self._cleanup_at = 2 * len(self._short_at) + SLACK

    def is_short(self, record: TaskRecord) -> bool:
        """Is the item expected to free its slot soon?"""
        return self._per_slot(record) > 0

    def _fill(self, state: ClusterState, of: ResourceShape, most: int, now: float) -> int:
        """Send the tasks that would get the next free slots of this class; returns the number sent."""
        view = self._machine.fleet.view(state.name, now)
        relieved = with_one_slot_freed(view, dict(of))
        if relieved is None or state.link != "up" or state.wide_reservation is not None:
            return 0
        sent = 0
        passed: list[ShapeGroup] = []
        free_slots = FreeSlots(self._machine.engine, [relieved])
        decisions: dict[ShapeGroup, SchedulingDecision] = {}
        outranked: dict[float, bool] = {}
        lacking: dict[ShapeGroup, bool] = {}
        while sent < most:
            group = self._machine.queue.first(free_slots.amounts, now)
            if group is None:
                break
            record = self._machine.records[group.head().task_id]
            if group not in lacking:  # the head decides for its group
                lacking[group] = self._lacks_one_slot(record, view, relieved)
            if not lacking[group] or self._machine.pools.refusal(record.wanted, state.name) is not None:
                self._machine.queue.park(group)
                passed.append(group)
            elif self._may_go(record, state, of) and not self._is_outranked(group.priority, state, outranked):
                self._send(record, self._decision(group, record, state, decisions, now), view, now)
                sent += 1
            else:
                break  # another item gets the next slot, or enough is prefetched
        for group in passed:
            self._machine.queue.unpark(group)
        return sent

    def _lacks_one_slot(self, record: TaskRecord, view: ClusterView, relieved: ClusterView) -> bool:
        """Is one slot all that it lacks there? False also for an item that could start now."""
        reject = self._machine.engine.first_rejection
        try:
            if reject(record.wanted, relieved, retry=record.retry) is not None:
                return False
            return reject(record.wanted, view, retry=record.retry) is not None
        except PolicyEvaluationError:
            return False  # the scheduling pass ends it with that error

    def _is_outranked(self, priority: float, state: ClusterState, known: dict[float, bool]) -> bool:
        if priority not in known:
            known[priority] = self._more_urgent_waits(priority, state)
        return known[priority]

    def _may_go(self, record: TaskRecord, state: ClusterState, of: ResourceShape) -> bool:
        task, places = record.task, state.slots
        if task.kind != "task" or record.load_bytes > LIGHT_BYTES or shape_of(task.requirements) != of:
            return False
        if places.prefetched_count(of) >= places.short_slots(of) * self._per_slot(record):
            return False
        return not state.at_in_flight_limit

    def _more_urgent_waits(self, priority: float, state: ClusterState) -> bool:
        """Does an item of higher priority wait for capacity there? One that needs several slots must see them become
        free."""
        above = (group for group in self._machine.queue.groups() if group.priority > priority)
        return any(self._waits_for_capacity(group, state) for group in above)

    def _decision(
        self,
        group: ShapeGroup,
        record: TaskRecord,
        state: ClusterState,
        known: dict[ShapeGroup, SchedulingDecision],
        now: float,
    ) -> SchedulingDecision:
        """One decision for a whole group: record.decision inserts the id of each item."""
        if group not in known:
            sentence = f"{state.name}: prefetched: a short task, and a slot there is expected to be free soon"
            table = self._machine.engine.table(record.wanted, self._machine.fleet.views(now), retry=record.retry)
            known[group] = SchedulingDecision(record.task.id, now, state.name, codes.SENT_AHEAD, sentence, table)
        return known[group]

    def _send(self, record: TaskRecord, decision: SchedulingDecision, view: ClusterView, now: float) -> None:
        state = self._machine.registry.state(view.name)
        self._machine.leave_queue(record)
        state.slots.add_prefetched(record.wanted, now)
        self.start_timer(state)
        overlap = find_placement(record.task, view.nodes) is None
        self._machine.dispatch(record, decision, state.name, now, "overlap" if overlap else "queue", short=True)

    def _per_slot(self, record: TaskRecord) -> int:
        if not self._cover_s:
            return 0
        expected = self._machine.run_times.expected_s(record.task.function_digest)
        return 0 if expected is None else min(int(self._cover_s / expected), MAX_PER_SLOT)

    # ---- recall

    def start_timer(self, state: ClusterState) -> None:
        """Set the timer for the prefetched attempt that has waited longest."""
        key = timers.ahead_key(state.name)
        if key in self._machine.output.timers:
            return
        waiting = (
            record.task.id
            for record in self._prefetched_records(state)
            if record.ending is None and record.started_at is None
        )
        oldest = next(waiting, None)
        if oldest is not None:
            self._machine.output.set_timer(key, state.slots.prefetched[oldest].since + START_TIMEOUT_S)

    def recall_overdue(self, cluster: str, now: float) -> None:
        """Recall what has waited too long; its function no longer counts as short."""
        state = self._machine.registry.state(cluster)
        for record in self._prefetched_records(state):
            since = state.slots.prefetched[record.task.id].since
            if since + START_TIMEOUT_S <= now and record.started_at is None:  # Ray may have begun before its turn
                self._machine.run_times.forget(record.task.function_digest)
                self.recall(record, f"waited longer than {START_TIMEOUT_S:g} s for a place on {cluster}", now)
        self.start_timer(state)

    def yield_to(self, group: ShapeGroup, now: float) -> None:
        """Recall less urgent prefetched attempts that would take slots this waiting group could use."""
        for state in self._machine.registry if self._short_at else ():
            if not state.slots.prefetched or not state.slots.has_prefetched_below(group.priority):
                continue
            if self._waits_for_capacity(group, state):
                for record in self._prefetched_records(state):
                    if record.wanted.priority < group.priority:
                        self.recall(record, "a more urgent item waits", now)

    def recall_cluster(self, state: ClusterState, sentence: str, now: float) -> None:
        """Recall all attempts that were prefetched to a cluster."""
        for record in self._prefetched_records(state):
            self.recall(record, sentence, now)

    def recall_owner(self, owner: str, sentence: str, now: float) -> None:
        """Recall all prefetched attempts of this owner."""
        for state in self._machine.registry:
            for record in self._prefetched_records(state):
                if record.task.owner == owner:
                    self.recall(record, sentence, now)

    def records_of_pool(self, pool: str) -> list[TaskRecord]:
        """All prefetched attempts of a pool."""
        records = (record for state in self._machine.registry for record in self._prefetched_records(state))
        return [record for record in records if record.wanted.pool == pool]

    def _waits_for_capacity(self, group: ShapeGroup, state: ClusterState) -> bool:
        """Would this group go to that cluster if it had capacity? Also true if the group was not considered yet, but
        not while its owner or its pool may start nothing."""
        if self._machine.refusal(group) is not None:
            return False
        decision = group.decision
        return decision is None or any(
            row.cluster == state.name and lacks_capacity_only(row) for row in decision.candidates
        )

    def _prefetched_records(self, state: ClusterState) -> Iterator[TaskRecord]:
        return iter([self._machine.records[task_id] for task_id in state.slots.prefetched])

    def recall(self, record: TaskRecord, sentence: str, now: float) -> None:
        """Ask for an attempt back that has not started; it then waits in the queue again."""
        if record.ending is not None or record.cluster is None or record.started_at is not None:
            return
        record.ending = Ending("take_back", f"was recalled from {record.cluster}: {sentence}", force=False)
        self._machine.transition(record, record.state, codes.TAKEN_BACK, record.ending.sentence, now)
        self._machine.output.add(RecallAttempt(record.task.id, record.attempt, record.cluster))


def _free_prefetch_slots(state: ClusterState) -> int:
    """The number of attempts of the shortest tasks that can still be prefetched there."""
    places = state.slots
    return sum(places.short_slots(of) * MAX_PER_SLOT - places.prefetched_count(of) for of in places.short_slot_shapes())


def with_one_slot_freed(view: ClusterView, amounts: Resources) -> ClusterView | None:
    """The cluster as it will be when one of our slots of this size is freed; None if we have none there."""
    for at, node in enumerate(view.nodes):
        relieved = without_slot(node, amounts)
        if relieved is not None:
            changed = (*view.nodes[:at], relieved, *view.nodes[at + 1 :])
            return replace(view, nodes=changed, in_flight=max(0, view.in_flight - 1), prefetched=0, cache={})
    return None


def without_slot(node: NodeView, amounts: Resources) -> NodeView | None:
    """The node without one of our slots; None if we have none there."""
    if node.free is None or not fits(amounts, node.reserved):
        return None
    return replace(node, reserved=minus(node.reserved, amounts), free=plus(node.free, amounts))
