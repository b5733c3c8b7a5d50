"""How actors end with their program: not waited for, said in one line; detached ones are left alone."""

from __future__ import annotations

import threading

import pytest

from ray_multicluster_scheduler.common.exception import TaskCancelledError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.runtime import shutdown_report
from tests.support.main_thread import press_ctrl_c, when_main_thread_is_in
from tests.unit.client_api.actor_plane import ActorPlane, Counter
from tests.unit.client_api.control_plane import until


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """That something is waited for is reported, however short the wait is."""
    monkeypatch.setattr(shutdown_report, "_FIRST_NOTICE_S", 0.0)


def end(plane: ActorPlane) -> None:
    """As at the exit of a program."""
    shutdown_report.drain(plane.runtime)
    plane.runtime.refuse()
    shutdown_report.cancel_all(plane.runtime)


def test_a_living_actor_is_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    with ActorPlane() as plane:
        actor = plane.actor()
        end(plane)
        assert actor.state is TaskState.CANCELLED
        assert "its program has ended" in actor.explain()["sentence"]
    assert capsys.readouterr().err == f"rmcs: ended with the program: Counter {actor.id} on mac\n"


def test_a_relay_is_not_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    with ActorPlane() as plane:
        relay = plane.actors.submit_relay(Counter, "mac", {})
        until(lambda: relay.state is TaskState.RUNNING)
        end(plane)
        assert relay.state is TaskState.CANCELLED
    assert capsys.readouterr().err == ""


def test_its_calls_are(capsys: pytest.CaptureFixture[str]) -> None:
    with ActorPlane() as plane:
        handle = plane.actor().add.remote(1)
        plane.sent(1)
        other = when_main_thread_is_in("drain", "wait_for", action=lambda: plane.answer(handle.id, 7))
        end(plane)
        other.join()
        assert handle.result(0) == 7
    assert f"waiting for {handle.id} (DISPATCHING) to end" in capsys.readouterr().err


def test_shutdown_does_not_wait_for_detached_actors(capsys: pytest.CaptureFixture[str]) -> None:
    """A service that runs for ever would never let its program end."""
    with ActorPlane() as plane:
        actor = plane.actor(name="tally", lifetime="detached")
        handle = actor.add.remote(1)
        plane.sent(1)
        end(plane)
        assert (actor.state, handle.state) == (TaskState.RUNNING, TaskState.DISPATCHING)
    reported = capsys.readouterr().err
    assert f"rmcs: sent to detached actors, so not waited for: {handle.id} (Counter.add) on mac\n" in reported
    assert "waiting for" not in reported


def test_but_its_calls_leave_before_the_program_ends() -> None:
    with ActorPlane() as plane:
        actor, task = plane.actor(name="tally", lifetime="detached"), plane.task("t1")
        first, second = actor.add.remote(2), actor.add.remote(task)
        timer = threading.Timer(0.1, plane.finish, (task,))
        timer.start()
        end(plane)
        timer.join()
        assert [call.task_id for call in plane.link.calls] == [first.id, second.id]


def test_ctrl_c_ends_the_wait_for_calls(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with ActorPlane() as plane:
        actor = plane.actor()
        handle = actor.add.remote(1)
        plane.sent(1)
        other = when_main_thread_is_in("drain", "wait_for", action=press_ctrl_c)
        end(plane)
        other.join()
        assert (handle.done(), actor.state) == (False, TaskState.CANCELLED)
    assert isinstance(handle.exception(0), TaskCancelledError)
    assert f"waiting for {handle.id} (DISPATCHING) to end (Ctrl+C cancels)" in capsys.readouterr().err


def test_one_that_is_still_being_made_is_not_waited_for() -> None:
    with ActorPlane(slow=True) as plane:
        actor = plane.actor()
        end(plane)
        assert actor.state is TaskState.CANCELLED


def test_a_detached_one_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with ActorPlane() as plane:
        actor = plane.actor(name="tally", lifetime="detached")
        end(plane)
        assert actor.state is TaskState.RUNNING
    assert capsys.readouterr().err == f"rmcs: detached, so left alone: Counter {actor.id} on mac\n"


def test_a_detached_one_is_made_before_the_program_ends() -> None:
    with ActorPlane(slow=True) as plane:
        actor = plane.actors.submit(Counter, (), None, None, None, {"name": "tally", "lifetime": "detached"})
        until(lambda: actor.state is TaskState.DISPATCHING)
        timer = threading.Timer(0.1, plane.start, (actor,))
        timer.start()
        end(plane)
        timer.join()
        assert actor.state is TaskState.RUNNING


def test_many_are_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with ActorPlane() as plane:
        for _ in range(7):
            plane.actor()
        end(plane)
    reported = capsys.readouterr().err
    assert reported.count("\n") == 1
    assert "and 2 more" in reported
