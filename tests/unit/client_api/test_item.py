"""Promises and items: ended once, reported to watchers, waited for by any thread."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome, Promise, wait_for
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, Transition
from tests.unit.lifecycle.driver import task


def over(state: TaskState = TaskState.SUCCEEDED) -> Outcome:
    return Outcome(Complete("p", state, 1, "mac"), None)


def step(state: TaskState, number: int = 1) -> Transition:
    return Transition("t1", number, state, 1, 0.0, "CODE", "sentence", "mac")


def test_a_promise_ends_once() -> None:
    promise = Promise("p")
    assert (promise.state, promise.cluster, promise.attempt, promise.accepted, promise.done()) == (
        TaskState.PENDING,
        None,
        0,
        False,
        False,
    )
    assert promise.wait(0) is None
    first, second = over(), over(TaskState.FAILED)
    assert [promise.ended(first), promise.ended(second)] == [True, False]
    assert promise.wait() is first
    assert (promise.state, promise.cluster, promise.attempt, promise.done()) == (TaskState.SUCCEEDED, "mac", 1, True)


def test_watchers_are_called_once_and_latecomers_at_once() -> None:
    promise, received = Promise("p"), []
    promise.watch(received.append)
    promise.watch(received.append)
    dropped: list[Promise] = []
    promise.watch(dropped.append)
    promise.unwatch(dropped.append)
    promise.ended(over())
    assert received == [promise, promise]
    promise.watch(received.append)
    assert len(received) == 3
    assert not dropped


def test_a_chain_of_promises_needs_no_deep_stack() -> None:
    """Each ends the next one from inside of its own tell."""
    chain = [Promise(f"p{number}") for number in range(sys.getrecursionlimit() * 2)]
    for one, other in itertools.pairwise(chain):
        one.watch(lambda _, other=other: other.ended(over()))
    chain[0].ended(over())
    assert chain[-1].done()


def test_no_lock_is_held_while_watchers_are_called() -> None:
    promise = Promise("p")
    seen: list[Any] = []

    def look(reported: Promise) -> None:
        reported.watch(lambda _: seen.append("nested"))
        seen.append(reported.wait(0))

    promise.watch(look)
    promise.ended(over())
    assert seen == [promise.outcome, "nested"]


class TestWaitingForMany:
    def test_enough_are_over(self) -> None:
        many = [Promise(f"p{number}") for number in range(4)]
        assert not wait_for(many, 1, 0)
        timers = [threading.Timer(0.02, one.ended, [over()]) for one in many[:2]]
        for timer in timers:
            timer.start()
        assert wait_for(many, 2, 10)
        assert not wait_for(many, 3, 0.01)
        assert wait_for(many[:2], 99, 0), "more than there are means all of them"
        assert wait_for([], 1, 0)
        for timer in timers:
            timer.join()
        assert not any(one._watchers for one in many), "nothing is left behind"

    def test_one_that_is_there_twice_counts_twice(self) -> None:
        one, other = Promise("a"), Promise("b")
        threading.Timer(0.02, one.ended, [over()]).start()
        assert wait_for([one, one, other], 2, 10)

    def test_a_failure_ends_it_early_if_asked(self) -> None:
        many = [Promise(f"p{number}") for number in range(3)]
        threading.Timer(0.02, many[1].ended, [over(TaskState.CANCELLED)]).start()
        assert wait_for(many, 3, 10, or_failure=True)
        assert [one.done() for one in many] == [False, True, False]
        assert wait_for(many, 3, 0, or_failure=True), "also one that was there before"
        assert not wait_for(many, 3, 0)

    def test_any_time_is_a_time(self) -> None:
        promise = Promise("p")
        assert not wait_for([promise], 1, -5)
        threading.Timer(0.02, promise.ended, [over()]).start()
        assert wait_for([promise], 1, 1e30)

    def test_ten_thousand_cost_little(self) -> None:
        many = [Promise(f"p{number}") for number in range(10_000)]
        began = time.thread_time()
        assert not wait_for(many, 10_000, 0)
        assert time.thread_time() - began < 1


class TestSteps:
    def test_an_item_follows_its_transitions(self) -> None:
        item = Item(task("t1"))
        assert (item.id, item.state, item.accepted) == ("t1", TaskState.PENDING, False)
        item.moved(step(TaskState.RUNNING))
        assert (item.state, item.cluster, item.attempt, item.accepted) == (TaskState.RUNNING, "mac", 1, True)
        item.ended(over())
        assert item.state is TaskState.SUCCEEDED

    def test_every_step_and_the_end_are_reported_until_unwatched(self) -> None:
        item, received = Item(task("t1")), []
        item.watch_transitions(lambda one: received.append(one.state))
        tell = received.append
        item.watch_transitions(tell)
        item.unwatch_transitions(tell)
        item.moved(step(TaskState.QUEUED))
        item.moved(step(TaskState.RUNNING, 2))
        item.ended(over())
        assert received == [TaskState.QUEUED, TaskState.RUNNING, TaskState.SUCCEEDED]

    @pytest.mark.parametrize("how", ["step", "end"])
    def test_waiting_until_it_is_accepted(self, how: str) -> None:
        item = Item(task("t1"))
        assert not item.wait_accepted(0.01)
        changes = (item.moved, step(TaskState.PENDING)) if how == "step" else (item.ended, over())
        threading.Timer(0.02, changes[0], [changes[1]]).start()
        assert item.wait_accepted(10)
        assert not item._step_watchers
