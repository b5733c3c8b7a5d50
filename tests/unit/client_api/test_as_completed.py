"""as_completed over handles, and the functions of concurrent.futures with handles instead of futures."""

from __future__ import annotations

import threading
from concurrent import futures
from typing import Any

import pytest

import ray_multicluster_scheduler
from ray_multicluster_scheduler.app.client_api.handles.as_completed import as_completed
from ray_multicluster_scheduler.app.client_api.handles.handle import PartHandle
from ray_multicluster_scheduler.common.exception import ConfigurationError, TaskTimeoutError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.runtime.item import Outcome
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete
from tests.unit.client_api.test_collecting import fail, handle, succeed


@pytest.mark.parametrize("function", [as_completed, futures.as_completed], ids=["ours", "concurrent.futures"])
class TestInOrderOfEnd:
    def test_each_comes_when_it_ends(self, function: Any) -> None:
        many = [handle(f"t{number}") for number in range(4)]
        succeed(many[2], 2)
        arriving = function(many, 60)
        assert next(arriving) is many[2]
        for number in (3, 0, 1):
            threading.Thread(target=succeed, args=(many[number], number)).start()
            assert next(arriving) is many[number]
        assert list(arriving) == []
        assert [one._item._watchers for one in many] == [None] * 4

    def test_failures_and_parts_come_too(self, function: Any) -> None:
        parts = PartHandle.split(handle("t1"), 2)
        bad = handle("t2")
        fail(bad, ValueError("bad"))
        succeed(parts[0], ("a", "b"))
        assert {one.id for one in function([*parts, bad, bad])} == {"t1.0", "t1.1", "t2"}

    def test_time_passes_for_all_together(self, function: Any) -> None:
        ended, missing = handle("t1"), handle("t2")
        succeed(ended)
        arriving = function([ended, missing], timeout=0.01)
        assert next(arriving) is ended
        with pytest.raises(TimeoutError):
            next(arriving)
        assert not missing._item._watchers

    def test_empty_input(self, function: Any) -> None:
        assert list(function([])) == []


def test_a_timeout_names_what_is_missing() -> None:
    with pytest.raises(TaskTimeoutError) as caught:
        list(as_completed([handle("t7")], timeout=0))
    assert caught.value.task_id == "t7"


@pytest.mark.parametrize("given", [None, 3, "t1", [3], [None]])
def test_non_handle_is_rejected_at_once(given: Any) -> None:
    with pytest.raises(ConfigurationError):
        as_completed(given)


def test_one_handle_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError):
        as_completed(handle())  # type: ignore[type-var]


def test_wait_of_concurrent_futures() -> None:
    many = [handle(f"t{number}") for number in range(3)]
    succeed(many[0])
    done, rest = futures.wait(many, return_when=futures.FIRST_COMPLETED)
    assert (done, rest) == ({many[0]}, {many[1], many[2]})
    done, rest = futures.wait(many, timeout=0)
    assert done == {many[0]}
    threading.Thread(target=fail, args=(many[1], ValueError("bad"))).start()
    done, _ = futures.wait(many, return_when=futures.FIRST_EXCEPTION)
    assert done == {many[0], many[1]}
    many[2]._item.ended(Outcome(Complete("t2", TaskState.CANCELLED, 0, None), None))
    done, rest = futures.wait(many)
    assert (len(done), rest) == (3, set())
    assert [one.cancelled() for one in many] == [False, False, True]


def test_an_end_between_the_check_and_the_wait_is_not_lost() -> None:
    """concurrent.futures reads the state, then installs its waiter, both under the future's lock."""
    one = handle()
    with one._condition:
        assert one._state == "PENDING"
        succeed(one)
        assert one._state == "PENDING"
        seen: list[Any] = []
        waiter: Any = type("Waiter", (), {"add_result": lambda _, ended: seen.append(ended)})()
        one._waiters.append(waiter)
    assert seen == [one]
    assert one._state == "FINISHED"


def test_it_is_public() -> None:
    assert ray_multicluster_scheduler.as_completed is as_completed
