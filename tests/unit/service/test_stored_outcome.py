"""How attempts and items ended, as records of the store, and back."""

from __future__ import annotations

import json

import pytest

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.control_plane.store import ItemStatus, NewItem, Outcome, StoredItem
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import (
    decode_completion,
    decode_result,
    encode_outcome,
    had_value,
)


@pytest.mark.parametrize(
    "result",
    [
        CallResult("t", 1, "succeeded"),
        CallResult("t", 1, "succeeded", b""),
        CallResult("t", 3, "succeeded", b"value", took=0.0, started_at=0.0),
        CallResult("t", 1, "cancelled"),
        CallResult("t", 2, "failed", b"e", FailureClass.USER, "ValueError", "USER", "bad", "tb", 1.5, member=0),
        CallResult("t", 2, "failed", None, FailureClass.CLUSTER, "ClusterLostError", message="caf\udce9"),
    ],
)
def test_a_result_comes_back(result: CallResult) -> None:
    stored = encode_outcome(result)
    assert (stored.item_id, stored.attempt) == ("t", result.attempt)
    assert stored.digest == (None if result.payload is None else digest_of(result.payload))
    assert decode_result(stored, result.payload) == result
    assert had_value(stored) is (result.payload is not None)
    assert had_value(stored._replace(digest=None)) is (result.payload is not None), "its value was forgotten"


def test_the_value_is_not_in_the_record() -> None:
    assert b"secret" not in encode_outcome(CallResult("t", 1, "succeeded", b"secret")).document


def test_unknown_fields_of_a_later_version_are_ignored() -> None:
    stored = encode_outcome(CallResult("t", 1, "succeeded"))
    more = json.dumps({**json.loads(stored.document), "colour": "red", "v": 2}).encode()
    assert decode_result(Outcome("t", 1, more), None) == CallResult("t", 1, "succeeded")


def stored(state: TaskState, rest: bytes) -> StoredItem:
    new = NewItem(id="t", number=1, kind="task", name="n", owner="", submitted_at=1.0, description=b"{}")
    return StoredItem(new, ItemStatus("t", state, 2, "mac", rest=rest))


def test_the_last_word_comes_back() -> None:
    output = {"task_id": "t", "state": "FAILED", "attempt": 2, "cluster": "mac", "error": "X", "message": "m"}
    found = decode_completion(stored(TaskState.FAILED, json.dumps({"completion": output}).encode()))
    assert found == Complete("t", TaskState.FAILED, 2, "mac", "X", "m")
    assert found is not None
    assert isinstance(found.state, TaskState)


def test_there_is_none_while_it_is_not_over() -> None:
    assert decode_completion(stored(TaskState.RUNNING, b"{}")) is None


def test_one_that_was_written_without_it_has_one_all_the_same() -> None:
    assert decode_completion(stored(TaskState.CANCELLED, b"{}")) == Complete("t", TaskState.CANCELLED, 2, "mac")
