"""A value that is not kept any more: a caller that asks gets an error, and nothing else stops because of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import ResultLostError, StoreError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.outcome import VALUE_FORGOTTEN, error_of, value_of
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import SubmitRequest
from tests.unit.client_api.control_plane import until
from tests.unit.service.service_plane import CPUS, ServicePlane, a_task, running

pytestmark = pytest.mark.usefixtures("leak_check")


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ServicePlane]:
    with ServicePlane(tmp_path / "state", kept_finished=0) as plane:
        yield plane


def forget_values(plane: ServicePlane) -> None:
    plane.store.expire_payloads(math.inf)
    plane.store.delete_unused_blobs()
    plane.store.delete_unused_blobs()  # what was put lately is spared once


def over(plane: ServicePlane, task_id: str, value: object) -> None:
    plane.finish(running(plane.taken(a_task(task_id))), pickling.dumps(value))


def test_deleted_value_is_lost_but_history_stays(plane: ServicePlane) -> None:
    over(plane, "t", "value")
    forget_values(plane)
    found = plane.find_item("t")
    assert isinstance(found, Item)
    assert found.state is TaskState.SUCCEEDED
    assert found.outcome is not None
    assert found.outcome.result is not None
    assert found.outcome.result.code == VALUE_FORGOTTEN
    with pytest.raises(ResultLostError, match="keep_payloads_s"):
        value_of(found.outcome)


def test_one_that_never_had_a_value_has_lost_none(plane: ServicePlane) -> None:
    plane.finish(running(plane.taken(a_task("t"))), None)
    forget_values(plane)
    found = plane.find_item("t")
    assert found is not None
    assert found.outcome is not None
    assert value_of(found.outcome) is None


# ---- as arguments


def test_it_cannot_be_an_argument_any_more(plane: ServicePlane) -> None:
    over(plane, "old", "value")
    waits = running(plane.taken(a_task("new")))
    forget_values(plane)
    for objects in (["result-old"], ["result-old", "result-new"]):
        (refused,) = plane.accept(SubmitRequest(a_task("t"), objects))
        assert isinstance(refused, ResultLostError)
        assert "old" in str(refused)
    plane.finish(waits)
    assert plane.runtime.refusal is None
    assert plane.taken(a_task("t")).id == "t"


@pytest.mark.parametrize("forget", [forget_values, lambda plane: plane.store.expire(math.inf, 0)])
def test_who_still_waits_with_it_fails_after_a_restart_and_the_service_starts(
    plane: ServicePlane, forget: Callable[[ServicePlane], object]
) -> None:
    over(plane, "old", "value")
    live = running(plane.taken(a_task("live")))
    plane.taken(a_task("waits"), ["result-old", "result-live"])
    runs = running(plane.taken(a_task("runs"), ["result-old"]))
    forget(plane)
    plane.restart()
    until(lambda: (found := plane.find_item("waits")) is not None and found.done())
    found = plane.find_item("waits")
    assert found is not None
    assert found.outcome is not None
    assert "old" in str(error_of(found.outcome))
    for item in (live, runs):  # these have begun, and need nothing any more
        until(lambda item=item: item.id in {one.task_id for one in plane.adopted})
        again = plane.runtime.item(item.id)
        assert again is not None
        plane.finish(again)


def test_who_is_queued_with_it_is_not_sent_after_a_restart(plane: ServicePlane) -> None:
    over(plane, "old", "value")
    running(plane.taken(a_task("wide", CPUS)))
    item = plane.taken(a_task("queued", CPUS), ["result-old"])
    until(lambda: item.state is TaskState.QUEUED)
    forget_values(plane)
    plane.restart()
    assert not plane.runtime.call_and_wait(lambda: plane.runtime.payload_cache.is_at_hand(a_task("queued")))
    with pytest.raises(StoreError, match="not in the store"):
        plane.runtime.call_and_wait(lambda: plane.runtime.payload_cache.objects_of("queued"))
