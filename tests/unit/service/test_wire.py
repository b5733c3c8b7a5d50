"""What a service and its clients say to each other comes back as it was."""

from __future__ import annotations

import json

import pytest

from ray_multicluster_scheduler.common import exception as errors
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import ClusterLostError, SchedulerError, error_from_problem
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.control_plane.runtime import wire
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome, Promise
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, Transition
from tests.unit.lifecycle.driver import task

DONE = Complete("t", TaskState.SUCCEEDED, 1, "mac")
FAILED = Complete("t", TaskState.FAILED, 2, "mac", "ClusterLostError", "it was lost", "try again")
USER = CallResult(
    "t",
    2,
    "failed",
    b"pickled",
    failure=FailureClass.USER,
    error_type="ValueError",
    code="USER",
    message="bad",
    traceback="Traceback …",
    took=0.0,
    started_at=5.5,
    node_id="n1",
    member=0,
)


def sent(outcome: Outcome, **fetched: bytes) -> Outcome:
    return wire.outcome_from_wire(json.loads(json.dumps(wire.outcome_to_wire(outcome))), fetched)


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(DONE, None),
        Outcome(DONE, CallResult("t", 1, "succeeded", b"value")),
        Outcome(DONE, CallResult("t", 1, "succeeded", b"")),
        Outcome(FAILED, USER),
        Outcome(FAILED, USER, Outcome(FAILED, USER)),
        Outcome(Complete("t", TaskState.CANCELLED, 0, None), None),
    ],
)
def test_an_outcome_comes_back(outcome: Outcome) -> None:
    assert sent(outcome) == outcome
    assert wire.named_payloads(wire.outcome_to_wire(outcome)) == []


def test_large_values_are_named_and_fetched() -> None:
    large, other = b"x" * (wire.INLINE_BYTES + 1), b"y" * (wire.INLINE_BYTES + 1)
    outcome = Outcome(FAILED, CallResult("t", 1, "failed", large), Outcome(FAILED, CallResult("u", 1, "failed", other)))
    output = wire.outcome_to_wire(outcome)
    assert wire.named_payloads(output) == [digest_of(large), digest_of(other)]
    assert len(json.dumps(output)) < 2000
    assert sent(outcome, **{digest_of(one): one for one in (large, other)}) == outcome


def test_unknown_fields_of_a_later_version_are_ignored() -> None:
    output = wire.outcome_to_wire(Outcome(FAILED, USER))
    output["result"]["colour"] = "red"
    assert wire.outcome_from_wire(output, {}).result == USER


def test_a_step_comes_back() -> None:
    item = Item(task("t"))
    assert wire.status_to_wire(item) == {"id": "t", "state": "PENDING", "attempt": 0, "cluster": None}
    step = Transition("t", 3, TaskState.RUNNING, 2, 7.5, "STARTED", "runs", "mac")
    item.moved(step)
    assert wire.step_from_wire(json.loads(json.dumps(wire.status_to_wire(item)))) == step
    item.ended(Outcome(DONE, None))
    assert wire.status_to_wire(item)["outcome"]["completion"]["state"] == "SUCCEEDED"


def test_a_promise_without_steps_can_be_completed() -> None:
    promise = Promise("p")
    promise.ended(Outcome(DONE, None))
    assert wire.status_to_wire(promise)["state"] == "SUCCEEDED"


def test_blobs_come_back() -> None:
    blobs = {digest_of(one): one for one in (b"", b"x", bytes(range(256)))}
    assert wire.bytes_from_wire(json.loads(json.dumps(wire.bytes_to_wire(blobs)))) == blobs


@pytest.mark.parametrize("output", [{"x": "eA=="}, {digest_of(b"x"): "eA"}, {digest_of(b"x"): "e A=="}])
def test_a_blob_that_is_another_one_is_refused(output: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        wire.bytes_from_wire(output)


def test_an_error_comes_back_as_itself() -> None:
    error = ClusterLostError("It was lost.", task_id="t", cluster="mac", next_step="try again")
    again = error_from_problem(json.loads(json.dumps(wire.problem_to_wire(error))))
    assert type(again) is ClusterLostError
    assert (str(again), again.task_id, again.cluster, again.next_step) == (str(error), "t", "mac", "try again")


@pytest.mark.parametrize("name", ["NoSuchError", "BaseException", "annotations", "__name__", None, 5])
def test_an_error_that_nobody_knows_is_one_of_ours(name: object) -> None:
    again = error_from_problem({"error": name, "message": "something"})
    assert type(again) is SchedulerError
    assert "something" in str(again)
    assert error_from_problem({}).message


def test_every_error_of_ours_can_be_sent() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SchedulerError)]
    assert len(kinds) > 10
    for kind in kinds:
        assert type(error_from_problem({"error": kind.__name__, "message": "m"})) is kind


def test_missing_blobs() -> None:
    assert wire.missing_blobs({"missing": ["a", "b"]}) == ["a", "b"]
    assert wire.missing_blobs({}) == []
