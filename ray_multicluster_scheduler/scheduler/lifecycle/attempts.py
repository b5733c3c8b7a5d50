"""Attempts: the part of the machine that handles events of dispatched attempts: refused, started, timed out, finished.

It updates the ledger and the cluster's breaker, and completes, retries or fails the item.
"""

from __future__ import annotations

from ray_multicluster_scheduler.common.exception import ADVICE
from ray_multicluster_scheduler.common.model import FailureClass, TaskDescription, TaskState
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState
from ray_multicluster_scheduler.scheduler.cluster.fit import gang_parts
from ray_multicluster_scheduler.scheduler.lifecycle import codes, retry, timers
from ray_multicluster_scheduler.scheduler.lifecycle.events import (
    AttemptFinished,
    DispatchAccepted,
    DispatchRefused,
    PlaceMoved,
    Started,
    StateSaved,
)
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import CancelAttempt, Remember
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import MachineState
from ray_multicluster_scheduler.scheduler.lifecycle.placement.prefetch import Prefetch
from ray_multicluster_scheduler.scheduler.lifecycle.placement.scheduling_pass import SchedulingPass
from ray_multicluster_scheduler.scheduler.lifecycle.record import Ending, TaskRecord
from ray_multicluster_scheduler.scheduler.lifecycle.timers import NEW_NODE_GRACE_S
from ray_multicluster_scheduler.scheduler.lifecycle.transitions import attempts_of
from ray_multicluster_scheduler.scheduler.policy import reasons

_ENDING_CODES = {
    "cancel": codes.CANCELLED,
    "run_timeout": codes.RUN_TIMEOUT,
    "ready_timeout": codes.READY_TIMEOUT,
    "recall": codes.NOT_STARTED,
    "take_back": codes.TAKEN_BACK,
    "preempt": codes.PREEMPTED,
}
_BEGUN = {codes.KILLED: "it had to be killed and may have", codes.BEGUN: "some of its members had"}
"""Answer codes after which a recalled attempt counts as started, with the phrase for the reason."""


class Attempts:
    """Handlers for attempt events. Events for an attempt that is not the live one are late or repeated and change
    nothing."""

    def __init__(self, machine: MachineState, scheduling: SchedulingPass, prefetch: Prefetch) -> None:
        self._machine = machine
        self._scheduling = scheduling
        self._prefetch = prefetch

    def accepted(self, event: DispatchAccepted, now: float) -> None:
        record = self._live_record(event.task_id, event.attempt)
        if record is None or record.accepted:
            return
        record.accepted = True
        assert record.cluster is not None
        self._machine.submissions.record(record.task, record.cluster, now, retry=record.attempt > 1)
        if record.started_at is not None or record.task.kind == "job":  # only the cluster knows when a job starts
            return
        if not record.task.runs_actors:
            state = self._machine.registry.find(record.cluster)
            waits = state is not None and state.ledger.waits_for_node(record.task.id)
            self._machine.start_timeouts.add(record, now, new_node=waits)
        elif record.task.ready_timeout is not None:
            key = timers.start_key(record.task.id, record.attempt)
            self._machine.output.set_timer(key, now + record.task.ready_timeout)

    def refused(self, event: DispatchRefused, now: float) -> None:
        record = self._live_record(event.task_id, event.attempt)
        if record is None:
            return
        wrong_place = event.code == reasons.PYTHON_MISMATCH
        if event.failure is FailureClass.CLUSTER and not wrong_place:
            self._record_refusal(record, event, now)
        self._machine.end_attempt(record, now)
        self._scheduling.request_full_scan()
        if record.ending is not None and record.ending.kind == "cancel":
            self._cancelled(record, record.ending, now)
        elif wrong_place:
            # Found out only when the link came up; the filter knows it from now on, and no budget is used.
            self._scheduling.enqueue(record, event.code, event.sentence, now)
        else:
            self._failed(record, event.failure, None, event.code, event.sentence, now, refused=True)

    def started(self, event: Started, now: float) -> None:
        record = self._live_record(event.task_id, event.attempt)
        if record is not None and record.started_at is None:
            self._record_start(record, event.at, event.node_id, now)

    def place_moved(self, event: PlaceMoved, now: float) -> None:
        """A prefetched attempt has started in the slot of one that ended there. If we gave it a slot meanwhile, the
        ended attempt frees its own; if that attempt is already over here, the new one gets a slot of its own."""
        record = self._live_record(*event.begun)
        state = self._machine.registry.find(record.cluster) if record is not None else None
        if record is None or state is None or record.task.id not in state.slots.prefetched:
            return
        self._drop_take_back(record)
        if state.at_in_flight_limit:
            self._machine.freed_clusters.add(state.name)
        if self._live_record(*event.ended) is not None:
            state.hand_over(event.ended[0], record.task, now)
            self._machine.output.add(Remember(event.ended[0]))
        else:
            state.slots.remove_prefetched(record.task.id)
            state.assign(record.task, now, short=True)
        self._machine.output.add(Remember(record.task.id))

    def finished(self, event: AttemptFinished, now: float) -> None:
        record = self._live_record(event.task_id, event.attempt)
        if record is None:
            self._settle_abandoned(event)
            return
        if event.started_at is not None and record.started_at is None:
            self._record_start(record, event.started_at, event.node_id, now)
        if event.status != "cancelled":  # a recalled attempt is no evidence about the cluster
            self._update_breaker(record, event.failure, now, event.code)
        if record.state not in (TaskState.RUNNING, TaskState.PREEMPTING) and _has_run(event, record):
            self._drop_take_back(record)
            self._record_missed_start(record, now)
        self._machine.run_times.observe(record.task.function_digest, event.took)
        cluster, grace_s = record.cluster or "", self._grace_s(record, event.code)
        self._machine.end_attempt(record, now)
        self._prefetch.attempt_ended(record, cluster)
        ending = record.ending
        if event.status == "succeeded":
            sentence = event.sentence or f"finished on {record.cluster}"
            self._machine.complete(record, TaskState.SUCCEEDED, event.code or codes.FINISHED, now, sentence)
        elif ending is not None and ending.kind in ("run_timeout", "ready_timeout"):
            self._timed_out(record, ending, now)
        elif ending is not None and ending.kind == "cancel":
            self._cancelled(record, ending, now)
        elif ending is not None and ending.kind == "preempt" and event.failure is not FailureClass.CLUSTER:
            self._preempted(record, ending, cluster, now)
        elif event.status == "failed":
            failure = event.failure or FailureClass.USER
            self._failed(
                record, failure, event.error_type, event.code, event.sentence, now, refused=False, grace_s=grace_s
            )
        elif ending is None and event.code in (codes.RECALLED, codes.KILLED):
            # Recalled, but then seen to start, or to get a slot.
            self._recalled(record, Ending("take_back", f"was recalled from {cluster}", False), event.code, now)
        elif ending is not None:
            self._recalled(record, ending, event.code, now)
        else:
            sentence = event.sentence or "it was stopped there, not by us"
            self._cancelled(record, Ending("cancel", sentence, force=False), now, code=codes.CANCELLED_THERE)

    def _settle_abandoned(self, event: AttemptFinished) -> None:
        """The late end of an attempt that was abandoned: it need not be cancelled any more."""
        record = self._machine.records.get(event.task_id)
        if record is not None and any(attempt == event.attempt for attempt, _ in record.given_up):
            record.given_up = tuple(one for one in record.given_up if one[0] != event.attempt)
            self._machine.output.add(Remember(event.task_id))

    def abandon(self, record: TaskRecord, code: str, sentence: str, now: float) -> None:
        """Settle the attempt as lost without waiting for its end, and cancel it on its cluster as soon as that can be
        reached. A detached actor that was ready may live on."""
        actor, ending, cluster = record.task.actor, record.ending, record.cluster or ""
        if actor is None or not actor.detached or record.started_at is None:
            record.given_up += ((record.attempt, cluster),)
            self._machine.output.add(CancelAttempt(record.task.id, record.attempt, cluster, force=True))
        self._machine.end_attempt(record, now)
        if ending is not None and ending.kind == "cancel":
            self._cancelled(record, ending, now)
        elif ending is not None and ending.kind in ("run_timeout", "ready_timeout"):
            self._timed_out(record, ending, now)
        else:
            self._failed(record, FailureClass.CLUSTER, None, code, sentence, now, refused=False)

    def run_timeout(self, task_id: str, now: float) -> None:
        self._request_end(
            self._machine.records[task_id], Ending("run_timeout", "ran longer than its run_timeout", True), now
        )

    def ready_timeout(self, task_id: str, now: float) -> None:
        """An actor was created but is not ready in time: end it."""
        ending = Ending("ready_timeout", "was not ready within its ready_timeout", True)
        self._request_end(self._machine.records[task_id], ending, now)

    def start_timeout(self, _: str, now: float) -> None:
        """Recall the attempts that did not start in time, and refresh the snapshots of their clusters."""
        for record in self._machine.start_timeouts.expired(now):
            self._request_end(record, Ending("recall", self._not_started_sentence(record), False), now)

    def _not_started_sentence(self, record: TaskRecord) -> str:
        state = self._machine.registry.find(record.cluster)
        if state is not None and state.ledger.waits_for_node(record.task.id):
            return f"{record.cluster} added no node for it within {NEW_NODE_GRACE_S:g} s, and it was recalled"
        grace = self._machine.settings.start_grace_s
        return f"did not start on {record.cluster} within start_grace_s ({grace:g} s) and was recalled"

    def back_off_over(self, task_id: str, now: float) -> None:
        record = self._machine.records[task_id]
        self._scheduling.enqueue(record, codes.RETRY, f"waits to be placed for attempt {record.attempt + 1}", now)

    def _record_start(self, record: TaskRecord, at: float, node_id: str | None, now: float) -> None:
        """The attempt was seen to start. An actor stays on its cluster, also when it is restarted."""
        is_actor = record.task.runs_actors
        self._drop_take_back(record)
        self._set_running(
            record, at, f"is ready on {record.cluster}" if is_actor else f"started on {record.cluster}", now
        )
        actor, state = record.task.actor, self._machine.registry.find(record.cluster)
        if actor is not None and not actor.restart_elsewhere and record.cluster is not None:
            record.pin(record.cluster)
        if state is None:
            return
        if node_id is not None and self._correct_booking(record.task, state, node_id, now):
            self._machine.freed_clusters.add(state.name)
        if is_actor:
            self._actor_ready(record, state, now)

    def _correct_booking(self, task: TaskDescription, state: ClusterState, node_id: str, now: float) -> bool:
        """Correct the ledger by the node where it started; for a gang by the nodes of its members. True if it
        changed."""
        if task.gang is not None:
            return state.ledger.arrange(task.id, gang_parts(task.gang, node_id.split()), now)
        return task.kind != "job" and state.ledger.move(task.id, node_id, now)

    def _drop_take_back(self, record: TaskRecord) -> None:
        """Drop the recall of a prefetched attempt, because it runs."""
        if record.ending is not None and record.ending.kind == "take_back":
            record.ending = None

    def _actor_ready(self, record: TaskRecord, state: ClusterState, now: float) -> None:
        """The actor is in service: from now on it holds only its requirements."""
        state.actor_ready(record.task, now)
        self._machine.clusters_to_refresh.add(state.name)
        self._machine.freed_clusters.add(state.name)

    def _live_record(self, task_id: str, attempt: int) -> TaskRecord | None:
        record = self._machine.records.get(task_id)
        return record if record is not None and record.live and record.attempt == attempt else None

    def _set_running(self, record: TaskRecord, started_at: float, sentence: str, now: float) -> None:
        record.started_at = started_at
        self._machine.pools.started(record)
        self._machine.note_preemptible(record)
        if record.task.runs_actors:
            self._machine.output.clear_timer(timers.start_key(record.task.id, record.attempt))
        code = codes.READY if record.task.runs_actors else codes.STARTED
        code = codes.RESUMED if _was_preempted(record) else code
        self._machine.transition(record, TaskState.RUNNING, code, sentence, now)
        if record.task.run_timeout is not None:
            key = timers.run_key(record.task.id, record.attempt)
            self._machine.output.set_timer(key, now + record.task.run_timeout)

    def _record_missed_start(self, record: TaskRecord, now: float) -> None:
        """The attempt ran although no start was reported: record the start before the end."""
        if record.started_at is None:
            self._set_running(
                record, now, f"started on {record.cluster}; its start and end were reported together", now
            )
        else:
            sentence = f"{record.cluster} answers again"
            self._machine.transition(record, TaskState.RUNNING, codes.CONTACT_AGAIN, sentence, now)

    def _request_end(self, record: TaskRecord, ending: Ending, now: float) -> None:
        """Ask the cluster to end the attempt, unless that was requested before."""
        if record.cluster is None or (record.ending is not None and record.ending.kind != "take_back"):
            return
        record.ending = ending
        code = _ENDING_CODES[ending.kind]
        self._machine.transition(record, record.state, code, ending.sentence, now)
        self._machine.clusters_to_refresh.add(record.cluster)
        self._machine.output.add(CancelAttempt(record.task.id, record.attempt, record.cluster, ending.force))

    def _update_breaker(self, record: TaskRecord, failure: FailureClass | None, now: float, code: str) -> None:
        """Only failures of the cluster itself count for its breaker. The reason is public, so it names only the kind of
        item.

        Where no link can be made, refused tasks add no information, and jobs still work.
        """
        state = self._machine.registry.find(record.cluster)
        if state is None or (code == codes.CLUSTER_RESTARTED and not self._is_new_restart(record, state)):
            return
        state.breaker.recent_attempts.append(failure is FailureClass.CRASH)
        if failure is FailureClass.CLUSTER and state.link_problem(now) is None:
            state.breaker.record_failure(
                now, f"with {record.task.kind_with_article}: {codes.failure_text(code or codes.FAILED[failure])}"
            )
        elif failure is not FailureClass.CLUSTER and state.breaker.failures_in_a_row:
            state.breaker.record_success()
        else:
            return
        self._machine.clusters_to_refresh.add(state.name)
        self._scheduling.request_full_scan()

    def _is_new_restart(self, record: TaskRecord, state: ClusterState) -> bool:
        """Is it the first report of this restart? Each attempt that the restart ended reports it; it counts once."""
        if (record.task.id, record.attempt) in state.ended_by_restart:
            return False
        there = (self._machine.records[task_id] for task_id in (*state.slots.held, *state.slots.prefetched))
        state.ended_by_restart = frozenset((one.task.id, one.attempt) for one in there)
        return True

    def _record_refusal(self, record: TaskRecord, event: DispatchRefused, now: float) -> None:
        """While the link is up, a refused job is a failure of the dashboard only: tasks continue over the link."""
        state = self._machine.registry.find(record.cluster)
        if record.task.kind == "job" and state is not None and state.receives_updates():
            state.record_dashboard_failure(event.sentence, now)
            state.dashboard_checked_at = None
            self._machine.clusters_to_refresh.add(state.name)
        else:
            self._update_breaker(record, FailureClass.CLUSTER, now, event.code)

    def _grace_s(self, record: TaskRecord, code: str) -> float:
        """How long nodes of a restarted cluster may still run an attempt of the old session; 0 if it had one node."""
        state = self._machine.registry.find(record.cluster)
        alone = state is not None and state.ledger.node_count_at_placement(record.task.id) == 1
        return self._machine.settings.node_grace_s if code == codes.CLUSTER_RESTARTED and not alone else 0.0

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
        grace_s: float = 0.0,
    ) -> None:
        code = code or codes.FAILED[failure]
        again, failures = self._count_failure(record, failure, error_type, refused=refused)
        if again:
            delay = retry.backoff_s(self._machine.settings.retry_backoff, record.task.id, record.attempt, failures)
            delay, when = retry.pause(delay, grace_s)
            why = f"attempt {record.attempt} on {record.cluster} failed: {sentence}{retry.AGAIN}{when}"
            self._machine.transition(record, TaskState.RETRYING, code, why, now)
            self._machine.output.set_timer(timers.retry_key(record.task.id), now + delay)
            return
        error, message, next_step = failure_message(record, failure, sentence, refused=refused)
        self._machine.fail(record, code, now, error, message, next_step)

    def _count_failure(
        self, record: TaskRecord, failure: FailureClass, error_type: str | None, *, refused: bool
    ) -> tuple[bool, int]:
        """Count the failure. Returns whether there is another attempt, and the number of failures of this kind."""
        actor, was_ready = record.task.actor, record.started_at is not None
        if actor is not None and was_ready and failure in (FailureClass.CRASH, FailureClass.CLUSTER):
            record.restarts += 1
            return record.restarts <= retry.restarts(actor), record.restarts
        if record.task.gang is not None and record.task.runs_actors and was_ready:
            return False, 1  # callers of its members would not notice that they lost their state
        failures = record.failures = {**record.failures, failure: record.failures.get(failure, 0) + 1}
        again = retry.wants_retry(record.task, failure, error_type, failures, ran=not refused)
        return again, failures[failure]

    def _recalled(self, record: TaskRecord, ending: Ending, answer: str, now: float) -> None:
        """A recall uses no retry budget, unless the attempt had started after all: then our recall crashed it."""
        code = _ENDING_CODES[ending.kind]
        begun = _BEGUN.get(answer) or ("it had" if record.started_at is not None else None)
        if begun is None:
            self._scheduling.enqueue(record, code, ending.sentence, now)
        else:
            sentence = f"{ending.sentence}; {begun} begun by then"
            self._failed(record, FailureClass.CRASH, None, code, sentence, now, refused=False)

    def _preempted(self, record: TaskRecord, ending: Ending, cluster: str, now: float) -> None:
        """It saved its state, or did not; either way it waits again, in front, and no retry is used."""
        record.resumes = True
        how = "with its saved state" if record.saved is not None else "from the start"
        self._scheduling.enqueue(record, codes.PREEMPTED, f"{ending.sentence}; it resumes {how}", now)

    def state_saved(self, event: StateSaved, now: float) -> None:
        record = self._live_record(event.task_id, event.attempt)
        if record is not None:
            record.saved, record.saved_at = event.digest, now
            self._machine.output.add(Remember(event.task_id))

    def _timed_out(self, record: TaskRecord, ending: Ending, now: float) -> None:
        if ending.kind == "ready_timeout":
            what = f"was not ready within its ready_timeout of {record.task.ready_timeout:g} s"
            step = "give it a longer ready_timeout, or read its output to see what its constructor waits for"
        else:
            what = f"ran longer than its run_timeout of {record.task.run_timeout:g} s"
            step = "give it a longer run_timeout, or make it faster"
        message = f"{record.task.kind} {record.task.id} {what} on {record.cluster} and was cancelled."
        self._machine.fail(record, _ENDING_CODES[ending.kind], now, "TaskTimeoutError", message, step)

    def _cancelled(self, record: TaskRecord, ending: Ending, now: float, code: str = codes.CANCELLED) -> None:
        message = f"{record.task.kind} {record.task.id} was cancelled on {record.cluster}: {ending.sentence}"
        self._machine.complete(record, TaskState.CANCELLED, code, now, message, error="TaskCancelledError")


def _was_preempted(record: TaskRecord) -> bool:
    """Did its previous attempt end by preemption?"""
    if record.preempted_at is None:
        return False
    left = (TaskState.QUEUED, codes.PREEMPTED, record.attempt - 1)
    return any((step.state, step.code, step.attempt) == left for step in reversed(record.history))


def _has_run(event: AttemptFinished, record: TaskRecord) -> bool:
    """Does this end prove that user code started? An actor whose constructor failed was never ready."""
    if event.status == "failed":
        return event.failure is FailureClass.USER and not record.task.runs_actors
    return event.status == "succeeded"


def failure_message(
    record: TaskRecord, failure: FailureClass, sentence: str, *, refused: bool
) -> tuple[str | None, str, str]:
    """Error class (None: the user's own exception), message and next step for the owner of a failed item.

    A sentence with its own advice, as the text of our errors has, keeps that advice.
    """
    what, advice, own_step = sentence.partition(ADVICE)
    if not advice or failure is FailureClass.USER:
        return _of_class(record, failure, sentence, refused=refused)
    error, message, _ = _of_class(record, failure, what.rstrip(), refused=refused)
    return error, message, own_step


def _of_class(
    record: TaskRecord, failure: FailureClass, sentence: str, *, refused: bool
) -> tuple[str | None, str, str]:
    task = record.task
    recalled = sum(one.ended_as == "recalled" for one in attempts_of(record.history, {}))  # they never began
    attempts = "1 attempt" if record.attempt - recalled == 1 else f"{record.attempt - recalled} attempts"
    message = f"{task.kind} {task.id} ({task.name}) failed on {record.cluster} after {attempts}: {sentence}"
    if failure is FailureClass.USER:
        return None, message, ""
    if failure is FailureClass.CRASH and task.kind == "actor" and record.started_at is not None:
        return "ActorDiedError", message, "read its output; with max_restarts it is restarted, without its state"
    if failure is FailureClass.CRASH and task.gang is not None and task.runs_actors and record.started_at is not None:
        return "ActorDiedError", message, "read its output, and submit the gang again: one dead member ends it"
    if failure is FailureClass.CRASH:
        error = "ActorDiedError" if task.runs_actors else "WorkerCrashedError"
        return error, message, "read its output; it may need more memory, or a higher crash_retries"
    if failure is FailureClass.PERMANENT:
        return "TaskSubmissionError", message, "correct what the message names and submit it again"
    if refused:
        return "ClusterConnectionError", message, f"check {record.cluster} with `rmcs clusters`, then submit it again"
    if task.kind == "job" and not task.retry_lost:
        step = "check what the job had done by then, then submit it again, or submit such jobs with retry_lost=True"
        return "ClusterLostError", message, step
    if task.actor is not None and task.actor.detached:
        step = f"get_actor({task.actor.public_name!r}) finds it when {record.cluster} is back, if it lived on there"
        return "ClusterLostError", message, step
    if task.kind == "actor":
        return "ClusterLostError", message, f"check {record.cluster} with `rmcs clusters`, or give it max_restarts"
    return "ClusterLostError", message, f"check {record.cluster} with `rmcs clusters`, or raise lost_retries"
