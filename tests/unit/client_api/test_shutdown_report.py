"""How a program's work ends with the program: waited for or stopped, and reported item by item."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api import program
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.runtime import shutdown_report
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.scheduler.lifecycle import events
from tests.support.main_thread import when_main_thread_is_in
from tests.unit.client_api.control_plane import ControlPlane, until
from tests.unit.lifecycle.driver import job


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """That something is waited for is reported, however short the wait is."""
    monkeypatch.setattr(shutdown_report, "_FIRST_NOTICE_S", 0.0)


def test_what_is_just_being_cancelled_is_not_worth_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutdown_report, "_FIRST_NOTICE_S", 30.0)
    with ControlPlane() as plane:
        busy, waiting = plane.job("j1", cpus=8), plane.submit(job("j2", cpus=8))
        for handle in (waiting, busy):
            handle.cancel()
        shutdown_report.drain(plane.runtime)
        shutdown_report.cancel_all(plane.runtime)
        assert waiting.state is TaskState.CANCELLED
    assert capsys.readouterr().err == ""


def test_cancelled_items_are_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    with ControlPlane(obedient=False) as plane:
        task = plane.job("j1")
        assert task.cancel() is True
        shutdown_report.drain(plane.runtime)
        shutdown_report.cancel_all(plane.runtime)
        assert task.state is TaskState.RUNNING
    assert capsys.readouterr().err == "rmcs: cancelled, so not waited for: j1 (RUNNING)\n"
    assert task.state is TaskState.CANCELLED
    assert task.cancel() is False


@pytest.mark.usefixtures("at_once")
def test_draining_waits_also_for_what_is_submitted_meanwhile(capsys: pytest.CaptureFixture[str]) -> None:
    with ControlPlane() as plane:
        first = plane.job("j1")
        more: list[Any] = []

        def go_on() -> None:
            more.append(plane.job("j2"))
            plane.finish(first)
            plane.finish(more[0])

        other = when_main_thread_is_in("drain", "wait_for", action=go_on)
        shutdown_report.drain(plane.runtime)
        other.join()
        assert [handle.state for handle in (first, *more)] == [TaskState.SUCCEEDED] * 2
    assert "rmcs: waiting for j1 (RUNNING) to end (Ctrl+C cancels)" in capsys.readouterr().err


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("keep", "why"),
    [
        (events.HoldRequested("j1", "no data"), "HELD: is held: no data"),
        (events.QueuePaused("cluster", "mac", "disk swap"), "QUEUE_PAUSED: "),
        (events.QueuePaused("owner", "ada", "lunch"), "OWNER_PAUSED: the queue of ada is paused: lunch"),
    ],
)
def test_unstartable_items_show_their_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], keep: events.Event, why: str
) -> None:
    _interrupt_waits(monkeypatch, 1)
    with ControlPlane() as plane:
        busy = plane.job("j0", cpus=8)
        waiting = plane.submit(job("j1", cpus=8, owner="ada"))
        until(lambda: waiting.state is TaskState.QUEUED)
        plane.runtime.post_user_event(keep)
        plane.finish(busy)
        until(lambda: waiting.explain()["decision"]["code"] == why.partition(":")[0])
        shutdown_report.drain(plane.runtime)
    assert f"rmcs: waiting for j1 (QUEUED, {why}" in capsys.readouterr().err


def test_no_report_when_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with ControlPlane() as plane:
        shutdown_report.drain(plane.runtime)
        shutdown_report.cancel_all(plane.runtime)
    assert capsys.readouterr().err == ""


def test_ctrl_c_while_draining_cancels(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _interrupt_waits(monkeypatch, 1)
    with ControlPlane() as plane:
        running, waiting = plane.job("j1", cpus=8), plane.submit(job("j2", cpus=8))
        until(lambda: waiting.state is TaskState.QUEUED)
        shutdown_report.drain(plane.runtime)
        assert (running.state, waiting.state) == (TaskState.CANCELLED, TaskState.CANCELLED)
    reported = capsys.readouterr().err
    assert "rmcs: j1 was RUNNING on mac: CANCELLED" in reported
    assert "rmcs: j2 was QUEUED: CANCELLED" in reported


def test_a_second_ctrl_c_forces(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _interrupt_waits(monkeypatch, 2)
    with ControlPlane(obedient=False) as plane:
        running = plane.job("j1")
        shutdown_report.drain(plane.runtime)
        assert running.state is TaskState.CANCELLED
    assert "rmcs: forcing: j1 (RUNNING)" in capsys.readouterr().err


def test_items_that_do_not_end_in_time_are_killed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutdown_report, "CANCEL_TIMEOUT_S", 0.05)
    with ControlPlane(obedient=False) as plane:
        running = plane.job("j1")
        shutdown_report.cancel_all(plane.runtime)
        assert running.state is TaskState.CANCELLED
    assert "still unfinished, forcing: j1 (RUNNING)" in capsys.readouterr().err


def test_what_a_shutdown_cancelled_was_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_interrupted", threading.Event())
    with ControlPlane() as plane:
        first = plane.job("j1")
        shutdown_report.cancel_all(plane.runtime)
        assert "the scheduler was shut down" in str(first.exception(0))
        second = plane.job("j2")
        program.end_without_draining()
        plane.runtime.shutdown(drain=False, interrupted=program.interrupted)
        assert "the program that submitted it was interrupted" in str(second.exception(0))


def test_many_items_are_reported_in_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with ControlPlane() as plane:
        handles = [plane.submit(job(f"j{number}", cpus=8)) for number in range(50)]
        until(lambda: all(handle._item.accepted for handle in handles))
        shutdown_report.cancel_all(plane.runtime)
        assert {handle.state for handle in handles} == {TaskState.CANCELLED}
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if line.endswith(": CANCELLED")]) == 20
    assert lines[-1] == "rmcs: and 30 more"


def _interrupt_waits(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """As if Ctrl+C was pressed in each of the first waits."""
    wait, left = shutdown_report.wait_for, [True] * times

    def interrupted(items: list[Item], enough: int, timeout: float) -> object:
        if left:
            left.pop()
            raise KeyboardInterrupt
        return wait(items, enough, timeout)

    monkeypatch.setattr(shutdown_report, "wait_for", interrupted)
