"""What the owner of a failed item is told: which error, what happened, what to do."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord


def failure_message(
    record: TaskRecord, failure: FailureClass, sentence: str, *, refused: bool
) -> tuple[str | None, str, str]:
    """Class of the error tree (None: the user's own exception), message, next step.

    A sentence that says itself what to do, as the text of an error of ours does, knows better than we do here.
    """
    what, advice, own_step = sentence.partition("What to do: ")
    if not advice or failure is FailureClass.USER:
        return _of_class(record, failure, sentence, refused=refused)
    error, message, _ = _of_class(record, failure, what.rstrip(), refused=refused)
    return error, message, own_step


def _of_class(
    record: TaskRecord, failure: FailureClass, sentence: str, *, refused: bool
) -> tuple[str | None, str, str]:
    task = record.task
    attempts = "1 attempt" if record.attempt == 1 else f"{record.attempt} attempts"
    message = f"{task.kind} {task.id} ({task.name}) failed on {record.cluster} after {attempts}: {sentence}"
    if failure is FailureClass.USER:
        return None, message, ""
    if failure is FailureClass.CRASH and task.kind == "actor" and record.started_at is not None:
        return "ActorDiedError", message, "look at its output; with max_restarts it is made anew, without its state"
    if failure is FailureClass.CRASH and task.gang is not None and task.runs_actors and record.started_at is not None:
        return "ActorDiedError", message, "look at its output, and submit the gang again: one dead member ends it"
    if failure is FailureClass.CRASH:
        error = "ActorDiedError" if task.runs_actors else "WorkerCrashedError"
        return error, message, "look at its output; it may need more memory, or a higher crash_retries"
    if failure is FailureClass.PERMANENT:
        return "TaskSubmissionError", message, "mend what the message names and submit it again"
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
