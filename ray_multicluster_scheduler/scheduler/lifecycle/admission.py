"""Admission: the state machine's part for items that are not placed yet: submission, waiting for prerequisites
(arguments, dependencies, start time), refusal, queue timeout; and cancellation of items in any state."""

from __future__ import annotations

import shlex
from functools import lru_cache

from ray_multicluster_scheduler.common.exception import PolicyEvaluationError
from ray_multicluster_scheduler.common.model import TaskDescription, TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import codes, timers
from ray_multicluster_scheduler.scheduler.lifecycle.events import (
    ArgumentsFailed,
    ArgumentsReady,
    CancelRequested,
    Submitted,
)
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import CancelAttempt, Remember
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import MachineState
from ray_multicluster_scheduler.scheduler.lifecycle.placement.scheduling_pass import SchedulingPass
from ray_multicluster_scheduler.scheduler.lifecycle.prerequisites import DependencyOutcome, UnmetPrerequisites
from ray_multicluster_scheduler.scheduler.lifecycle.record import Ending, TaskRecord

MAX_NOTIFICATIONS = 200
"""Dependents that are notified in one call that an item has ended; the rest continues with Continued."""


class Admission:
    """Accepts items, and ends those that have no live attempt."""

    def __init__(self, machine: MachineState, scheduling: SchedulingPass) -> None:
        self._machine = machine
        self._scheduling = scheduling
        self._submissions = 0
        self._id_for_key: dict[tuple[str, str], str] = {}
        self._id_for_content: dict[str, str] = {}

    def id_for_key(self, owner: str, key: str) -> str | None:
        """The id of the first item that was submitted with this idempotency key."""
        return self._id_for_key.get((owner, key))

    def id_for_content(self, key: str) -> str | None:
        """The unfinished item with this content key, which an equal item joins; None if it is being cancelled."""
        task_id = self._id_for_content.get(key)
        record = None if task_id is None else self._machine.records.get(task_id)
        return task_id if record is not None and not record.state.terminal else None

    def submitted(self, event: Submitted, now: float) -> None:
        task = event.task
        if task.id in self._machine.records or self._is_repeated(task):
            return
        unknown, failed, missing = self._check_prerequisites(task, event.waits_for, task.after, now)
        record = self._accept(event)
        code, sentence = codes.SUBMITTED, _submitted(task.kind, task.name)
        if missing:
            code, sentence = missing.code, missing.sentence
        self._machine.transition(record, TaskState.PENDING, code, sentence, now)
        blocked = unknown is not None or failed is not None or bool(missing)
        if self._refused_for_names(record, now) or self._refused_for_pool(record, now):
            return
        if self._refused_for_queue_limit(record, now, blocked=blocked):
            return
        if unknown is not None:
            self._refuse_for_dependency(record, unknown, now)
        elif failed is not None:
            self._fail_for_dependency(record, failed, now)
        elif missing:
            self._add_prerequisites(record, missing)
        else:
            self._scheduling.enqueue(record, codes.QUEUED, "waits to be placed", now)

    def notify_dependents(self, now: float) -> None:
        """Continue or fail items whose dependencies have ended, a bounded number per call."""
        prerequisites = self._machine.prerequisites
        for _ in range(MAX_NOTIFICATIONS):
            notification = prerequisites.next_notification()
            if notification is None:
                return
            end, task_id = notification
            record = self._machine.records[task_id]
            if end.state is TaskState.SUCCEEDED:
                self._prerequisite_met(record, now)
            else:
                self._fail_for_dependency(record, end, now)
        if prerequisites.has_notifications():
            self._machine.output.request_continue()

    def start_after_reached(self, task_id: str, now: float) -> None:
        """The ``start_after`` time of an item has come."""
        missing = self._machine.prerequisites.of(task_id)
        assert missing is not None  # else its timer would have been cleared
        missing.begins_at = None
        self._prerequisite_met(self._machine.records[task_id], now)

    def arguments_ready(self, event: ArgumentsReady, now: float) -> None:
        """All arguments have values; ignored for an item that has ended."""
        missing = self._machine.prerequisites.of(event.task_id)
        if missing is None or not missing.arguments:
            return
        missing.arguments = ""
        self._machine.output.add(Remember(event.task_id))
        record = self._machine.records[event.task_id]
        record.load_bytes += event.bytes_beside
        if event.pinned is not None:
            if self._refused_for_pin(record, event.pinned, now):
                return
            record.pin(event.pinned)
            if self._refused_for_names(record, now):
                return
        self._prerequisite_met(record, now)

    def arguments_failed(self, event: ArgumentsFailed, now: float) -> None:
        missing = self._machine.prerequisites.of(event.task_id)
        if missing is None or not missing.arguments:
            return
        record = self._machine.records[event.task_id]
        message = f"{record.task.kind} {event.task_id} did not run: {event.sentence}"
        self._machine.fail(record, codes.ARGUMENT_FAILED, now, event.error, message)

    def unknown_name(self, task: TaskDescription) -> str | None:
        """The first cluster that the item names and that is not configured; None if all are known."""
        wanted = (task.preferred_cluster, *(task.allow_clusters or ()), *task.deny_clusters)
        return next((name for name in wanted if name is not None and self._machine.registry.find(name) is None), None)

    def cancel_requested(self, event: CancelRequested, now: float) -> None:
        record = self._machine.records.get(event.task_id)
        if record is None or record.state.terminal:
            return
        self._release_content_key(record.task)
        if record.live:
            self._cancel_attempt(record, event, now)
        else:
            message = f"{record.task.kind} {record.task.id} was cancelled while it waited: {event.reason}"
            self._machine.complete(
                record, TaskState.CANCELLED, codes.CANCELLED, now, message, error="TaskCancelledError"
            )

    def queue_timeout(self, task_id: str, now: float) -> None:
        record = self._machine.records[task_id]
        message = (
            f"{record.task.kind} {task_id} waited longer than its queue_timeout of {record.task.queue_timeout:g} s. "
            f"Last reason ({record.code}): {record.sentence}"
        )
        step = "give it a longer queue_timeout, or free what it waits for"
        self._machine.fail(record, codes.QUEUE_TIMEOUT, now, "TaskTimeoutError", message, step)

    def forget(self, record: TaskRecord) -> None:
        """Drop what is kept for a forgotten item: its idempotency key is free again."""
        task = record.task
        self._release_idempotency_key(task)
        self._release_content_key(task)
        self._machine.prerequisites.forget(task.id, record.state)

    def _release_idempotency_key(self, task: TaskDescription) -> None:
        key = (task.owner, task.idempotency_key or "")
        if self._id_for_key.get(key) == task.id:
            del self._id_for_key[key]

    def _accept(self, event: Submitted) -> TaskRecord:
        record = TaskRecord(event.task, self._submissions + 1)
        record.load_bytes = event.task.arguments_bytes + event.bytes_beside
        record.wanted = self._machine.pools.assigned(record.wanted)
        self.register(record)
        return record

    def set_next_number(self, number: int) -> None:
        """Number the next item at least with this."""
        self._submissions = max(self._submissions, number - 1)

    def register(self, record: TaskRecord) -> None:
        """Add a record to the machine, new or restored."""
        task = record.task
        self._machine.records[task.id] = record
        self._submissions = max(self._submissions, record.number)
        if task.idempotency_key is not None:
            self._id_for_key[task.owner, task.idempotency_key] = task.id
        if not record.state.terminal:
            self._machine.unfinished += 1
            self._machine.pools.accepted(record)
            if task.content_key is not None and (record.ending is None or record.ending.kind != "cancel"):
                self._id_for_content[task.content_key] = task.id

    def restore_pending(self, record: TaskRecord, waits_for: str, after: tuple[str, ...], now: float) -> None:
        """Wait again for what an item still waited for before the restart."""
        unknown, failed, missing = self._check_prerequisites(record.task, waits_for, after, now)
        if missing:
            self._add_prerequisites(record, missing)
        if unknown is not None:
            self._refuse_for_dependency(record, unknown, now)
        elif failed is not None:
            self._fail_for_dependency(record, failed, now)
        elif not missing:
            self._scheduling.enqueue(record, codes.QUEUED, "waits to be placed", now)

    def _add_prerequisites(self, record: TaskRecord, missing: UnmetPrerequisites) -> None:
        self._machine.prerequisites.add(record.task.id, missing)
        if missing.begins_at is not None:
            self._machine.output.set_timer(timers.begin_key(record.task.id), missing.begins_at)

    def _is_repeated(self, task: TaskDescription) -> bool:
        if task.idempotency_key is not None and (task.owner, task.idempotency_key) in self._id_for_key:
            return True
        return task.content_key is not None and self.id_for_content(task.content_key) is not None

    def _release_content_key(self, task: TaskDescription) -> None:
        """The next item with the same content runs by itself."""
        if task.content_key is not None and self._id_for_content.get(task.content_key) == task.id:
            del self._id_for_content[task.content_key]

    def _check_prerequisites(
        self, task: TaskDescription, waits_for: str, after: tuple[str, ...], now: float
    ) -> tuple[str | None, DependencyOutcome | None, UnmetPrerequisites]:
        """Returns an unknown dependency, a failed one, and everything that is still missing."""
        missing = UnmetPrerequisites(waits_for, owner=task.owner)
        if task.start_after is not None and task.start_after > now:
            missing.begins_at = task.start_after
        for other in after:
            record = self._machine.records.get(other)
            if record is not None and not record.state.terminal:
                missing.after[other] = None
                continue
            remembered = self._machine.prerequisites.forgotten_outcome(other)
            end = remembered if record is None else DependencyOutcome(other, record.state, record.sentence)
            if end is None:
                return other, None, missing
            if end.state is not TaskState.SUCCEEDED:
                return None, end, missing
        return None, None, missing

    def _prerequisite_met(self, record: TaskRecord, now: float) -> None:
        """Queue the item if nothing is missing any more, else publish what it waits for now."""
        missing = self._machine.prerequisites.of(record.task.id)
        if missing:
            self._machine.output.add(Remember(record.task.id))
            if missing.code != record.code:
                self._machine.transition(record, TaskState.PENDING, missing.code, missing.sentence, now)
            return
        self._machine.prerequisites.remove(record.task.id)
        self._scheduling.enqueue(record, codes.QUEUED, "waits to be placed", now)

    def _fail_for_dependency(self, record: TaskRecord, end: DependencyOutcome, now: float) -> None:
        ended = "was cancelled" if end.state is TaskState.CANCELLED else "failed"
        task = record.task
        message = (
            f"{task.kind} {task.id} did not run, because {end.task_id}, which it was to run after, {ended}: "
            f"{end.sentence}"
        )
        step = f"correct {end.task_id} and submit both again"
        self._machine.fail(record, codes.DEPENDENCY_FAILED, now, "TaskSubmissionError", message, step)

    def _refuse_for_dependency(self, record: TaskRecord, unknown: str, now: float) -> None:
        message = f"{record.task.kind} {record.task.id} depends on {unknown!r}, which is unknown here."
        step = "give ids that submit calls of this program returned, and submit those items first"
        self._machine.fail(record, codes.UNKNOWN_DEPENDENCY, now, "ConfigurationError", message, step)

    def _refused_for_names(self, record: TaskRecord, now: float) -> bool:
        name = self.unknown_name(record.wanted)
        if name is None:
            return False
        registry = self._machine.registry
        message = f"{record.task.kind} {record.task.id} names an unknown cluster. {registry.unknown_name_message(name)}"
        step = registry.name_hint(name)
        self._machine.fail(record, codes.UNKNOWN_CLUSTER, now, "ConfigurationError", message, step)
        return True

    def _refused_for_pool(self, record: TaskRecord, now: float) -> bool:
        refusal = self._machine.pools.inadmissible(record.wanted)
        if refusal is None:
            return False
        code, sentence, step = refusal
        message = f"{record.task.kind} {record.task.id} was refused: {sentence}."
        self._machine.fail(record, code, now, "ConfigurationError", message, step)
        return True

    def _refused_for_pin(self, record: TaskRecord, cluster: str, now: float) -> bool:
        task = record.task
        if task.fallback != "wait" or task.preferred_cluster in (None, cluster):
            return False
        message = (
            f"{task.kind} {task.id} may run on {task.preferred_cluster} only, but was given an actor on {cluster}."
        )
        step = f'submit it with preferred_cluster="{cluster}", or make the actor on {task.preferred_cluster}'
        self._machine.fail(record, codes.ARGUMENT_FAILED, now, "TaskSubmissionError", message, step)
        return True

    def queue_limit_refusal(self, task: TaskDescription) -> tuple[str, str] | None:
        """Why the item would be refused because too many items wait, and which setting to raise; None if there is
        room."""
        waiting, limit = self._waiting(), self._machine.settings.max_queue
        of_all, name = "", "max_queue"
        most = self._machine.limits_of(task.owner).max_queued
        if waiting < limit and most is not None:
            waiting, limit = self._waiting_of(task.owner), most
            of_all, name = f" of {task.owner}", f"owners: {task.owner}: max_queued"
        many = f"1 item{of_all} waits" if waiting == 1 else f"{waiting} items{of_all} wait"
        return None if waiting < limit else (f"{many} already and {name} is {limit}", name)

    def queue_full(self, task: TaskDescription, now: float, *, blocked: bool) -> tuple[str, str] | None:
        """Message and next step if the item would be refused because too many items wait. One that could start at once
        is not refused, unless it is ``blocked``: it waits for something else first."""
        refusal = self.queue_limit_refusal(task)
        if refusal is None or (not blocked and self._could_start(task, now)):
            return None
        sentence, name = refusal
        order = (
            ""
            if name == "max_queue"
            else f"; at a service by `rmcs owner set {shlex.quote(task.owner)} --max-queued N`"
        )
        return f"{task.kind} {task.id} was refused: {sentence}.", f"submit it again later, or raise {name}{order}"

    def may_be_full(self, owner: str, unhandled: int) -> bool:
        """Whether :meth:`queue_full` has to be asked before a submission; ``unhandled``: how many events were posted
        and may be submissions. From any thread; it never misses a full queue."""
        waiting, most = self._waiting(), self._machine.limits_of(owner).max_queued
        if waiting + unhandled >= self._machine.settings.max_queue:
            return True
        return most is not None and waiting + unhandled >= most

    def _refused_for_queue_limit(self, record: TaskRecord, now: float, *, blocked: bool) -> bool:
        full = self.queue_full(record.task, now, blocked=blocked)
        if full is None:
            return False
        self._machine.fail(record, codes.QUEUE_FULL, now, "QueueFullError", *full)
        self._release_idempotency_key(record.task)  # it may be submitted again
        return True

    def _could_start(self, task: TaskDescription, now: float) -> bool:
        if self._scheduling.connection_target(task, now) is not None:
            return True
        try:
            return self._scheduling.plan(self._machine.pools.assigned(task), now).cluster is not None
        except PolicyEvaluationError:  # the pass ends such an item
            return False

    def _waiting(self) -> int:
        return len(self._machine.queue) + len(self._machine.held_items) + len(self._machine.prerequisites)

    def _waiting_of(self, owner: str) -> int:
        held = sum(self._machine.records[task_id].task.owner == owner for task_id in self._machine.held_items)
        return self._machine.queue.waiting_count(owner) + held + self._machine.prerequisites.count_of_owner(owner)

    def _cancel_attempt(self, record: TaskRecord, event: CancelRequested, now: float) -> None:
        before = record.ending
        asked_for = before is not None and before.kind not in ("recall", "take_back", "preempt")
        if before is not None and asked_for and (before.force or not event.force):
            return
        if before is None or not asked_for:
            record.ending = Ending("cancel", event.reason, event.force)
            sentence = f"cancellation was requested: {event.reason}"
            self._machine.transition(record, record.state, codes.CANCEL_REQUESTED, sentence, now)
        else:
            record.ending = Ending(before.kind, before.sentence, force=True)
        assert record.cluster is not None
        self._machine.output.add(CancelAttempt(record.task.id, record.attempt, record.cluster, event.force))


@lru_cache(maxsize=1024)
def _submitted(kind: str, name: str) -> str:
    """Cached: one string for all items of a name saves memory when a million wait."""
    return f"{kind} {name} was submitted"
