"""get and wait: many handles of all kinds, one time for all, and no more than was asked for."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.arguments.objects import ObjectHandle
from ray_multicluster_scheduler.app.client_api.handles.collecting import get, wait
from ray_multicluster_scheduler.app.client_api.handles.handle import Handle, PartHandle, TaskHandle
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError, TaskTimeoutError
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete
from tests.unit.client_api.control_plane import ControlPlane
from tests.unit.lifecycle.driver import task

NOBODY: Any = SimpleNamespace(in_forked_child=False, control_plane="cp1")


def handle(task_id: str = "t1") -> TaskHandle:
    return TaskHandle(Item(task(task_id)), NOBODY)


def succeed(one: Handle, value: object = 42) -> None:
    item_id = one._item.id
    result = CallResult(item_id, 1, "succeeded", pickling.dumps(value))
    one._item.ended(Outcome(Complete(item_id, TaskState.SUCCEEDED, 1, "mac"), result))


def fail(one: Handle, error: Exception) -> None:
    result = CallResult(one.id, 1, "failed", pickling.dumps(error), FailureClass.USER, message=str(error))
    one._item.ended(Outcome(Complete(one.id, TaskState.FAILED, 1, "mac"), result))


def test_values_of_all_kinds_of_handles() -> None:
    one = handle()
    kept = ObjectHandle(pickling.dumps("kept"), set(), (), NOBODY)
    parts = PartHandle.split(handle("t2"), 2)
    succeed(one, 1)
    succeed(parts[0], ("a", "b"))
    assert get([kept, one, *parts, one]) == ["kept", 1, "a", "b", 1]
    assert get((one,)) == [1]
    assert get(kept) == "kept"
    assert wait([kept, one, *parts], num_returns=4) == ([kept, one, *parts], [])


def test_a_failure_is_raised_before_others_are_over() -> None:
    slow, bad = handle(), handle("t2")
    threading.Timer(0.02, fail, [bad, ValueError("bad")]).start()
    began = time.monotonic()
    with pytest.raises(ValueError, match="bad"):
        get([slow, bad], timeout=30)
    assert time.monotonic() - began < 25


def test_of_several_failures_the_first_in_order_is_raised() -> None:
    first, second = handle(), handle("t2")
    fail(second, ValueError("second"))
    fail(first, KeyError("first"))
    with pytest.raises(KeyError):
        get([first, second])


def test_wait_gives_no_more_than_was_asked_for() -> None:
    """As in Ray: a caller that takes the first of the list must not lose the others."""
    many = [handle(f"t{number}") for number in range(3)]
    for one in many:
        succeed(one)
    seen, rest = [], many
    while rest:
        over, rest = wait(rest)
        assert len(over) == 1
        seen += over
    assert seen == many


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: get(None), "None is not a handle"),
        (lambda: get("t1"), "'t1' is not a handle"),
        (lambda: get([1]), "1 is not a handle"),
        (lambda: get(5), "5 is not a handle"),
        (lambda: wait(handle()), r"wait was given one handle, t1.*\[handle\]"),
        (lambda: wait(None), "None is not a handle"),
        (lambda: wait([handle()], num_returns="1"), "num_returns is '1'"),
        (lambda: wait([handle()], num_returns=True), "num_returns is True"),
        (lambda: get([], timeout="1"), "timeout is '1'"),
        (lambda: wait([], timeout=None, num_returns=2), "num_returns is 2, with 0 handles"),
    ],
)
def test_invalid_input_is_explained(wrong: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        wrong()


def test_in_the_child_of_a_fork_nobody_waits_for_ever() -> None:
    child: Any = SimpleNamespace(in_forked_child=True)
    waiting, done = TaskHandle(Item(task("t1")), child), TaskHandle(Item(task("t2")), child)
    succeed(done)
    assert get([done]) == [42]
    with pytest.raises(SchedulerError, match="forked from"):
        get([done, waiting])


def test_the_time_is_for_all_of_them_together() -> None:
    with ControlPlane() as plane:
        many = [plane.task(f"t{number}") for number in range(8)]
        began = time.monotonic()
        with pytest.raises(TaskTimeoutError, match="t0 "):
            get(many, timeout=2)
        assert time.monotonic() - began < 14


def test_ten_thousand_handles_and_one_sleeper() -> None:
    """The thread that waits is woken once, however many values come one by one."""
    many = [handle(f"t{number}") for number in range(10_000)]

    def end_all() -> None:
        for number, one in enumerate(many):
            succeed(one, number)

    worker = threading.Thread(target=end_all)
    worker.start()
    before = time.thread_time()
    assert get(many) == list(range(10_000))
    assert time.thread_time() - before < 3
    worker.join()
    before = time.thread_time()
    over, rest = wait(many, num_returns=5_000)
    assert (len(over), len(rest)) == (5_000, 5_000)
    assert time.thread_time() - before < 1


def test_a_time_out_of_many_names_the_given_time() -> None:
    with ControlPlane() as plane:
        first, second = plane.task("t1"), plane.task("t2")
        plane.finish(first)
        with pytest.raises(TaskTimeoutError, match=r"t2 .*0\.05 s; it is RUNNING: "):
            get([first, second], timeout=0.05)
