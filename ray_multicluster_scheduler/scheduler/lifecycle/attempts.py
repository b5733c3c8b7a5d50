"""Attempts: what becomes of an item once it was sent to a cluster."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import codes, retry, timers
from ray_multicluster_scheduler.scheduler.lifecycle.core import Core
from ray_multicluster_scheduler.scheduler.lifecycle.events import (
    AttemptFinished,
    DispatchAccepted,
    DispatchRefused,
    Started,
)
from ray_multicluster_scheduler.scheduler.lifecycle.failure_message import failure_message
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import CancelAttempt
from ray_multicluster_scheduler.scheduler.lifecycle.record import Ending, TaskRecord
from ray_multicluster_scheduler.scheduler.lifecycle.scheduling_pass import SchedulingPass
from ray_multicluster_scheduler.scheduler.policy import reasons


class Attempts:
    """Events about an attempt that is not the live one are late or repeated, and change nothing."""

    def __init__(self, core: Core, scheduling: SchedulingPass) -> None:
        self._core = core
        self._scheduling = scheduling

    def accepted(self, event: DispatchAccepted, now: float) -> None:
        record = self._live(event.task_id, event.attempt)
        if record is None or record.accepted:
            return
        record.accepted = True
        if record.task.kind == "task" and record.started_at is None:
            at = now + self._core.settings.start_grace_s
            self._core.out.set_timer(timers.start_key(record.task.id, record.attempt), at)

    def refused(self, event: DispatchRefused, now: float) -> None:
        record = self._live(event.task_id, event.attempt)
        if record is None:
            return
        wrong_place = event.code == reasons.PYTHON_MISMATCH
        if event.failure is FailureClass.CLUSTER and not wrong_place:
            self._judge_cluster(record, event.failure, now)
        self._core.end_attempt(record, now)
        self._scheduling.request()
        if record.ending is not None and record.ending.kind == "cancel":
            self._cancelled(record, record.ending, now)
        elif wrong_place:
            # Found out only when the link came up; the filter knows it from now on, and no budget is used.
            self._scheduling.enqueue(record, event.code, event.sentence, now)
        else:
            self._failed(record, event.failure, None, event.code, event.sentence, now, refused=True)

    def started(self, event: Started, now: float) -> None:
        record = self._live(event.task_id, event.attempt)
        if record is None or record.started_at is not None:
            return
        self._run(record, event.at, f"started on {record.cluster}", now)
        state = self._core.registry.find(record.cluster)
        if state is not None and event.node_id is not None and record.task.kind != "job":
            state.ledger.move(record.task.id, event.node_id, now)
            self._scheduling.request()

    def finished(self, event: AttemptFinished, now: float) -> None:
        record = self._live(event.task_id, event.attempt)
        if record is None:
            return
        if event.status != "cancelled":  # an attempt that was taken back says nothing of the cluster
            self._judge_cluster(record, event.failure, now)
        if record.state is not TaskState.RUNNING and _has_run(event):
            self._catch_up(record, now)
        self._core.end_attempt(record, now)
        self._scheduling.request()
        ending = record.ending
        if event.status == "succeeded":
            sentence = event.sentence or f"finished on {record.cluster}"
            self._core.complete(record, TaskState.SUCCEEDED, event.code or codes.FINISHED, now, sentence)
        elif ending is not None and ending.kind == "run_timeout":
            self._timed_out(record, now)
        elif ending is not None and ending.kind == "cancel":
            self._cancelled(record, ending, now)
        elif event.status == "failed":
            failure = event.failure or FailureClass.USER
            self._failed(record, failure, event.error_type, event.code, event.sentence, now, refused=False)
        elif ending is not None:
            self._recalled(record, ending, now)
        else:
            sentence = event.sentence or "it was stopped there, not by us"
            self._cancelled(record, Ending("cancel", sentence, force=False), now, code=codes.CANCELLED_THERE)

    def run_timeout(self, task_id: str, now: float) -> None:
        self._end(self._core.records[task_id], Ending("run_timeout", "ran longer than its run_timeout", True), now)

    def start_timeout(self, task_id: str, now: float) -> None:
        """It was sent and did not start: call it back, and look again at what the cluster has."""
        record = self._core.records[task_id]
        grace = self._core.settings.start_grace_s
        sentence = f"did not start on {record.cluster} within start_grace_s ({grace:g} s) and was called back"
        self._end(record, Ending("recall", sentence, True), now)

    def back_off_over(self, task_id: str, now: float) -> None:
        record = self._core.records[task_id]
        self._scheduling.enqueue(record, codes.RETRY, f"waits to be placed for attempt {record.attempt + 1}", now)

    def _live(self, task_id: str, attempt: int) -> TaskRecord | None:
        record = self._core.records.get(task_id)
        return record if record is not None and record.live and record.attempt == attempt else None

    def _run(self, record: TaskRecord, started_at: float, sentence: str, now: float) -> None:
        record.started_at = started_at
        self._core.out.clear_timer(timers.start_key(record.task.id, record.attempt))
        self._core.transition(record, TaskState.RUNNING, codes.STARTED, sentence, now)
        if record.task.run_timeout is not None:
            key = timers.run_key(record.task.id, record.attempt)
            self._core.out.set_timer(key, now + record.task.run_timeout)

    def _catch_up(self, record: TaskRecord, now: float) -> None:
        """It has run although we did not see it: its history says so before it ends."""
        if record.started_at is None:
            self._run(record, now, f"started on {record.cluster}; its start and end were reported together", now)
        else:
            sentence = f"{record.cluster} answers again"
            self._core.transition(record, TaskState.RUNNING, codes.CONTACT_AGAIN, sentence, now)

    def _end(self, record: TaskRecord, ending: Ending, now: float) -> None:
        """Ask for the end of its attempt, unless that was asked for already."""
        if record.ending is not None or record.cluster is None:
            return
        record.ending = ending
        code = codes.RUN_TIMEOUT if ending.kind == "run_timeout" else codes.NOT_STARTED
        self._core.transition(record, record.state, code, ending.sentence, now)
        self._core.touched.add(record.cluster)
        self._core.out.put(CancelAttempt(record.task.id, record.attempt, record.cluster, ending.force))

    def _judge_cluster(self, record: TaskRecord, failure: FailureClass | None, now: float) -> None:
        """Only failures of the cluster itself count for its breaker.

        Where no link can be made, that is known already: refused tasks say nothing new, and jobs still get there.
        """
        state = self._core.registry.find(record.cluster)
        if state is None:
            return
        if failure is not FailureClass.CLUSTER:
            state.breaker.record_success()
        elif state.link_trouble(now) is None:
            state.breaker.record_failure(now)
        self._core.touched.add(state.name)

    def _failed(
        self,
        record: TaskRecord,
        failure: FailureClass,
        error_type: str | None,
        code: str,
        sentence: str,
        now: float,
        *,
        refused: bool,
    ) -> None:
        failures = record.failures
        failures[failure] = failures.get(failure, 0) + 1
        code = code or codes.FAILED[failure]
        if retry.wants_retry(record.task, failure, error_type, failures, ran=not refused):
            delay = retry.backoff_s(
                self._core.settings.retry_backoff, record.task.id, record.attempt, failures[failure]
            )
            why = f"attempt {record.attempt} on {record.cluster} failed: {sentence}; tried again in {delay:.1f} s"
            self._core.transition(record, TaskState.RETRYING, code, why, now)
            self._core.out.set_timer(timers.retry_key(record.task.id), now + delay)
            return
        error, message, next_step = failure_message(record, failure, sentence, refused=refused)
        self._core.complete(record, TaskState.FAILED, code, now, message, error=error, next_step=next_step)

    def _recalled(self, record: TaskRecord, ending: Ending, now: float) -> None:
        """We called it back, so no budget is used; it may have started in the last moment."""
        if record.state is TaskState.RUNNING:
            self._core.transition(record, TaskState.RETRYING, codes.NOT_STARTED, ending.sentence, now)
        self._scheduling.enqueue(record, codes.NOT_STARTED, ending.sentence, now)

    def _timed_out(self, record: TaskRecord, now: float) -> None:
        self._core.complete(
            record,
            TaskState.FAILED,
            codes.RUN_TIMEOUT,
            now,
            f"{record.task.kind} {record.task.id} ran longer than its run_timeout of {record.task.run_timeout:g} s "
            f"on {record.cluster} and was ended.",
            error="TaskTimeoutError",
            next_step="give it a longer run_timeout, or make it faster",
        )

    def _cancelled(self, record: TaskRecord, ending: Ending, now: float, code: str = codes.CANCELLED) -> None:
        message = f"{record.task.kind} {record.task.id} was cancelled on {record.cluster}: {ending.sentence}"
        self._core.complete(record, TaskState.CANCELLED, code, now, message, error="TaskCancelledError")


def _has_run(event: AttemptFinished) -> bool:
    """Does this end prove that user code began?"""
    return event.status == "succeeded" or (event.status == "failed" and event.failure is FailureClass.USER)
