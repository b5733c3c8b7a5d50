"""keep="cluster": the value stays where it was made, until it is requested or nobody can request it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.arguments.arguments import prepare_arguments
from ray_multicluster_scheduler.app.client_api.executor.executor_calls import CallOptions
from ray_multicluster_scheduler.app.client_api.handles.handle import TaskHandle
from ray_multicluster_scheduler.app.client_api.in_cluster import options as native
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_function import RemoteFunction
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import ConfigurationError, ResultLostError, TaskTimeoutError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.model.task_description import content_key
from ray_multicluster_scheduler.control_plane.runtime.item import Outcome
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete
from tests.support.fake_link import FakeLink
from tests.unit.client_api.control_plane import ControlPlane, until
from tests.unit.lifecycle.driver import job, task


class Plane(ControlPlane):
    """Whose cluster keeps values."""

    def __init__(self) -> None:
        super().__init__()
        self.link = FakeLink("mac", self.runtime.collector)
        self.runtime.links.existing_link = lambda cluster: self.link if cluster == "mac" else None  # type: ignore[method-assign, assignment]  # a fake

    def kept(self, task_id: str, value: Any, by: str = "agent-1") -> TaskHandle:
        """A task whose value stayed in the cluster."""
        handle = self.task(task_id)
        self.link.values[task_id, 1] = pickling.dumps(value)
        result = CallResult(task_id, 1, "succeeded", kept=5, kept_by=by)
        self.runtime.call_and_wait(lambda: self.runtime.collector.finished("mac", result))
        until(handle.done)
        return handle


@pytest.fixture
def plane() -> Iterator[Plane]:
    with Plane() as plane:
        yield plane


def test_it_is_fetched_each_time_that_it_is_asked_for(plane: Plane) -> None:
    handle = plane.kept("t1", [1, 2])
    assert handle.result() == [1, 2]
    plane.link.values["t1", 1] = pickling.dumps("seen")
    assert handle.result() == "seen"
    assert not plane.link.let_go_of


def test_it_is_released_when_nobody_can_ask_for_it(plane: Plane) -> None:
    handle = plane.kept("t1", 1)
    del handle
    gc.collect()
    until(lambda: plane.link.let_go_of == [("t1", 1)])


def test_that_of_an_agent_that_has_ended_is_lost(plane: Plane) -> None:
    handle = plane.kept("t1", 1, by="one before")
    with pytest.raises(ResultLostError, match="agent .* has ended"):
        handle.result()
    assert handle.exception() is None, "it ran, and succeeded"


def test_after_the_end_it_is_lost(plane: Plane) -> None:
    handle = plane.kept("t1", 1)
    plane.runtime.close()
    with pytest.raises(ResultLostError, match="the scheduler was shut down"):
        handle.result()


def test_as_an_argument_it_comes_here_first_and_stays(plane: Plane) -> None:
    source = plane.kept("t1", [1, 2])
    taker = plane.runtime.submit(plane.with_payload(task("t2")), prepare_arguments((source,), {}, "f"))
    until(lambda: any(order.task_id == "t2" for order in plane.placed))
    assert plane.runtime.payload_cache.objects_of("t2") == [("result-t1", pickling.dumps([1, 2]))]
    assert plane.link.let_go_of == [("t1", 1)]
    plane.link.values.clear()
    assert source.result() == [1, 2]
    assert taker.outcome is None


def test_one_of_work_that_did_not_succeed_after_all_is_let_go(plane: Plane) -> None:
    item, result = plane.task("t1")._item, CallResult("t1", 1, "succeeded", kept=5, kept_by="agent-1")
    over = Outcome(Complete("t1", TaskState.CANCELLED, 1, "mac"), result)
    plane.runtime.call_and_wait(lambda: plane.runtime.kept_values.on_ended(item, over))  # type: ignore[arg-type]  # an Item
    assert plane.link.let_go_of == [("t1", 1)]


def test_nobody_waits_longer_than_asked_and_no_loop_is_held_up(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = plane.kept("t1", 1)
    gate = threading.Event()

    async def fetch(task_id: str, attempt: int) -> bytes:
        while not gate.is_set():
            await asyncio.sleep(0.005)
        return plane.link.values[task_id, attempt]

    monkeypatch.setattr(plane.link, "fetch", fetch)
    with pytest.raises(TaskTimeoutError, match=r"t1 has ended, and its value did not arrive from cluster 'mac' within"):
        handle.result(0.05)

    async def wait_for_it() -> Any:
        asyncio.get_running_loop().call_later(0.05, gate.set)  # never called if the wait blocks the loop
        return await handle

    assert asyncio.run(wait_for_it()) == 1


def test_many_that_need_it_at_once_get_it_once(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    source, fetched, real = plane.kept("t1", [1, 2]), [], plane.link.fetch

    async def fetch(task_id: str, attempt: int) -> bytes:
        fetched.append(task_id)
        await asyncio.sleep(0.01)
        return await real(task_id, attempt)

    monkeypatch.setattr(plane.link, "fetch", fetch)
    takers = [
        plane.runtime.submit(plane.with_payload(task(f"x{n}")), prepare_arguments((source,), {}, "f")) for n in range(8)
    ]
    assert source.result(60) == [1, 2]
    until(lambda: len(plane.placed) == 1 + len(takers))
    assert len(fetched) <= 2, "one for all takers, and one for a caller that asked before it was here"
    assert source.result(60) == [1, 2]


def test_what_is_equal_but_for_that_is_not_joined() -> None:
    assert content_key(task("t")) != content_key(task("t", keep="cluster"))


def test_a_decorated_function_with_it_can_be_mapped_and_used_inside() -> None:
    fn = RemoteFunction(len, keep="cluster")
    CallOptions(None, None, {}).merged_over(fn).check(None)
    assert "keep" not in native.task_options(None, {"keep": "cluster"}, "mac")


def test_it_is_for_tasks() -> None:
    with pytest.raises(ConfigurationError, match="which only a task can have"):
        replace(job("j"), keep="cluster")


def test_one_that_is_lost_fails_its_dependents(plane: Plane) -> None:
    source = plane.kept("t1", 1)
    plane.link.values.clear()
    taker = TaskHandle(
        plane.runtime.submit(plane.with_payload(task("t2")), prepare_arguments((source,), {}, "f")), plane.runtime
    )
    with pytest.raises(ResultLostError, match=r"the value of t1, cannot be fetched: .*the test has none"):
        taker.result(60)
