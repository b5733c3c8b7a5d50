"""Cancel, in every state."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import CancelAttempt, Dispatch
from tests.unit.lifecycle.driver import Driver, cluster, job, ready, task


def placed(state: str, **settings: object) -> Driver:
    """A driver whose item ``t`` is in this state."""
    driver = ready(1, **settings)
    driver.submit(task("t", retries=1))
    if state == "RUNNING":
        driver.start("t")
    elif state == "LOST":
        driver.start("t")
        driver.send(events.LinkDown("a", "silent"))
        driver.fire("lost:a", after=60)
    elif state == "RETRYING":
        driver.fail("t")
    assert driver.state("t") == state
    return driver


def assert_cancelled(driver: Driver) -> None:
    end = driver.end("t")
    assert (end.state, end.error) == (TaskState.CANCELLED, "TaskCancelledError")
    assert "asked by a test" in end.message
    assert not driver.machine.has_unfinished()
    assert driver.machine.view("a", driver.now).in_flight == 0


def test_while_it_waits() -> None:
    driver = Driver(cluster("a"))
    driver.submit(task("t"))
    driver.cancel("t")
    assert_cancelled(driver)
    assert driver.machine.queue_depths() == {}
    driver.snapshot("a", 4)
    assert driver.issued(Dispatch, ever=True) == []
    assert driver.machine.timers == frozenset()


def test_while_it_backs_off() -> None:
    driver = placed("RETRYING")
    driver.cancel("t")
    assert_cancelled(driver)
    assert driver.machine.timers == frozenset()
    assert driver.send(events.TimerFired("retry:t")) == []


@pytest.mark.parametrize("state", ["DISPATCHING", "RUNNING", "LOST"])
@pytest.mark.parametrize("answer", ["cancelled", "failed"])
def test_while_an_attempt_may_be_alive_it_ends_when_that_is_known_dead(state: str, answer: str) -> None:
    driver = placed(state)
    driver.cancel("t")
    assert driver.issued(CancelAttempt) == [CancelAttempt("t", 1, "a", False)]
    assert driver.state("t") == state
    assert driver.machine.record("t").code == "CANCEL_REQUESTED"
    driver.fail("t") if answer == "failed" else driver.stopped("t")
    assert_cancelled(driver)


@pytest.mark.parametrize("state", ["DISPATCHING", "RUNNING", "LOST"])
def test_what_succeeded_before_it_could_be_ended_has_succeeded(state: str) -> None:
    driver = placed(state)
    driver.cancel("t")
    driver.succeed("t")
    assert driver.end("t").state is TaskState.SUCCEEDED


def test_a_refusal_after_the_cancel_is_the_end() -> None:
    driver = placed("DISPATCHING")
    driver.cancel("t")
    driver.refuse("t")
    assert_cancelled(driver)


def test_repeated_cancel_changes_nothing_unless_it_is_forced() -> None:
    driver = placed("RUNNING")
    driver.cancel("t")
    driver.cancel("t")
    assert driver.last == []
    driver.cancel("t", force=True)
    assert driver.issued(CancelAttempt) == [CancelAttempt("t", 1, "a", True)]
    driver.cancel("t", force=True)
    assert driver.last == []
    driver.stopped("t")
    assert_cancelled(driver)


def test_an_unknown_or_finished_item_is_left_alone() -> None:
    driver = ready(1)
    driver.cancel("nobody")
    assert driver.last == []
    driver.submit(task("t"))
    driver.succeed("t")
    driver.cancel("t")
    assert driver.last == []
    assert driver.end("t").state is TaskState.SUCCEEDED


def test_a_cancelled_item_is_not_retried() -> None:
    driver = placed("RUNNING")
    driver.cancel("t")
    driver.fail("t", "cluster")
    assert_cancelled(driver)


def test_room_of_a_cancelled_item_goes_to_the_next() -> None:
    driver = ready(1)
    driver.submit(task("t"))
    driver.submit(task("next"))
    driver.cancel("t")
    assert driver.state("next") is TaskState.QUEUED
    driver.stopped("t")
    assert driver.state("next") is TaskState.DISPATCHING


def test_cancelling_the_head_of_a_shape_lets_the_others_wait_on() -> None:
    driver = ready(1)
    for name in ("running", "w1", "w2"):
        driver.submit(task(name))
    driver.cancel("w1")
    driver.succeed("running")
    assert list(driver.sent_to()) == ["running", "w2"]


def test_a_job_that_was_stopped_in_the_dashboard_is_cancelled() -> None:
    driver = ready(1)
    driver.submit(job("j"))
    driver.start("j")
    driver.stopped("j")
    end = driver.end("j")
    assert (end.state, end.error) == (TaskState.CANCELLED, "TaskCancelledError")
    assert driver.machine.record("j").code == "CANCELLED_THERE"


def test_a_cancel_wins_over_a_recall() -> None:
    driver = ready(1)
    driver.submit(task("t"))
    driver.accept("t")
    driver.fire("starts", after=60)
    driver.cancel("t")
    driver.stopped("t")
    assert_cancelled(driver)
