"""In the child of a fork the control plane's thread does not exist: nobody there waits for it, or for its locks."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.handles.collecting import wait
from ray_multicluster_scheduler.common.exception import SchedulerError
from tests.unit.client_api.actor_plane import ActorPlane
from tests.unit.client_api.control_plane import ControlPlane


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Callable[[ControlPlane], None]:
    """Makes a control plane take this process for such a child."""
    return lambda plane: monkeypatch.setattr(plane.runtime, "_process", -1)


def in_time(work: Callable[[], Any]) -> Any:
    """What it returns or raises; fails instead of waiting for ever."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(work).result(60)
    finally:
        pool.shutdown(wait=False)


def test_wait(plane: ActorPlane, forked: Callable[[ControlPlane], None]) -> None:
    done, going = plane.task("t1"), plane.task("t2")
    plane.finish(done)
    forked(plane)
    assert in_time(lambda: wait([going, done])) == ([done], [going]), "nothing to wait for"
    with pytest.raises(SchedulerError, match=r"t2 was .* forked from"):
        in_time(lambda: wait([done, going], num_returns=2, timeout=20))


def test_callbacks(plane: ActorPlane, forked: Callable[[ControlPlane], None]) -> None:
    going = plane.task("t1")
    forked(plane)
    with pytest.raises(SchedulerError, match=r"t1 was .* forked from"):
        going.add_done_callback(print)


def test_output_of_what_goes_on(plane: ActorPlane, forked: Callable[[ControlPlane], None]) -> None:
    followed = [plane.task("t1"), plane.job("j1"), plane.actor()]
    forked(plane)
    for one in followed:
        with pytest.raises(SchedulerError, match=r"was .* forked from"):
            in_time(lambda one=one: list(one.follow_logs()))


def test_output_of_what_is_over(plane: ActorPlane, forked: Callable[[ControlPlane], None]) -> None:
    done = plane.task("t1")
    plane.runtime.output.write("t1", 1, "stdout", "hello")
    plane.finish(done)
    forked(plane)
    assert in_time(lambda: list(done.follow_logs())) == ["hello"]


def test_nobody_waits_for_a_gate_that_was_held_at_the_fork(
    plane: ActorPlane, forked: Callable[[ControlPlane], None]
) -> None:
    task, actor = plane.task("t1"), plane.actor()
    runtime = plane.runtime
    forked(plane)
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with runtime.gate:
            held.set()
            let_go.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(60)
        for ask in (task.cancel, actor.kill, lambda: runtime.run(asyncio.sleep(0)), lambda: runtime.call_and_wait(int)):
            with pytest.raises(SchedulerError, match="forked from"):
                in_time(ask)
        in_time(lambda: runtime.call_soon(print, "never said"))
        in_time(lambda: runtime.spawn(asyncio.sleep(0)))
    finally:
        let_go.set()
        holder.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_what_is_over_calls_back_in_a_real_child(plane: ActorPlane) -> None:
    """The threads that call back in the parent are not there."""
    done, called = plane.task("t1"), threading.Event()
    plane.finish(done)
    for _ in range(2):
        called.clear()
        done.add_done_callback(lambda _: called.set())
        assert called.wait(60)
    called.clear()
    child = os.fork()
    if child == 0:
        done.add_done_callback(lambda _: called.set())
        os._exit(0 if called.wait(60) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
