"""From what a chunk brought back to the value or the error of each of its calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ray_multicluster_scheduler.app.client_api.executor.chunk_call import Answer, Failure
from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.control_plane.runtime.item import Outcome
from ray_multicluster_scheduler.control_plane.runtime.outcome import error_of, value_of
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.handles.handle import TaskHandle


class Failed(NamedTuple):
    """Stands in the place of a value: this call's error."""

    error: BaseException


def values_of(answer: Answer, handle: TaskHandle) -> list[Any]:
    """The values, None in the places of failures. Raises ResultLostError for what cannot be unpickled here."""
    done = Complete(handle.id, TaskState.SUCCEEDED, handle.attempt, handle.cluster)
    values: list[Any] = value_of(Outcome(done, CallResult(handle.id, handle.attempt, "succeeded", answer.values)))
    return values


def error_of_call(failure: Failure, handle: TaskHandle) -> BaseException:
    """What a task of its own would have raised: the user's exception, with its remote traceback as the cause."""
    error, step = None, ""
    if failure.of_result:
        error, step = "TaskSubmissionError", "return plain data, or what can be pickled"
    done = Complete(handle.id, TaskState.FAILED, handle.attempt, handle.cluster, error, failure.message, step)
    result = CallResult(
        handle.id,
        handle.attempt,
        "failed",
        failure.payload,
        FailureClass.USER,
        failure.error_type,
        message=failure.message,
        traceback=failure.traceback,
    )
    problem = error_of(Outcome(done, result))
    assert problem is not None
    return problem


def not_sendable(row: object, problem: Exception) -> TaskSubmissionError:
    """For an input that cannot leave this process."""
    error = TaskSubmissionError(
        f"An input of the map, a {type(row).__qualname__}, cannot be pickled: {type(problem).__name__}: {problem}.",
        next_step="open files, locks and connections inside the function instead of passing them",
    )
    error.__cause__ = problem
    return error
