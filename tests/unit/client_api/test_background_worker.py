"""Errands: one after another on a thread that comes and goes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from ray_multicluster_scheduler.app.client_api.executor import background_worker
from ray_multicluster_scheduler.app.client_api.executor.background_worker import BackgroundWorker
from tests.unit.client_api.control_plane import until


def threads(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def test_in_order_on_one_thread() -> None:
    worker, seen = BackgroundWorker("in-order"), []

    def work(number: int) -> Callable[[], None]:
        return lambda: seen.append((number, threading.get_ident()))

    for number in range(100):
        worker.put(work(number))
    until(lambda: len(seen) == 100)
    assert [number for number, _ in seen] == list(range(100))
    assert len({thread for _, thread in seen}) == 1
    assert threading.get_ident() not in {thread for _, thread in seen}


def test_the_thread_goes_and_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_worker, "LINGER_S", 0.01)
    worker, done = BackgroundWorker("short-lived"), threading.Event()
    for _ in range(3):
        worker.put(done.set)
        assert done.wait(60)
        done.clear()
        until(lambda: threads("short-lived") == 0)


def test_work_submitted_while_the_thread_exits_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_worker, "LINGER_S", 0.0)
    worker, counted = BackgroundWorker("hasty"), []
    for number in range(2000):
        worker.put(lambda number=number: counted.append(number))  # type: ignore[misc]
    until(lambda: len(counted) == 2000)
    assert counted == list(range(2000))


def test_an_error_is_shown_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    worker, done = BackgroundWorker("with-an-error"), threading.Event()
    worker.put(lambda: 1 / 0)
    worker.put(done.set)
    assert done.wait(60)
    assert [args.exc_type for args in shown] == [ZeroDivisionError]


def test_when_the_interpreter_makes_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    worker, seen = BackgroundWorker("late"), []
    worker.put(lambda: worker.put(lambda: seen.append("second")))
    worker.put(lambda: seen.append("third"))
    assert seen == ["second", "third"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_in_the_child_of_a_fork() -> None:
    worker, done = BackgroundWorker("forked"), threading.Event()
    worker.put(done.set)
    assert done.wait(60), "its thread is there, and will not be in the child"
    done.clear()
    child = os.fork()
    if child == 0:
        worker.put(done.set)
        os._exit(0 if done.wait(60) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
