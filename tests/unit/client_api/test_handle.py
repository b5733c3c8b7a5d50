"""Handles: safe from any thread, awaitable, and what get() and wait() make of them."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.handles.collecting import get, wait
from ray_multicluster_scheduler.app.client_api.handles.handle import Handle, JobHandle, PartHandle, TaskHandle
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    TaskCancelledError,
    TaskSubmissionError,
    TaskTimeoutError,
)
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.events import AttemptFinished, DispatchRefused
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, Dispatch, Transition
from tests.unit.client_api.control_plane import ControlPlane, until
from tests.unit.lifecycle.driver import job, task


def handle(task_id: str = "t1", kind: type[Handle] = TaskHandle) -> Any:
    item = Item(job(task_id) if kind is JobHandle else task(task_id))
    unavailable = SimpleNamespace(in_forked_child=False)  # no control plane: the test moves the item
    return kind(item, unavailable)


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
    assert (one.id, one.accepted(0), one.state, one.cluster, one.attempt, one.done()) == (
        "t1",
        False,
        TaskState.PENDING,
        None,
        0,
        False,
    )
    assert repr(one) == "<TaskHandle t1 PENDING>"
    one._item.moved(Transition("t1", 1, TaskState.RUNNING, 1, 0.0, "STARTED", "started", "mac"))
    assert (one.accepted(0), one.state, one.cluster, one.attempt) == (True, TaskState.RUNNING, "mac", 1)
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
    assert one.result(60) == 42
    timer.join()


def test_a_time_out_says_why_it_still_waits_and_leaves_it_alone() -> None:
    with ControlPlane() as plane:
        plane.task("t0", cpus=8)
        one = plane.submit(task("t1", cpus=8))
        until(lambda: "8 CPU" in str(one.explain()["sentence"]))
        with pytest.raises(TaskTimeoutError, match=r"t1 .*0.05 s; it is QUEUED: .*8 CPU") as caught:
            one.result(0.05)
        assert caught.value.task_id == "t1"
        assert not one.done()
        with pytest.raises(TimeoutError):
            one.exception(0)


def test_a_handle_cannot_be_sent_away() -> None:
    for dumps in (pickle.dumps, pickling.dumps):
        for what in (handle(), [handle()], {"a": handle()}):
            with pytest.raises(TaskSubmissionError, match="handle of t1") as caught:
                dumps(what)
            assert "pass it to a task" in str(caught.value.next_step)


def test_a_copy_is_the_handle_itself() -> None:
    one = handle()
    assert copy.copy(one) is one
    assert copy.deepcopy({"a": [one]}) == {"a": [one]}


class TestParts:
    def test_each_has_its_own_value_and_all_one_fate(self) -> None:
        first, second = PartHandle.split(handle(), 2)
        assert (first.id, second.id, repr(second)) == ("t1.0", "t1.1", "<PartHandle t1.1 PENDING>")
        succeed(first, ["a", "b"])
        assert (first.result(), second.result(), second.exception()) == ("a", "b", None)
        bad, _ = PartHandle.split(handle(), 2)
        fail(bad, KeyError("k"))
        with pytest.raises(KeyError):
            bad.result()

    @pytest.mark.parametrize(("value", "says"), [([1], "1 values"), ([1, 2, 3], "3 values"), (5, "a int")])
    def test_a_wrong_number_of_values_is_reported_at_each(self, value: object, says: str) -> None:
        parts = PartHandle.split(handle(), 2)
        succeed(parts[0], value)
        for part in parts:
            with pytest.raises(ValueError, match=f"t1 returned {says}, but num_returns is 2"):
                part.result()
            assert isinstance(part.exception(), ValueError)

    def test_cancelling_one_cancels_the_task(self) -> None:
        with ControlPlane() as plane:
            first, second = PartHandle.split(plane.task("t1"), 2)
            second.cancel()
            with pytest.raises(TaskCancelledError):
                first.result(60)
            assert first.explain()["id"] == "t1"
            assert first.logs() == ""


class TestMemory:
    def test_dropping_the_handle_of_a_running_task_does_not_end_it(self) -> None:
        with ControlPlane() as plane:
            plane.task("t1")
            gc.collect()
            item = plane.runtime.item("t1")
            assert item is not None
            assert item.state is TaskState.RUNNING
            plane.finish(TaskHandle(item, plane.runtime))

    def test_finished_ones_that_are_dropped_free_their_memory(self) -> None:
        class Quick(ControlPlane):
            """What is placed ends at once."""

            def dispatch(self, orders: list[Dispatch]) -> None:
                super().dispatch(orders)
                for order in orders:
                    self.post(AttemptFinished(order.task_id, order.attempt, "succeeded"))

        with Quick() as plane:
            handles = [plane.submit(plane.with_payload(task(f"t{number}", cpus=0))) for number in range(3_000)]
            assert get(handles, timeout=120) == [None] * 3_000
            watched = [weakref.ref(one._item) for one in handles]
            del handles
            gc.collect()
            assert sum(ref() is not None for ref in watched) == 0
            assert len(plane.runtime.items.finished) == 0
            until(lambda: len(plane.runtime.payload_cache) == 0)


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


async def test_many_are_gathered() -> None:
    many = [handle(f"t{number}") for number in range(100)]
    timers = [later(0.01, succeed, one, number) for number, one in enumerate(many)]
    assert await asyncio.gather(*many) == list(range(100))
    for timer in timers:
        timer.join()


async def test_wait_for_and_a_cancelled_caller_leave_the_item_alone() -> None:
    one = handle()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(_awaited(one), 0.01)
    awaiting = asyncio.create_task(_awaited(one))
    await asyncio.sleep(0)
    awaiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await awaiting
    assert not one.done()
    assert not one._item._watchers
    succeed(one)
    assert await asyncio.wait_for(_awaited(one), 60) == 42


async def _awaited(one: Handle) -> Any:
    return await one


async def test_giving_up_an_await_leaves_the_item_alone() -> None:
    one = handle()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await one
    assert not one._item._watchers
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
    with ControlPlane() as plane:
        many = [plane.task(f"t{number}") for number in range(8)]
        began = time.monotonic()
        with pytest.raises(TaskTimeoutError):
            get(many, timeout=2)
        assert time.monotonic() - began < 14
    done = handle()
    succeed(done)
    assert get([done], timeout=0) == [42]


def test_wait_gives_what_is_over_and_what_is_not() -> None:
    many = [handle(f"t{number}") for number in range(4)]
    succeed(many[2])
    assert wait(many) == ([many[2]], [many[0], many[1], many[3]])
    timer = later(0.05, fail, many[0], ValueError("x"))
    assert wait(many, num_returns=2, timeout=60) == ([many[0], many[2]], [many[1], many[3]])
    timer.join()
    assert wait(many, num_returns=4, timeout=0.02) == ([many[0], many[2]], [many[1], many[3]])
    assert wait(many, num_returns=3, timeout=0) == ([many[0], many[2]], [many[1], many[3]])
    assert wait([]) == ([], [])


def test_wait_leaves_nothing_behind_at_what_goes_on() -> None:
    many = [handle(f"t{number}") for number in range(3)]
    succeed(many[0])
    for _ in range(10):
        wait(many, num_returns=3, timeout=0)
        wait(many, num_returns=1)
    for one in many:
        assert not one._item._watchers


def test_waiting_for_many() -> None:
    many = [handle(f"t{number}") for number in range(20_000)]
    for one in many[1:]:
        succeed(one, None)
    over, rest = wait(many, num_returns=len(many) - 1)
    assert (len(over), rest) == (19_999, many[:1])


def test_wait_counts_a_handle_once() -> None:
    one, other = handle(), handle("t2")
    succeed(one)
    with pytest.raises(ConfigurationError, match="the same handle was given twice and counts once: that is 2"):
        wait([one, one, other], num_returns=3)
    with pytest.raises(ConfigurationError, match="num_returns is 2, but the same handle was given twice"):
        wait([one, one], num_returns=2)
    with pytest.raises(ConfigurationError, match="num_returns is 4, with 3 handles"):
        wait([one, one, other], num_returns=4)
    assert wait([one, one, other], num_returns=1) == ([one], [other])


@pytest.mark.parametrize("wrong", ["t1", 5, None])
def test_non_handle_is_rejected(wrong: Any) -> None:
    for verb in (wait, get):
        with pytest.raises(ConfigurationError, match="is not a handle"):
            verb([wrong])


@pytest.mark.parametrize("number", [0, -1, 2])
def test_num_returns_has_bounds(number: int) -> None:
    with pytest.raises(ConfigurationError, match=f"num_returns is {number}"):
        wait([handle()], num_returns=number)


def test_waiting_for_a_change() -> None:
    one = handle()
    done = threading.Event()

    def watch() -> None:
        one._item.wait_for_change(None)
        done.set()

    thread = threading.Thread(target=watch)
    thread.start()
    assert not done.wait(0.05)
    one._item.moved(Transition("t1", 1, TaskState.QUEUED, 0, 0.0, "QUEUED", "waits"))
    assert done.wait(60)
    thread.join()
    one._item.wait_for_change(None)  # not missed by late watchers
    succeed(one)
    one._item.wait_for_change(one._item.transition)  # nor is the end


def followed(one: TaskHandle, received: list[str] | None = None) -> Future[list[str]]:
    """What it prints until it is over; ``heard`` has what came so far."""
    pieces: list[str] = [] if received is None else received

    def read() -> list[str]:
        for piece in one.follow_logs():
            pieces.append(piece)  # noqa: PERF402 - as they come
        return pieces

    pool = ThreadPoolExecutor(1)
    following = pool.submit(read)
    pool.shutdown(wait=False)
    return following


class TestFollowingATask:
    def test_one_that_ends_without_being_placed(self) -> None:
        with ControlPlane() as plane:
            plane.task("t0", cpus=8)
            waiting = plane.submit(task("t1", cpus=8))
            following = followed(waiting)
            waiting.cancel()
            assert following.result(60) == []

    def test_over_retries_to_the_end(self) -> None:
        with ControlPlane() as plane:
            one = plane.task("t1", retries=2)
            received: list[str] = []
            following = followed(one, received)
            plane.runtime.output.write("t1", 1, "stdout", "first ")
            until(lambda: received)  # a later watcher is notified of the newest attempt only
            plane.fail(one)
            until(lambda: (one.attempt, one.state) == (2, TaskState.RUNNING))
            plane.fail(one, 2)  # this one prints nothing
            until(lambda: (one.attempt, one.state) == (3, TaskState.RUNNING))
            plane.runtime.output.write("t1", 3, "stdout", "third")
            plane.finish(one, 3)
            assert following.result(60) == ["first ", "third"]
            assert one.logs() == "third"

    def test_one_whose_attempt_was_refused(self) -> None:
        with ControlPlane() as plane:
            one = plane.task("t1")
            following = followed(one)
            plane.post(DispatchRefused("t1", 1, FailureClass.PERMANENT, "NO", "no"))
            plane.post(AttemptFinished("t1", 1, "failed", FailureClass.PERMANENT, code="NO", sentence="no"))
            assert following.result(60) == []

    def test_one_that_is_abandoned(self) -> None:
        with ControlPlane() as plane:
            following = followed(plane.task("t1"))
        assert following.result(60) == []
