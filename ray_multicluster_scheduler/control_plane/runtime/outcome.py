"""Converts the outcome of an item to the value or the exception that its handle returns or raises."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from ray_multicluster_scheduler.common import exception as errors
from ray_multicluster_scheduler.common import pickling, task_errors
from ray_multicluster_scheduler.common.exception import SchedulerError, TaskTimeoutError
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.common.notices import unread_failures
from ray_multicluster_scheduler.control_plane.runtime.item import CallPromise, Item, Outcome, Promise
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete

Row = TypeVar("Row", bound=dict[str, Any])
_NONE = pickle.dumps(None)
Fetch: TypeAlias = Callable[[Outcome], bytes]
VALUE_FORGOTTEN = "VALUE_FORGOTTEN"
"""The code of a result whose value has expired."""


def value_of(outcome: Outcome, fetch: Fetch | None = None) -> Any:
    """The value; ``fetch`` reads one that is kept in its cluster. Raises the error of :func:`error_of`, and
    ResultLostError."""
    error = error_of(outcome)
    if error is not None:
        raise error
    payload = payload_of(outcome, fetch)
    try:
        return pickling.loads(payload)
    except Exception as problem:
        raise errors.ResultLostError(
            f"The result of {outcome.completion.task_id} from cluster {outcome.completion.cluster!r} cannot be "
            f"unpickled here: {type(problem).__name__}: {problem}.",
            task_id=outcome.completion.task_id,
            cluster=outcome.completion.cluster,
            next_step="return plain data, or install the packages of the result's classes here",
        ) from problem


def payload_of(outcome: Outcome, fetch: Fetch | None = None) -> bytes:
    """The pickled value of a succeeded item. Raises ResultLostError."""
    result = outcome.result
    if result is not None and result.kept is not None:
        if fetch is None:
            raise TypeError(f"the value of {result.task_id} is kept in its cluster, and no fetch function was given")
        return fetch(outcome)
    if result is not None and result.code == VALUE_FORGOTTEN:
        raise errors.ResultLostError(
            f"The value of {result.task_id} was deleted: its retention (keep_payloads_s) has expired.",
            task_id=result.task_id,
            cluster=outcome.completion.cluster,
            next_step="fetch values sooner, or let the service keep them longer",
        )
    return _NONE if result is None or result.payload is None else result.payload


def note_failure(item: Item, outcome: Outcome) -> None:
    """Remember that an item has failed, until the program asks for it."""
    done = outcome.completion
    if done.state is TaskState.FAILED:
        unread_failures.add(
            item.id, f"{item.task.name} failed: {done.error or ''}{': ' * bool(done.error)}{done.message}"
        )


def note_failed_call(call: CallPromise, outcome: Outcome) -> None:
    """The same for the call of a method. An actor that dies is reported itself, unless it is restarted; one that the
    program has killed is not."""
    done, actor = outcome.completion, call.actor.item.task.actor
    if done.error == "ActorDiedError" and (call.actor.killed or actor is None or not actor.max_restarts):
        return
    if done.state is TaskState.FAILED:
        unread_failures.add(call.id, f"{call.name} failed: {done.error or ''}{': ' * bool(done.error)}{done.message}")


def as_read(row: Row) -> Row:
    """The row of a job or the explanation of an item that the program has asked for; if it failed, it is read now."""
    if "FAILED" in (row.get("status"), row.get("state")):
        unread_failures.read(row.get("job_id") or row["id"])
    return row


def error_of(outcome: Outcome) -> BaseException | None:
    """The exception for the caller, who has asked for it now; None if the item succeeded."""
    done = outcome.completion
    if done.state is TaskState.SUCCEEDED:
        return None
    unread_failures.read(done.task_id)
    if outcome.origin is not None:
        first = error_of(outcome.origin)
        if first is not None:
            task_errors.note(first, f"{done.task_id} needed the value as an argument, so it did not run")
        return first
    if done.error is None and outcome.result is not None:
        return _user_error(done, outcome.result)
    kind = getattr(errors, done.error or "", None) or (
        errors.TaskCancelledError if done.state is TaskState.CANCELLED else errors.RemoteError
    )
    error: errors.SchedulerError = kind(
        done.message or f"{done.task_id} ended as {done.state}.",
        task_id=done.task_id,
        cluster=done.cluster,
        next_step=done.next_step or None,
    )
    result = outcome.result
    if result is not None and result.task_id != done.task_id and result.failure is FailureClass.USER:
        # A call that was not sent, because the constructor of its actor raised this.
        error.__cause__ = _user_error(replace(done, task_id=result.task_id, attempt=result.attempt), result)
    elif result is not None and result.traceback:
        error.__cause__ = errors.RemoteTraceback(result.traceback)
    return error


def _user_error(done: Complete, result: CallResult) -> BaseException:
    """The exception that user code raised, or RemoteError with its text if it cannot be unpickled here."""
    member = "" if result.member is None else f"member {result.member} of "
    note = f"raised in {member}{done.task_id} (attempt {done.attempt}) on cluster {done.cluster!r}"
    error: Exception | None = None
    problem = ""
    if result.payload is not None:
        try:
            loaded = pickling.loads(result.payload)
            error = loaded if isinstance(loaded, Exception) else None
        except Exception as failed:  # noqa: BLE001 - its text goes into the error below
            problem = f" The exception itself cannot be unpickled here: {type(failed).__name__}: {failed}."
    if error is None:
        error = errors.RemoteError(
            f"{result.message} ({note}).{problem}",
            task_id=done.task_id,
            cluster=done.cluster,
            next_step="see the remote traceback above",
        )
    else:
        error = task_errors.as_task_error(error)
        task_errors.note(error, note)
    first: BaseException = error  # of the chain of its causes
    while first.__cause__ is not None and not isinstance(first.__cause__, errors.RemoteTraceback):
        first = first.__cause__
    task_errors.set_attribute(first, "__cause__", errors.RemoteTraceback(result.traceback))
    return error


OnFetched: TypeAlias = Callable[[SchedulerError | None], object]
FetchValue: TypeAlias = Callable[[Promise, OnFetched], None]
"""Fetches the kept value of an item into its outcome, then calls back with the error, or None."""


def is_in_cluster(outcome: Outcome | None) -> bool:
    """Whether its value is kept in a cluster."""
    return outcome is not None and outcome.result is not None and outcome.result.kept is not None


def with_payload(outcome: Outcome, payload: bytes) -> Outcome:
    """A copy of the outcome that contains the value."""
    assert outcome.result is not None
    return replace(outcome, result=replace(outcome.result, payload=payload, kept=None, kept_by=None))


def value_timeout(outcome: Outcome, timeout: float) -> TaskTimeoutError:
    done = outcome.completion
    return TaskTimeoutError(
        f"{done.task_id} has ended, and its value did not arrive from cluster {done.cluster!r} within {timeout:g} s.",
        task_id=done.task_id,
        cluster=done.cluster,
        next_step="wait longer: the cluster may be unreachable for a while",
    )
