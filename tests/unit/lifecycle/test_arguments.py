"""Items whose arguments have no value yet: accepted, readable, and queued only when all is there."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from tests.unit.lifecycle.driver import Driver, ready, task


def waiting(driver: Driver, task_id: str = "t") -> None:
    driver.send(events.Submitted(task(task_id), "waits for its argument task-1"))


def test_it_waits_with_a_reason_and_goes_when_its_arguments_are_there() -> None:
    driver = ready(2)
    waiting(driver)
    record = driver.machine.record("t")
    assert (record.state, record.code) == (TaskState.PENDING, "WAITS_FOR_ARGUMENTS")
    assert record.sentence == "waits for its argument task-1"
    driver.send(events.ArgumentsReady("t"))
    assert record.state is TaskState.DISPATCHING
    driver.send(events.ArgumentsReady("t"))  # late or repeated events
    driver.send(events.ArgumentsFailed("t", "too late"))
    assert record.state is TaskState.DISPATCHING


def test_an_argument_that_exists_on_one_cluster_only_binds_the_item() -> None:
    driver = ready(8, 2)
    waiting(driver)
    driver.send(events.ArgumentsReady("t", pinned="b"))
    assert driver.sent_to() == {"t": "b"}


def test_a_failed_argument_fails_the_item() -> None:
    driver = ready(2)
    waiting(driver)
    driver.send(events.ArgumentsFailed("t", "its argument task-1 failed", "TaskCancelledError"))
    assert driver.state("t") is TaskState.FAILED
    assert driver.end("t").error == "TaskCancelledError"
    assert "its argument task-1 failed" in driver.end("t").message


def test_it_can_be_cancelled_meanwhile() -> None:
    driver = ready(2)
    waiting(driver)
    driver.cancel("t")
    assert driver.state("t") is TaskState.CANCELLED
    driver.send(events.ArgumentsReady("t"))
    assert driver.sent_to() == {}
    assert not driver.machine.has_unfinished()


def test_they_count_for_max_queue() -> None:
    driver = ready(2, max_queue=2)
    waiting(driver, "t1")
    waiting(driver, "t2")
    waiting(driver, "t3")
    assert driver.end("t3").error == "QueueFullError"


def test_an_item_for_one_cluster_cannot_be_given_an_actor_of_another() -> None:
    driver = ready(2, 2)
    driver.send(events.Submitted(task("t", preferred_cluster="a", fallback="wait"), "waits for actor-1"))
    driver.send(events.ArgumentsReady("t", pinned="b"))
    assert driver.end("t").error == "TaskSubmissionError"
    assert driver.sent_to() == {}
