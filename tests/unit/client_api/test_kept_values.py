"""keep="cluster": the value stays where it was made, until somebody asks for it or nobody can."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.arguments.arguments import prepare_arguments
from ray_multicluster_scheduler.app.client_api.handles.handle import TaskHandle
from ray_multicluster_scheduler.app.client_api.options import kept_where
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import ConfigurationError, ResultLostError
from ray_multicluster_scheduler.scheduler.connection.cluster_link import CallResult
from tests.support.fake_link import FakeLink
from tests.unit.client_api.control_plane import ControlPlane, until
from tests.unit.lifecycle.driver import task


class Plane(ControlPlane):
    """Whose cluster keeps values."""

    def __init__(self) -> None:
        super().__init__()
        self.link = FakeLink("mac", self.runtime.collector)
        self.runtime.links.existing = lambda cluster: self.link if cluster == "mac" else None  # type: ignore[method-assign, assignment]  # a fake

    def kept(self, task_id: str, value: Any, by: str = "agent-1") -> TaskHandle:
        """A task whose value stayed in the cluster."""
        handle = self.task(task_id)
        self.link.values[task_id, 1] = pickling.dumps(value)
        result = CallResult(task_id, 1, "succeeded", kept=5, kept_by=by)
        self.runtime.ask(lambda: self.runtime.collector.finished("mac", result))
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


def test_it_is_let_go_when_nobody_can_ask_for_it(plane: Plane) -> None:
    handle = plane.kept("t1", 1)
    del handle
    gc.collect()
    until(lambda: plane.link.let_go_of == [("t1", 1)])


def test_that_of_an_agent_that_has_ended_is_lost(plane: Plane) -> None:
    handle = plane.kept("t1", 1, by="one before")
    with pytest.raises(ResultLostError, match="the agent that kept it has ended"):
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
    assert plane.runtime.shelf.objects_of("t2") == [("result-t1", pickling.dumps([1, 2]))]
    assert plane.link.let_go_of == [("t1", 1)]
    plane.link.values.clear()
    assert source.result() == [1, 2]
    assert taker.outcome is None


def test_one_that_is_lost_fails_whoever_needs_it(plane: Plane) -> None:
    source = plane.kept("t1", 1)
    plane.link.values.clear()
    taker = TaskHandle(
        plane.runtime.submit(plane.with_payload(task("t2")), prepare_arguments((source,), {}, "f")), plane.runtime
    )
    with pytest.raises(ResultLostError, match=r"the value of t1, cannot be had: .*the test has none"):
        taker.result(5)


def test_there_is_one_word_for_it() -> None:
    assert (kept_where(None), kept_where("cluster")) == (None, "cluster")
    for wrong in ("there", True, 1):
        with pytest.raises(ConfigurationError, match="keep is"):
            kept_where(wrong)
