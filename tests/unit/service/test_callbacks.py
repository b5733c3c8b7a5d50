"""CallbackThreads: code of users runs on threads of its own kind, and what it raises is nobody else's problem."""

from __future__ import annotations

import os
import threading

import pytest

from ray_multicluster_scheduler.control_plane.runtime.loop_thread import CallbackThreads
from tests.unit.client_api.control_plane import until

pytestmark = pytest.mark.usefixtures("leak_check")


def test_callbacks_run_on_a_thread_of_their_own() -> None:
    callbacks, ran = CallbackThreads(), []
    over = threading.Event()

    def work() -> None:
        ran.append(threading.current_thread().name)
        over.set()

    callbacks.run(work)
    assert over.wait(60)
    assert ran[0].startswith("rmcs-callback")
    callbacks.close()


def test_one_that_raises_is_shown_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    callbacks, over = CallbackThreads(), threading.Event()

    def bad() -> None:
        raise SystemExit("mine")

    for _ in range(5):
        callbacks.run(bad)
    callbacks.run(over.set)
    assert over.wait(60)
    callbacks.close()
    until(lambda: len(shown) == 5)
    assert isinstance(shown[0].exc_value, SystemExit)


def test_callbacks_are_run_after_close() -> None:
    callbacks, gate, done = CallbackThreads(), threading.Event(), []
    for number in range(5):
        callbacks.run(lambda number=number: (gate.wait(60), done.append(number)))  # type: ignore[misc]
    callbacks.close()
    callbacks.close()
    callbacks.run(lambda: done.append("late"))
    until(lambda: done == ["late"])
    gate.set()
    until(lambda: len(done) == 6)
    assert done[0] == "late"


def test_one_that_waits_for_another_is_no_end_of_all() -> None:
    """Two of them may wait for each other: there are two threads."""
    callbacks, first, second = CallbackThreads(), threading.Event(), threading.Event()
    callbacks.run(lambda: (second.wait(60), first.set()))
    callbacks.run(second.set)
    assert first.wait(60)
    callbacks.close()


def test_in_the_child_of_a_fork_it_has_threads_of_its_own() -> None:
    callbacks, over = CallbackThreads(), threading.Event()
    callbacks.run(over.set)
    assert over.wait(60)
    child = os.fork()
    if child == 0:
        there = threading.Event()
        callbacks.run(there.set)
        os._exit(0 if there.wait(60) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    callbacks.close()
