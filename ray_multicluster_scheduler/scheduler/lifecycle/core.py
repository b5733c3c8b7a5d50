"""Core: what the parts of the machine share, and the few steps by which all of them change it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ray_multicluster_scheduler.common.model import ClusterMetadata, SchedulingDecision, TaskState
from ray_multicluster_scheduler.common.model.resources import ResourceShape
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_registry import ClusterRegistry
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.lifecycle import codes, timers
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    Complete,
    Persist,
    Publish,
    StartAttempt,
)
from ray_multicluster_scheduler.scheduler.lifecycle.outbox import Outbox
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.lifecycle.run_times import RunTimes
from ray_multicluster_scheduler.scheduler.lifecycle.start_watch import StartWatch
from ray_multicluster_scheduler.scheduler.policy.cluster_submission_history import ClusterSubmissionHistory
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from ray_multicluster_scheduler.scheduler.queue.task_queue import ShapeGroup, TaskQueue


class Core:
    """State of the whole machine. Soft state only: everything that matters after a restart was persisted."""

    def __init__(
        self, settings: Settings, clusters: Iterable[ClusterMetadata], engine: PolicyEngine, first_fence: int
    ) -> None:
        self.settings = settings
        self.registry = ClusterRegistry(settings, clusters)
        self.engine = engine
        self.queue = TaskQueue()
        self.submissions = ClusterSubmissionHistory(settings)
        self.out = Outbox()
        self.records: dict[str, TaskRecord] = {}
        self.unfinished = 0
        self.next_fence = first_fence
        self.touched: set[str] = set()
        self.run_times = RunTimes()
        self.starts = StartWatch(self.records, self.out, settings.start_grace_s)

    def transition(
        self,
        record: TaskRecord,
        state: TaskState,
        code: str,
        sentence: str,
        now: float,
        decision: SchedulingDecision | None = None,
    ) -> None:
        """The only way to another state: by the table, with a reason, persisted and published."""
        step = record.step(state, code, sentence, now)
        self.out.put(Persist(step, decision))
        self.out.put(Publish(step))

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
        """The item is over: whatever it held or waited for is given back, and its owner is told once."""
        self.leave_queue(record)
        self.end_attempt(record, now)
        self.out.clear_timer(timers.retry_key(record.task.id))
        record.finished_at = now
        self.transition(record, state, code, message, now)
        self.unfinished -= 1
        if not self.unfinished:
            self.starts.clear()
        self.out.put(Complete(record.task.id, state, record.attempt, record.cluster, error, message, next_step))

    def enqueue(self, record: TaskRecord, code: str, sentence: str, now: float) -> ShapeGroup:
        """Put it into the queue; each wait has its own ``queue_timeout``. Returns those it waits with."""
        record.cluster = None
        group = self.queue.enqueue(record.wanted, record.number, retry=record.retry)
        if group.decision is not None and code == codes.QUEUED:
            code, sentence = group.decision.code, group.decision.sentence  # what they all wait for is known
        self.transition(record, TaskState.QUEUED, code, sentence, now)
        record.queued_at, record.group = now, group
        if record.task.queue_timeout is not None:
            self.out.set_timer(timers.queue_key(record.task.id), now + record.task.queue_timeout)
        return group

    def leave_queue(self, record: TaskRecord) -> None:
        """It waits no longer; nothing happens if it did not."""
        if self.queue.remove(record.task.id):
            self.out.clear_timer(timers.queue_key(record.task.id))
        record.group = None

    def end_attempt(self, record: TaskRecord, now: float) -> bool:
        """Nothing of its attempt runs any more: give back its place and its timers. False if no room was freed."""
        if record.task.actor is not None:
            self.out.clear_timer(timers.start_key(record.task.id, record.attempt))
        if record.task.run_timeout is not None:
            self.out.clear_timer(timers.run_key(record.task.id, record.attempt))
        state = self.registry.find(record.cluster)
        if state is None:
            return False
        state.places.leave_ahead(record.task.id)
        place = state.places.held.get(record.task.id)
        if place is None:
            return False
        heir = next(self._heirs(state, place.of), None) if place.kind == "task" else None
        if heir is not None:
            state.hand_over(record.task.id, heir.task, now)
            self.out.put(StartAttempt(heir.task.id, heir.attempt, state.name))
            return False
        state.give_back(record.task.id, now)
        self.touched.add(state.name)
        if not state.places.held and not state.places.ahead:
            self.out.clear_timer(timers.lost_key(state.name))
        return True

    def _heirs(self, state: ClusterState, of: ResourceShape) -> Iterator[TaskRecord]:
        """Who was sent ahead for such a place and came too late to get it over there; nobody who is asked back."""
        waiting = (self.records[task_id] for task_id in state.places.oldest_ahead(of))
        return (record for record in waiting if record.ending is None)

    def view(self, state: ClusterState, now: float) -> ClusterView:
        return state.view(now, self.submissions.next_at(state.name))

    def views(self, now: float) -> dict[str, ClusterView]:
        """The fleet as it is now, by name."""
        return {state.name: self.view(state, now) for state in self.registry}
