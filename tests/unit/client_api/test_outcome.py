"""What a caller gets: the value, the user's own exception, or an error that says what to do."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

import pytest

from ray_multicluster_scheduler.common import exception as errors
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.error_pickling import dumps_error
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.common.task_errors import RayTaskError
from ray_multicluster_scheduler.control_plane.runtime.item import Outcome
from ray_multicluster_scheduler.control_plane.runtime.outcome import error_of, value_of
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete


def outcome(state: TaskState, result: CallResult | None = None, **values: Any) -> Outcome:
    return Outcome(Complete("t1", state, 2, "mac", **values), result)


def succeeded(payload: bytes | None) -> Outcome:
    return outcome(TaskState.SUCCEEDED, CallResult("t1", 2, "succeeded", payload))


def raised(payload: bytes | None, message: str = "ValueError: bad") -> Outcome:
    result = CallResult("t1", 2, "failed", payload, FailureClass.USER, "ValueError", "", message, "Traceback …")
    return outcome(TaskState.FAILED, result)


def test_values() -> None:
    assert value_of(succeeded(pickling.dumps({"a": 1}))) == {"a": 1}
    assert value_of(succeeded(None)) is None
    assert error_of(succeeded(None)) is None


class Broken:
    def __reduce__(self) -> Any:
        return (int, ("not a number",))


def test_a_value_that_cannot_be_unpickled_here_is_lost_with_a_sentence() -> None:
    with pytest.raises(errors.ResultLostError, match=r"t1 from cluster 'mac' .*ValueError") as caught:
        value_of(succeeded(pickling.dumps(Broken())))
    assert (caught.value.task_id, caught.value.cluster) == ("t1", "mac")
    assert "plain data" in str(caught.value.next_step)


def test_the_users_exception_comes_back_as_itself_with_where_and_how() -> None:
    with pytest.raises(ValueError, match="^bad") as caught:
        value_of(raised(pickling.dumps(ValueError("bad"))))
    text = "".join(traceback.format_exception(caught.value))
    assert "Traceback …" in text
    assert "raised in t1 (attempt 2) on cluster 'mac'" in text
    assert isinstance(caught.value.__cause__, errors.RemoteTraceback)


def test_the_traceback_is_the_first_cause_of_a_users_exception_with_causes() -> None:
    error = ValueError("bad")
    error.__cause__ = KeyError("k")
    with pytest.raises(ValueError, match="^bad") as caught:
        value_of(raised(dumps_error(error)))
    cause = caught.value.__cause__
    assert isinstance(cause, KeyError)
    assert isinstance(cause.__cause__, errors.RemoteTraceback)
    assert isinstance(caught.value, RayTaskError)
    assert caught.value.traceback_str == cause.__cause__.text


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


def test_a_users_exception_that_refuses_attributes() -> None:
    with pytest.raises(Frozen) as caught:
        value_of(raised(dumps_error(Frozen(3))))
    assert caught.value.code == 3
    assert isinstance(caught.value.__cause__, errors.RemoteTraceback)


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (None, "ValueError: bad"),
        (pickling.dumps(Broken()), "cannot be unpickled here: ValueError"),
        (pickling.dumps("not an exception"), "ValueError: bad"),
        (b"noise", "cannot be unpickled here"),
        (pickling.dumps(SystemExit(3)), "ValueError: bad"),
    ],
)
def test_an_exception_that_cannot_be_rebuilt_is_still_readable(payload: bytes | None, says: str) -> None:
    error = error_of(raised(payload))
    assert type(error) is errors.RemoteError
    assert says in str(error)
    assert "on cluster 'mac'" in str(error)
    assert isinstance(error.__cause__, errors.RemoteTraceback)


@pytest.mark.parametrize(
    ("state", "name", "kind"),
    [
        (TaskState.CANCELLED, "TaskCancelledError", errors.TaskCancelledError),
        (TaskState.CANCELLED, None, errors.TaskCancelledError),
        (TaskState.FAILED, "TaskTimeoutError", errors.TaskTimeoutError),
        (TaskState.FAILED, "NoFeasibleClusterError", errors.NoFeasibleClusterError),
        (TaskState.FAILED, "OfALaterVersion", errors.RemoteError),
    ],
)
def test_the_brains_word_becomes_an_error_of_the_tree(state: TaskState, name: str | None, kind: type) -> None:
    error = error_of(outcome(state, error=name, message="It ended.", next_step="try again"))
    assert type(error) is kind
    assert str(error) == "It ended. What to do: try again"
    assert (error.task_id, error.cluster) == ("t1", "mac")


def test_the_traceback_of_a_crash_is_kept() -> None:
    result = CallResult("t1", 2, "failed", None, FailureClass.PERMANENT, "ImportError", traceback="Traceback …")
    error = error_of(outcome(TaskState.FAILED, result, error="TaskSubmissionError", message="m"))
    assert isinstance(error, errors.TaskSubmissionError)
    assert "Traceback …" in str(error.__cause__)


def test_an_end_without_words_still_names_the_item() -> None:
    assert str(error_of(outcome(TaskState.CANCELLED))) == "t1 ended as CANCELLED."
