"""Handles: safe from any thread, awaitable, and what get() and wait() make of them."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.handle import Handle, JobHandle, TaskHandle
from ray_multicluster_scheduler.app.client_api.item import Item, Outcome
from ray_multicluster_scheduler.app.client_api.submit_task import get, wait
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    TaskCancelledError,
    TaskSubmissionError,
    TaskTimeoutError,
)
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.scheduler.connection.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, Transition
from tests.unit.lifecycle.driver import job, task


class Scheduler:
    """As much of a UnifiedScheduler as a handle asks for."""

    def explain(self, item_id: str) -> dict[str, Any]:
        return {"sentence": "no room on mac"}


def handle(task_id: str = "t1", kind: type[Handle] = TaskHandle) -> Any:
    item = Item(job(task_id) if kind is JobHandle else task(task_id))
    return kind(item, Scheduler())  # type: ignore[arg-type]


def succeed(one: Handle, value: object = 42) -> None:
    result = CallResult(one.id, 1, "succeeded", pickling.dumps(value))
    one._item.ended(Outcome(Complete(one.id, TaskState.SUCCEEDED, 1, "mac"), result))


def fail(one: Handle, error: Exception) -> None:
    result = CallResult(one.id, 1, "failed", pickling.dumps(error), FailureClass.USER, message=str(error))
    one._item.ended(Outcome(Complete(one.id, TaskState.FAILED, 1, "mac"), result))


def later(seconds: float, work: Any, *args: Any) -> threading.Timer:
    timer = threading.Timer(seconds, work, args)
    timer.start()
    return timer


def test_a_handle_follows_its_item() -> None:
    one = handle()
    assert (one.id, one.accepted, one.state, one.cluster, one.attempt, one.done()) == (
        "t1",
        False,
        TaskState.PENDING,
        None,
        0,
        False,
    )
    assert repr(one) == "<TaskHandle t1 PENDING>"
    one._item.moved(Transition("t1", 1, TaskState.RUNNING, 1, 0.0, "STARTED", "started", "mac"))
    assert (one.accepted, one.state, one.cluster, one.attempt) == (True, TaskState.RUNNING, "mac", 1)
    assert repr(one) == "<TaskHandle t1 RUNNING on 'mac'>"
    succeed(one)
    assert (one.done(), one.state, one.cluster) == (True, TaskState.SUCCEEDED, "mac")


def test_result_and_exception() -> None:
    good, bad = handle(), handle("t2")
    succeed(good, [1, 2])
    fail(bad, ValueError("bad"))
    assert (good.result(), good.exception()) == ([1, 2], None)
    with pytest.raises(ValueError, match="bad"):
        bad.result()
    assert isinstance(bad.exception(), ValueError)


def test_an_end_comes_once() -> None:
    one = handle()
    succeed(one, 1)
    succeed(one, 2)
    assert one.result() == 1


def test_waiting_ends_when_another_thread_ends_it() -> None:
    one = handle()
    timer = later(0.05, succeed, one)
    assert one.result(5) == 42
    timer.join()


def test_a_time_out_says_why_it_still_waits_and_leaves_it_alone() -> None:
    one = handle()
    with pytest.raises(TaskTimeoutError, match=r"t1 is not over after 0.01 s; it is PENDING: no room on mac") as caught:
        one.result(0.01)
    assert caught.value.task_id == "t1"
    assert not one.done()
    with pytest.raises(TimeoutError):
        one.exception(0)


def test_a_handle_cannot_be_sent_away() -> None:
    for dumps in (pickle.dumps, pickling.dumps):
        with pytest.raises(TaskSubmissionError, match="handle of t1") as caught:
            dumps(handle())
        assert "pass that" in str(caught.value.next_step)


def test_the_value_of_a_job_is_its_status() -> None:
    one = handle("j1", JobHandle)
    one._item.ended(Outcome(Complete("j1", TaskState.SUCCEEDED, 1, "mac"), None))
    assert one.result() == "SUCCEEDED"
    other = handle("j2", JobHandle)
    other._item.ended(Outcome(Complete("j2", TaskState.CANCELLED, 1, "mac", "TaskCancelledError", "stopped"), None))
    with pytest.raises(TaskCancelledError, match="stopped"):
        other.result()


async def test_a_handle_can_be_awaited_by_many() -> None:
    one = handle()

    async def ask() -> object:
        return await one

    asking = [asyncio.create_task(ask()) for _ in range(3)]
    await asyncio.sleep(0)
    timer = later(0.02, succeed, one)
    assert await asyncio.gather(*asking) == [42, 42, 42]
    assert await one == 42
    timer.join()


async def test_giving_up_an_await_leaves_the_item_alone() -> None:
    one = handle()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await one
    succeed(one)
    assert await one == 42
    bad = handle()
    fail(bad, KeyError("k"))
    with pytest.raises(KeyError):
        await bad


def test_get_keeps_the_order_and_raises_the_first_error() -> None:
    many = [handle(f"t{number}") for number in range(3)]
    for number in (2, 0, 1):
        succeed(many[number], number)
    assert get(many) == [0, 1, 2]
    assert get(many[1]) == 1
    assert get([]) == []
    bad = handle()
    fail(bad, ValueError("bad"))
    with pytest.raises(ValueError):
        get([many[0], bad])


def test_the_time_of_get_is_for_all_of_them_together() -> None:
    began = time.monotonic()
    with pytest.raises(TaskTimeoutError):
        get([handle(f"t{number}") for number in range(5)], timeout=0.1)
    assert time.monotonic() - began < 2
    done = handle()
    succeed(done)
    assert get([done], timeout=0) == [42]


def test_wait_gives_what_is_over_and_what_is_not() -> None:
    many = [handle(f"t{number}") for number in range(4)]
    succeed(many[2])
    assert wait(many) == ([many[2]], [many[0], many[1], many[3]])
    timer = later(0.05, fail, many[0], ValueError("x"))
    assert wait(many, num_returns=2, timeout=5) == ([many[0], many[2]], [many[1], many[3]])
    timer.join()
    assert wait(many, num_returns=4, timeout=0.02) == ([many[0], many[2]], [many[1], many[3]])
    assert wait(many, num_returns=3, timeout=0) == ([many[0], many[2]], [many[1], many[3]])
    assert wait([]) == ([], [])


def test_wait_counts_a_handle_once() -> None:
    one, other = handle(), handle("t2")
    succeed(one)
    with pytest.raises(ConfigurationError, match="with 2 handles"):
        wait([one, one, other], num_returns=3)
    assert wait([one, one, other], num_returns=1) == ([one], [other])


@pytest.mark.parametrize("wrong", ["t1", 5, None])
def test_what_is_no_handle_is_refused(wrong: Any) -> None:
    for verb in (wait, get):
        with pytest.raises(ConfigurationError, match="is not a handle"):
            verb([wrong])


@pytest.mark.parametrize("number", [0, -1, 2])
def test_num_returns_has_bounds(number: int) -> None:
    with pytest.raises(ConfigurationError, match=f"num_returns is {number}"):
        wait([handle()], num_returns=number)


def test_waiting_for_a_change_of_state() -> None:
    one = handle()
    done = threading.Event()

    def watch() -> None:
        one._item.wait_for_change(TaskState.PENDING)
        done.set()

    thread = threading.Thread(target=watch)
    thread.start()
    assert not done.wait(0.05)
    one._item.moved(Transition("t1", 1, TaskState.QUEUED, 0, 0.0, "QUEUED", "waits"))
    assert done.wait(5)
    thread.join()
