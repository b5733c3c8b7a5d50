"""MachineState: the state that all parts of the machine share, and the operations by which they change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ray_multicluster_scheduler.common.model import ClusterMetadata, SchedulingDecision, TaskState
from ray_multicluster_scheduler.common.model.resources import ResourceShape
from ray_multicluster_scheduler.control_plane.config.settings import NO_LIMITS, OwnerLimits, Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_manager import ClusterManager
from ray_multicluster_scheduler.scheduler.cluster.cluster_registry import ClusterRegistry
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.cluster.fleet_views import FleetViews
from ray_multicluster_scheduler.scheduler.lifecycle import codes, timers
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    Ahead,
    Complete,
    Dispatch,
    InstructionBuffer,
    Remember,
    RememberFleet,
    StartAttempt,
)
from ray_multicluster_scheduler.scheduler.lifecycle.placement.run_times import CompletionRate, RunTimes, code_key
from ray_multicluster_scheduler.scheduler.lifecycle.pool_quota import PoolQuota
from ray_multicluster_scheduler.scheduler.lifecycle.prerequisites import DependencyOutcome, Prerequisites
from ray_multicluster_scheduler.scheduler.lifecycle.record import FreedRoom, TaskRecord
from ray_multicluster_scheduler.scheduler.lifecycle.timers import StartTimeouts
from ray_multicluster_scheduler.scheduler.policy.cluster_submission_history import ClusterSubmissionHistory
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from ray_multicluster_scheduler.scheduler.queue.order import ORDERS
from ray_multicluster_scheduler.scheduler.queue.owner_account import OwnerAccount, holding_of
from ray_multicluster_scheduler.scheduler.queue.shape_group import ShapeGroup
from ray_multicluster_scheduler.scheduler.queue.task_queue import TaskQueue

_FRONT = 10**12
"""More than the number of any item."""


class MachineState:
    """State of the whole machine. It is soft state: what a restart needs was persisted."""

    def __init__(
        self,
        settings: Settings,
        clusters: Iterable[ClusterMetadata],
        engine: PolicyEngine,
        first_fence: int,
        pools: Iterable[Pool],
    ) -> None:
        self.settings = settings
        self.registry = ClusterRegistry(settings, clusters)
        self.clusters = ClusterManager(self.registry)
        self.engine = engine
        self.queue = TaskQueue(ORDERS[settings.order](settings.ageing_s), self._new_account)
        self.owner_limits: dict[str, OwnerLimits] = {}
        """Limits set at run time; all other owners have those of the settings."""
        self.pools = PoolQuota(engine.quota, pools)
        self.held_items: set[str] = set()
        self.freed_clusters: set[str] = set()
        """Clusters with more capacity than at the last scan of the queue."""
        self.new_groups: dict[ShapeGroup, None] = {}
        """Groups with a head that was not considered yet."""
        self.wide_reservations: dict[str, str] = {}
        """The cluster with reserved capacity, by the id of the wide item."""
        self.rooms: dict[str, FreedRoom] = {}
        """Room that is freed by preemption, by the id of the item that waits for it."""
        self.has_left: set[str] = set()
        """Items whose attempt ended while there were such rooms."""
        self.preemptible: dict[str, float] = {}
        """The priorities of the running items that may be preempted."""
        self.preemptible_priorities: Counter[float] = Counter()
        """How many of them have each priority."""
        self.fleet = FleetViews(self.registry, self.view)
        self.submissions = ClusterSubmissionHistory(settings)
        self.output = InstructionBuffer()
        self.records: dict[str, TaskRecord] = {}
        self.unfinished = 0
        self.next_fence = first_fence
        self.clusters_to_refresh: set[str] = set()
        self.prerequisites = Prerequisites()
        self.run_times = RunTimes()
        self.completion_rate = CompletionRate()
        self.start_timeouts = StartTimeouts(self.records, self.output, settings.start_grace_s)

    def transition(
        self,
        record: TaskRecord,
        state: TaskState,
        code: str,
        sentence: str,
        now: float,
        decision: SchedulingDecision | None = None,
    ) -> None:
        """Move an item to a state: checked against the state table, with a reason, persisted and published."""
        self.output.add_transition(record.step(state, code, sentence, now), decision)

    def complete(
        self,
        record: TaskRecord,
        state: TaskState,
        code: str,
        now: float,
        message: str,
        *,
        error: str | None = None,
        next_step: str = "",
    ) -> None:
        """End an item that has no live attempt: remove it from the queue and from all waits, and publish its completion
        once."""
        assert record.holding is None, f"{record.task.id} still holds a share"
        if record.group is not None or self.held_items:
            self.leave_queue(record)
        self.output.clear_timer(timers.retry_key(record.task.id))
        if record.task.start_after is not None:
            self.output.clear_timer(timers.begin_key(record.task.id))
        self.prerequisites.item_ended(DependencyOutcome(record.task.id, state, message))
        record.finished_at = now
        if state is TaskState.SUCCEEDED and record.started_at is not None:
            self.run_times.item_ended(record.task, now - record.started_at)
        self.transition(record, state, code, message, now)
        if self.pools.item_ended(record):
            self.change_pool(record.wanted.pool or "", None)
        self.unfinished -= 1
        if not self.unfinished:
            self.start_timeouts.clear()
        self.output.add(Complete(record.task.id, state, record.attempt, record.cluster, error, message, next_step))

    def fail(
        self, record: TaskRecord, code: str, now: float, error: str | None, message: str, next_step: str = ""
    ) -> None:
        """End an item as FAILED; ``error`` as in Complete."""
        self.complete(record, TaskState.FAILED, code, now, message, error=error, next_step=next_step)

    def enqueue(self, record: TaskRecord, code: str, sentence: str, now: float) -> ShapeGroup:
        """Put an item into the queue; each wait has its own ``queue_timeout``. Returns its group."""
        record.cluster = None
        group = self.queue.enqueue(record.wanted, _position(record), retry=record.retry)
        if group.decision is not None and code == codes.QUEUED:
            code, sentence = group.decision.code, group.decision.sentence  # what they all wait for is known
        self.transition(record, TaskState.QUEUED, code, sentence, now)
        record.queued_at, record.group = now, group
        if record.task.queue_timeout is not None:
            self.output.set_timer(timers.queue_key(record.task.id), now + record.task.queue_timeout)
        return group

    def restore_to_queue(self, record: TaskRecord, now: float) -> ShapeGroup:
        """Put an item back into the queue after a restart, without a transition. Returns its group."""
        record.group = group = self.queue.enqueue(record.wanted, _position(record), retry=record.retry)
        if record.task.queue_timeout is not None:
            due = (record.queued_at or now) + record.task.queue_timeout
            self.output.set_timer(timers.queue_key(record.task.id), max(now, due))
        return group

    def hold(self, record: TaskRecord, now: float) -> None:
        """Keep an item out of the queue until it is released, for any length of time."""
        record.cluster = None
        self.held_items.add(record.task.id)
        why = f": {record.held}" if record.held else ""
        self.transition(record, TaskState.QUEUED, codes.HELD, f"is held{why}", now)

    def leave_queue(self, record: TaskRecord) -> None:
        """Remove an item from the queue, from the held items and from wide-item reservations. No effect if it is in
        none of them."""
        if record.room is not None:
            self.release_room(record)
        group = record.group if self.wide_reservations and self._is_head(record) else None
        if self.queue.remove(record.task.id):
            self.output.clear_timer(timers.queue_key(record.task.id))
        self.held_items.discard(record.task.id)
        if self.wide_reservations:
            self.release_wide_reservation(record.task.id)
        if group and not self._has_same_run_time(record, self.records[group.head().task_id]):
            self.new_groups[group] = None
        record.group = None

    def _is_head(self, record: TaskRecord) -> bool:
        """Is it the first item of its group, whose placement decides for the group?"""
        return record.group is not None and record.group.head().task_id == record.task.id

    def _has_same_run_time(self, before: TaskRecord, after: TaskRecord) -> bool:
        """May the next item use reserved capacity exactly if the previous one may? So if both run the same code."""
        return code_key(before.task) == code_key(after.task) and after.task.id not in self.wide_reservations

    def refusal(self, group: ShapeGroup) -> tuple[str, str] | None:
        """Why no item of the group may start now, whatever is free: by its owner's limits, or by its pool. Code and
        sentence; None if it may."""
        return self.queue.refusal(group) or self.pools.refusal(self.records[group.head().task_id].wanted)

    def persist_rebooked(self) -> None:
        """Persist the items that were booked on other nodes because of other items."""
        for task_id in sorted(self.registry.rebooked):
            self.output.add(Remember(task_id))
        self.registry.rebooked.clear()

    def release_wide_reservation(self, task_id: str) -> None:
        """Open the capacity that is reserved for this item to all items; no effect if there is none."""
        state = self.registry.find(self.wide_reservations.pop(task_id, None))
        if state is not None:
            state.wide_reservation = None
            self.freed_clusters.add(state.name)

    def current_room(self, record: TaskRecord) -> FreedRoom:
        """The room that is freed for this item, where it is booked now: the ledger may have moved it."""
        room = record.room
        assert room is not None
        state = self.registry.find(room.cluster)
        booked = None if state is None else state.ledger.reservations.get(record.task.id)
        return room if booked is None else replace(room, parts=dict(booked.parts))

    def release_room(self, record: TaskRecord) -> None:
        """The room that was freed for this item is free for all."""
        room, record.room = record.room, None
        assert room is not None
        del self.rooms[record.task.id]
        self.output.clear_timer(timers.room_key(record.task.id))
        self.output.add(Remember(record.task.id))
        self.pools.attempt_ended(record)
        state = self.registry.find(room.cluster)
        if state is not None:
            state.ledger.release(record.task.id, room.since)
            self.freed_clusters.add(state.name)

    def charge_owner(self, record: TaskRecord, now: float) -> None:
        """From now on the item counts in the share of its owner."""
        record.holding = holding_of(record.task, self.fleet.total(now), now)
        self.queue.charge(record.task.owner, record.holding, now)

    def change_pool(self, name: str, pool: Pool | None) -> None:
        """As PoolQuota.change, durably. Every item may be affected."""
        if self.pools.change(name, pool):
            self.output.add(RememberFleet())
            self.registry.changed.update(self.registry.names())  # what views remember of verdicts is outdated
            self.pools.freed.update(self.pools.ledger.pools)
            for record in self.records.values():
                if record.live and record.wanted.pool == name:
                    self.note_preemptible(record)

    def note_preemptible(self, record: TaskRecord) -> None:
        """Note whether an item that has an attempt may be preempted, and its priority."""
        if record.started_at is not None and self.pools.is_preemptible(record.wanted):
            self._set_preemptible(record.task.id, record.wanted.priority)
        elif record.ending is None or record.ending.kind != "preempt":
            self._set_preemptible(record.task.id, None)

    def _set_preemptible(self, task_id: str, priority: float | None) -> None:
        before = self.preemptible.pop(task_id, None)
        if before is not None:
            self.preemptible_priorities -= Counter([before])
        if priority is not None:
            self.preemptible[task_id] = priority
            self.preemptible_priorities[priority] += 1

    def dispatch(
        self,
        record: TaskRecord,
        decision: SchedulingDecision,
        cluster: str,
        now: float,
        ahead: Ahead = "",
        *,
        short: bool,
    ) -> None:
        """Start the next attempt of an item that has left the queue. Attempt numbers and fences only grow."""
        self.engine.record_placement(cluster)
        self.charge_owner(record, now)
        record.attempt += 1
        record.cluster, record.placed = cluster, decision
        self.pools.dispatched(record)
        if record.fence is not None:
            record.earlier_fences += (record.fence,)
        record.fence, self.next_fence = self.next_fence, self.next_fence + 1
        record.accepted, record.ending, record.started_at, record.resumes = False, None, None, False
        self.transition(record, TaskState.DISPATCHING, decision.code, decision.sentence, now, decision)
        self.output.add(
            Dispatch(record.task.id, record.attempt, record.fence, cluster, ahead, short, saved=record.saved)
        )

    def end_attempt(self, record: TaskRecord, now: float) -> bool:
        """Release the slot, the share and the timers of an attempt that has ended. False if no capacity was freed."""
        assert record.holding is not None, f"{record.task.id} has no attempt"
        self.queue.refund(record.task.owner, record.holding, now)
        self.pools.attempt_ended(record)
        if self.preemptible:
            self._set_preemptible(record.task.id, None)
        if self.rooms:
            self.has_left.add(record.task.id)
        self.output.clear_timer(timers.grace_key(record.task.id, record.attempt))
        record.holding = None
        if record.task.runs_actors:
            self.output.clear_timer(timers.start_key(record.task.id, record.attempt))
        if record.task.run_timeout is not None:
            self.output.clear_timer(timers.run_key(record.task.id, record.attempt))
        state = self.registry.find(record.cluster)
        if state is None:
            return False
        if state.at_in_flight_limit:
            self.freed_clusters.add(state.name)
        state.slots.remove_prefetched(record.task.id)
        place = state.slots.held.get(record.task.id)
        if place is None:
            self._clear_timers_if_empty(state)
            return False
        gives_way = record.ending is not None and record.ending.kind == "preempt"  # its room is for the newcomer
        successor = (
            next(self._prefetched_for(state, place.shape), None) if place.kind == "task" and not gives_way else None
        )
        if successor is not None:
            state.hand_over(record.task.id, successor.task, now)
            self.output.add(Remember(successor.task.id))
            self.output.add(StartAttempt(successor.task.id, successor.attempt, state.name))
            return False
        state.release(record.task.id, now)
        self.freed_clusters.add(state.name)
        self._clear_timers_if_empty(state)
        return True

    def _clear_timers_if_empty(self, state: ClusterState) -> None:
        """Clear the timers of a cluster that has no items of ours left."""
        self.clusters_to_refresh.add(state.name)
        if not state.slots.held and not state.slots.prefetched:
            self.output.clear_timer(timers.lost_key(state.name))
            self.output.clear_timer(timers.ahead_key(state.name))

    def _prefetched_for(self, state: ClusterState, of: ResourceShape) -> Iterator[TaskRecord]:
        """Prefetched items that may use such a slot, oldest first, without those that were recalled."""
        waiting = (self.records[task_id] for task_id in state.slots.oldest_prefetched(of))
        return (record for record in waiting if record.ending is None)

    def view(self, state: ClusterState, now: float) -> ClusterView:
        return state.view(now, self.submissions.next_at(state.name))

    def fresh_views(self, now: float) -> tuple[ClusterView, ...]:
        """All clusters with current sentences, for explanations."""
        return tuple(state.fresh_view(now, self.submissions.next_at(state.name)) for state in self.registry)

    def limits_of(self, owner: str) -> OwnerLimits:
        """The current limits of this owner."""
        return self.owner_limits.get(owner) or self.settings.owners.get(owner) or NO_LIMITS

    def _new_account(self, owner: str) -> OwnerAccount:
        limits = self.limits_of(owner)
        return OwnerAccount(limits.weight, limits.max_running, limits.max_gpus)


def _position(record: TaskRecord) -> int:
    """Its number in the order of the queue: an item that resumes goes before all others of its priority."""
    return record.number - _FRONT if record.resumes else record.number
