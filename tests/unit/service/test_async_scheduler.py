"""AsyncScheduler with a control plane of its own and with a service: the same shape, and nothing holds the loop up."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ray_multicluster_scheduler as api
from ray_multicluster_scheduler.app.client_api.async_scheduler import AsyncScheduler
from ray_multicluster_scheduler.app.client_api.blocking_call_threads import BlockingCallThreads
from ray_multicluster_scheduler.app.client_api.handles.handle import Handle
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.context_manager import ClusterContextManager
from ray_multicluster_scheduler.common.current_item import CurrentItem, set_current
from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    TaskCancelledError,
    TaskTimeoutError,
    UnknownItemError,
)
from ray_multicluster_scheduler.common.model import TaskState
from tests.unit.client_api.control_plane import until
from tests.unit.service.async_world import World, async_world
from tests.unit.service.http_service import HttpService

pytestmark = pytest.mark.usefixtures("leak_check")


@pytest.fixture(params=["its own", "a service"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with async_world(tmp_path if request.param == "a service" else None) as made:
        yield made


def test_every_verb_is_there_and_takes_the_same() -> None:
    verbs = {name for name, verb in inspect.getmembers(UnifiedScheduler, callable) if not name.startswith("_")}
    for verb in sorted(verbs):
        twin = getattr(AsyncScheduler, verb)
        if verb not in {"events", "get_job_logs"}:  # these are awaited or iterated, as the caller likes
            assert inspect.iscoroutinefunction(twin) or inspect.isasyncgenfunction(twin), verb
            ours, theirs = (inspect.signature(one).parameters for one in (twin, getattr(UnifiedScheduler, verb)))
            assert [(one.name, one.default) for one in ours.values()] == [
                (one.name, one.default) for one in theirs.values()
            ], verb


async def test_a_task_from_submission_to_its_value(world: World) -> None:
    scheduler = world.scheduler
    handle = await scheduler.submit_task_async(len, ("abc",), name="one")
    running = asyncio.create_task(scheduler.submit_task(len, ("ab",), name="two"))
    await asyncio.to_thread(world.finish, handle, 3)
    assert await handle == 3
    assert await scheduler.get(handle) == 3
    (other,) = [one for one in await scheduler.unfinished() if one.task.name == "two"]
    two = await scheduler.handle(other.id)
    assert isinstance(two, Handle)
    await asyncio.to_thread(world.finish, two, 2)
    assert await running == 2
    assert (await scheduler.explain(handle))["state"] == "SUCCEEDED"
    assert [row["name"] for row in await scheduler.list_clusters()] == ["mac"]
    with pytest.raises(UnknownItemError):
        await scheduler.explain("task-none-1")


async def test_many_are_got_and_waited_for_without_threads(world: World) -> None:
    scheduler = world.scheduler
    handles = [await scheduler.submit_task_async(len, ("a",), resource_requirements={"CPU": 0.1}) for _ in range(20)]
    all_of_them = [asyncio.create_task(scheduler.get(handles)) for _ in range(20)]
    first = asyncio.create_task(scheduler.wait(handles, num_returns=1))
    await asyncio.sleep(0.05)
    assert sum("rmcs-async" in one.name for one in threading.enumerate()) <= 8
    await asyncio.to_thread(world.finish, handles[7], 7)
    over, rest = await first
    assert (over, len(rest)) == ([handles[7]], 19)
    for number, one in enumerate(handles):
        if number != 7:
            await asyncio.to_thread(world.finish, one, number)
    assert await asyncio.gather(*all_of_them) == [list(range(20))] * 20
    assert await scheduler.wait(handles, num_returns=20) == (handles, [])


async def test_the_first_error_is_raised_before_the_others_are_over(world: World) -> None:
    slow = await world.scheduler.submit_task_async(len, ("a",))
    bad = await world.scheduler.submit_task_async(len, ("b",))
    waiting = asyncio.create_task(world.scheduler.get([slow, bad], timeout=60))
    await asyncio.to_thread(world.fail, bad, ValueError("bad"))
    with pytest.raises(ValueError, match="bad"):
        await waiting
    with pytest.raises(ValueError, match="bad"):
        await world.scheduler.get(bad)
    await asyncio.to_thread(world.finish, slow, 1)


async def test_time_is_over(world: World) -> None:
    one = await world.scheduler.submit_task_async(len, ("a",))
    with pytest.raises(TaskTimeoutError, match=r"0\.05 s"):
        await world.scheduler.get(one, timeout=0.05)
    with pytest.raises(TaskTimeoutError, match=r"0\.05 s"):
        await world.scheduler.get([one], timeout=0.05)
    assert await world.scheduler.wait([one], timeout=0.05) == ([], [one])
    assert not one._item._watchers
    await asyncio.to_thread(world.finish, one, 1)


async def test_a_cancelled_coroutine_leaves_the_work_alone(world: World) -> None:
    one = await world.scheduler.submit_task_async(len, ("a",))

    async def awaits() -> Any:
        return await one

    for waits in (awaits(), world.scheduler.get([one]), world.scheduler.get(one), world.scheduler.wait([one])):
        waiting = asyncio.ensure_future(waits)
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert not one.done()
    assert not one._item._watchers
    await asyncio.to_thread(world.finish, one, 1)
    assert await one == 1


async def test_a_submission_whose_coroutine_is_cancelled_is_carried_out(world: World) -> None:
    submitting = asyncio.create_task(world.scheduler.submit_task(len, ("a",), name="alone"))
    await asyncio.sleep(0)
    submitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submitting
    await asyncio.to_thread(until, lambda: [one.task.name for one in world.plain.unfinished()] == ["alone"])
    (item,) = world.plain.unfinished()
    await world.scheduler.cancel(item.id)
    with pytest.raises(TaskCancelledError):
        await world.scheduler.get(world.plain.handle(item.id))  # type: ignore[arg-type]  # a task


async def test_events_are_received(world: World) -> None:
    async with await world.scheduler.events(types="transition", state="SUCCEEDED") as events:
        one = await world.scheduler.submit_task_async(len, ("a",))
        await asyncio.to_thread(world.finish, one, 1)
        assert (await anext(events))["id"] == one.id


async def test_events_need_not_be_awaited_first(world: World) -> None:
    wanted = {"types": "transition", "state": "SUCCEEDED"}
    async with world.scheduler.events(**wanted) as inside:
        events = world.scheduler.events(**wanted)
        hearing = asyncio.ensure_future(anext(events))
        await events  # it has begun; what came before is not heard
        one = await world.scheduler.submit_task_async(len, ("a",))
        await asyncio.to_thread(world.finish, one, 1)
        assert (await anext(inside))["id"] == (await hearing)["id"] == one.id
        assert await events is await events
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        waiting.cancel()
        events.close()
        assert [event async for event in events] == []
    never = world.scheduler.events(**wanted)
    never.close()
    assert [event async for event in never] == []
    with pytest.raises(ConfigurationError):
        async for _ in world.scheduler.events(types="nothing of the kind"):
            pass


async def test_values_that_are_several_or_none(world: World) -> None:
    pair = await world.scheduler.submit_task_async(divmod, (7, 2), num_returns=2)
    await asyncio.to_thread(until, lambda: pair[0].state is TaskState.RUNNING)
    whole = world.plain.handle(pair[0]._item.id)
    assert isinstance(whole, Handle)
    await asyncio.to_thread(world.finish, whole, (3, 1))
    assert await world.scheduler.get(pair) == [3, 1]
    assert await world.scheduler.get([]) == []


async def test_wrong_arguments_are_refused_as_elsewhere(world: World) -> None:
    one = await world.scheduler.put(5)
    with pytest.raises(ConfigurationError, match="not a handle"):
        await world.scheduler.get([1])  # type: ignore[list-item]  # on purpose
    with pytest.raises(ConfigurationError, match="timeout"):
        await world.scheduler.get(one, timeout="soon")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ConfigurationError, match="not a list"):
        await world.scheduler.wait(one)  # type: ignore[arg-type]  # on purpose
    assert await world.scheduler.get([one, one]) == [5, 5]


async def test_the_preferred_cluster_is_carried(world: World) -> None:
    with ClusterContextManager.use("mac"):
        one = await world.scheduler.submit_task_async(len, ("a",))
    assert world.plain.unfinished()[0].task.preferred_cluster == "mac"
    await asyncio.to_thread(world.finish, one, 1)


async def test_with_a_block_around_it(tmp_path: Path) -> None:
    with HttpService(tmp_path, works=True, auth="token") as service:
        async with AsyncScheduler(address=service.address, token=service.token) as scheduler:
            assert scheduler.address == service.address
            assert await scheduler.submit_task(str.upper, ("a",)) == "A"
            assert await scheduler.submit_task(divmod, (7, 2), num_returns=2) == [3, 1]
            job = await scheduler.submit_job("ls", submission_id="weekly")
            assert await (await scheduler.handle(job)) == "SUCCEEDED"  # type: ignore[misc]  # a job's
            assert (await scheduler.plan({"CPU": 1})).cluster == "mac"
            assert await scheduler.drain("mac", 5) is True
        await scheduler.shutdown()
        assert scheduler._scheduler._runtime is None


async def test_the_end_does_not_hold_the_loop_up(world: World) -> None:
    one = await world.scheduler.submit_task_async(len, ("a",))
    await asyncio.to_thread(until, lambda: one.state is TaskState.RUNNING)
    ending = asyncio.create_task(world.scheduler.shutdown(drain=True))
    await asyncio.sleep(0.1)
    assert not ending.done()
    await asyncio.to_thread(world.finish, one, 1)
    await ending


def test_inside_a_cluster_it_is_refused() -> None:
    set_current(CurrentItem("task-1", 1, 7, "mac"))
    try:
        with pytest.raises(ConfigurationError, match="inside cluster 'mac'"):
            api.AsyncScheduler()
    finally:
        set_current(None)


def test_one_of_the_two_is_given() -> None:
    plain = UnifiedScheduler(address="http://127.0.0.1:9", token="rmcs_x_y")
    with pytest.raises(ConfigurationError, match="Both a scheduler"):
        AsyncScheduler(scheduler=plain, address="http://127.0.0.1:9")


async def test_a_call_that_takes_long_does_not_stop_the_others() -> None:
    threads, gate = BlockingCallThreads(most=2), threading.Event()
    long = [asyncio.create_task(threads.run_on_own_thread(gate.wait, 120)) for _ in range(5)]
    began = time.monotonic()
    assert await asyncio.gather(*(threads.call(pow, 2, number) for number in range(50))) == [2**n for n in range(50)]
    assert time.monotonic() - began < 60
    gate.set()
    assert await asyncio.gather(*long) == [True] * 5
    with pytest.raises(RuntimeError, match="StopIteration"):
        await threads.call(next, iter(()))
    threads.close()
    await asyncio.to_thread(until, lambda: threads._threads == 0)
    assert await threads.call(abs, -1) == 1
    threads.close()
