"""Admission: items come in, are asked to end, or wait too long."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskDescription, TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import codes
from ray_multicluster_scheduler.scheduler.lifecycle.core import Core
from ray_multicluster_scheduler.scheduler.lifecycle.events import (
    ArgumentsFailed,
    ArgumentsReady,
    CancelRequested,
    Submitted,
)
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import CancelAttempt
from ray_multicluster_scheduler.scheduler.lifecycle.record import Ending, TaskRecord
from ray_multicluster_scheduler.scheduler.lifecycle.scheduling_pass import SchedulingPass


class Admission:
    """The one way in, and the ways out that need no attempt to end first."""

    def __init__(self, core: Core, scheduling: SchedulingPass) -> None:
        self._core = core
        self._scheduling = scheduling
        self._submissions = 0
        self._id_for_key: dict[tuple[str, str], str] = {}
        self._incomplete: set[str] = set()

    def id_for_key(self, owner: str, key: str) -> str | None:
        """The first id that was submitted with this idempotency key."""
        return self._id_for_key.get((owner, key))

    def submitted(self, event: Submitted, now: float) -> None:
        task = event.task
        if task.id in self._core.records or self._is_repeated(task):
            return
        self._submissions += 1
        record = self._core.records[task.id] = TaskRecord(task, self._submissions)
        record.load_bytes = task.arguments_bytes + event.bytes_beside
        if task.idempotency_key is not None:
            self._id_for_key[task.owner, task.idempotency_key] = task.id
        self._core.unfinished += 1
        code, sentence = codes.SUBMITTED, f"{task.kind} {task.name} was submitted"
        if event.waits_for:
            code, sentence = codes.WAITS_FOR_ARGUMENTS, event.waits_for
        self._core.transition(record, TaskState.PENDING, code, sentence, now)
        if self._refused_for_names(record, now) or self._refused_for_room(record, now):
            return
        if event.waits_for:
            self._incomplete.add(task.id)
        else:
            self._scheduling.enqueue(record, codes.QUEUED, "waits to be placed", now)

    def arguments_ready(self, event: ArgumentsReady, now: float) -> None:
        """What it waited for is there; late news of an item that is over changes nothing."""
        if event.task_id not in self._incomplete:
            return
        self._incomplete.discard(event.task_id)
        record = self._core.records[event.task_id]
        record.load_bytes += event.bytes_beside
        if event.pinned is not None:
            if self._refused_for_pin(record, event.pinned, now):
                return
            record.pin(event.pinned)
            if self._refused_for_names(record, now):
                return
        self._scheduling.enqueue(record, codes.QUEUED, "waits to be placed", now)

    def arguments_failed(self, event: ArgumentsFailed, now: float) -> None:
        if event.task_id not in self._incomplete:
            return
        self._incomplete.discard(event.task_id)
        record = self._core.records[event.task_id]
        message = f"{record.task.kind} {event.task_id} did not run: {event.sentence}"
        self._core.complete(record, TaskState.FAILED, codes.ARGUMENT_FAILED, now, message, error=event.error)

    def unknown_name(self, task: TaskDescription) -> str | None:
        """A cluster that the item names and that nobody has."""
        wanted = (task.preferred_cluster, *(task.allow_clusters or ()), *task.deny_clusters)
        return next((name for name in wanted if name is not None and self._core.registry.find(name) is None), None)

    def cancel_requested(self, event: CancelRequested, now: float) -> None:
        record = self._core.records.get(event.task_id)
        if record is None or record.state.terminal:
            return
        if record.live:
            self._cancel_attempt(record, event, now)
        else:
            self._incomplete.discard(event.task_id)
            message = f"{record.task.kind} {record.task.id} was cancelled while it waited: {event.reason}"
            self._core.complete(record, TaskState.CANCELLED, codes.CANCELLED, now, message, error="TaskCancelledError")

    def queue_timeout(self, task_id: str, now: float) -> None:
        record = self._core.records[task_id]
        self._core.complete(
            record,
            TaskState.FAILED,
            codes.QUEUE_TIMEOUT,
            now,
            f"{record.task.kind} {task_id} waited longer than its queue_timeout of {record.task.queue_timeout:g} s. "
            f"Last reason ({record.code}): {record.sentence}",
            error="TaskTimeoutError",
            next_step="give it a longer queue_timeout, or free what it waits for",
        )

    def forget(self, task: TaskDescription) -> None:
        """Its record is dropped: its idempotency key is free again."""
        key = (task.owner, task.idempotency_key or "")
        if self._id_for_key.get(key) == task.id:
            del self._id_for_key[key]

    def _is_repeated(self, task: TaskDescription) -> bool:
        return task.idempotency_key is not None and (task.owner, task.idempotency_key) in self._id_for_key

    def _refused_for_names(self, record: TaskRecord, now: float) -> bool:
        name = self.unknown_name(record.wanted)
        if name is None:
            return False
        registry = self._core.registry
        message = f"{record.task.kind} {record.task.id} names a cluster that is not there. {registry.unknown(name)}"
        self._core.complete(
            record,
            TaskState.FAILED,
            codes.UNKNOWN_CLUSTER,
            now,
            message,
            error="ConfigurationError",
            next_step=registry.name_hint(name),
        )
        return True

    def _refused_for_pin(self, record: TaskRecord, cluster: str, now: float) -> bool:
        task = record.task
        if task.fallback != "wait" or task.preferred_cluster in (None, cluster):
            return False
        self._core.complete(
            record,
            TaskState.FAILED,
            codes.ARGUMENT_FAILED,
            now,
            f"{task.kind} {task.id} may run on {task.preferred_cluster} only, but was given an actor on {cluster}.",
            error="TaskSubmissionError",
            next_step=f'submit it with preferred_cluster="{cluster}", or make the actor on {task.preferred_cluster}',
        )
        return True

    def _refused_for_room(self, record: TaskRecord, now: float) -> bool:
        waiting, limit = len(self._core.queue) + len(self._incomplete), self._core.settings.max_queue
        if waiting < limit:
            return False
        self._core.complete(
            record,
            TaskState.FAILED,
            codes.QUEUE_FULL,
            now,
            f"{record.task.kind} {record.task.id} was refused: {waiting} items wait already and max_queue is {limit}.",
            error="QueueFullError",
            next_step="submit it again later, or raise max_queue",
        )
        return True

    def _cancel_attempt(self, record: TaskRecord, event: CancelRequested, now: float) -> None:
        before = record.ending
        asked_for = before is not None and before.kind not in ("recall", "take_back")
        if before is not None and asked_for and (before.force or not event.force):
            return
        if before is None or not asked_for:
            record.ending = Ending("cancel", event.reason, event.force)
            sentence = f"its end was asked for: {event.reason}"
            self._core.transition(record, record.state, codes.CANCEL_REQUESTED, sentence, now)
        else:
            record.ending = Ending(before.kind, before.sentence, force=True)
        assert record.cluster is not None
        self._core.out.put(CancelAttempt(record.task.id, record.attempt, record.cluster, event.force))
