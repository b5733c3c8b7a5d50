"""Hold and release, pause and resume, another priority."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.model.item_fields import MAX_PRIORITY
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import RecallAttempt
from tests.unit.lifecycle.driver import Driver, job, prefetched_of_two_owners, ready, task
from tests.unit.lifecycle.test_prefetch import knowing, work


def row_of(driver: Driver, task_id: str) -> tuple[Any, str, str]:
    record = driver.machine.record(task_id)
    return record.state, record.code, record.sentence


def test_a_held_item_waits_outside_the_queue() -> None:
    driver = ready(1)
    driver.submit(task("running"))
    driver.submit(task("first"))
    driver.submit(task("second"))
    driver.send(events.HoldRequested("first", "until the data is there"))
    assert row_of(driver, "first") == (TaskState.QUEUED, "HELD", "is held: until the data is there")
    why = driver.machine.explain_wait("first", driver.now)
    assert why is not None
    assert (why.code, why.unblocked_by) == ("HELD", "an operator releases it")
    driver.succeed("running")
    assert driver.sent_to(ever=False) == {"second": "a"}
    driver.send(events.ReleaseRequested("first"))
    assert driver.machine.record("first").code == "NO_CAPACITY"
    driver.succeed("second")
    assert driver.sent_to(ever=False) == {"first": "a"}


def test_repeated_hold_and_release_and_unknown_ids_change_nothing() -> None:
    driver = ready(1)
    driver.submit(task("running"))
    driver.submit(task("t"))
    for event in (
        events.HoldRequested("nobody"),
        events.ReleaseRequested("nobody"),
        events.ReleaseRequested("t"),
        events.PriorityChanged("nobody", 3),
    ):
        assert driver.send(event) == []
    driver.send(events.HoldRequested("t"))
    assert driver.send(events.HoldRequested("t", "again")) == []
    assert row_of(driver, "t") == (TaskState.QUEUED, "HELD", "is held")
    driver.cancel("t")
    assert driver.state("t") is TaskState.CANCELLED
    assert driver.send(events.ReleaseRequested("t")) == []


def test_one_that_runs_is_held_when_it_would_be_queued_again() -> None:
    driver = ready(1, retry_backoff={"base_s": 0})
    driver.submit(task("t", retries=1))
    driver.start("t")
    driver.send(events.HoldRequested("t"))
    assert driver.state("t") is TaskState.RUNNING
    driver.fail("t")
    driver.fire("retry:t")
    assert row_of(driver, "t")[1] == "HELD"
    driver.send(events.ReleaseRequested("t"))
    assert driver.state("t") is TaskState.DISPATCHING


def test_one_that_is_released_before_it_was_queued_again_is_not_held() -> None:
    driver = ready(1, retry_backoff={"base_s": 0})
    driver.submit(task("t", retries=1))
    driver.send(events.HoldRequested("t"))
    driver.fail("t")
    driver.send(events.ReleaseRequested("t"))
    driver.fire("retry:t")
    assert driver.state("t") is TaskState.DISPATCHING


def test_a_hold_stops_the_clock_of_the_queue_timeout() -> None:
    driver = ready(1)
    driver.submit(task("running"))
    driver.submit(task("t", queue_timeout=5.0))
    driver.send(events.HoldRequested("t"))
    assert "queue:t" not in driver.machine.timers
    driver.send(events.ReleaseRequested("t"), after=100)
    assert "queue:t" in driver.machine.timers


def test_held_items_count_for_max_queue() -> None:
    driver = ready(1, max_queue=2)
    for name in ("running", "a", "b"):
        driver.submit(task(name))
    driver.send(events.HoldRequested("a"))
    driver.submit(task("c"))
    assert driver.end("c").error == "QueueFullError"


def test_another_priority_takes_its_place_at_once() -> None:
    driver = ready(1)
    driver.submit(task("running"))
    driver.submit(task("first"))
    driver.submit(task("second"))
    driver.send(events.PriorityChanged("second", 5))
    assert [step.code for step in driver.machine.record("second").history][-2:] == ["PRIORITY_CHANGED", "NO_CAPACITY"]
    assert driver.send(events.PriorityChanged("second", 5)) == []
    driver.succeed("running")
    assert driver.sent_to(ever=False) == {"second": "a"}


def test_another_priority_of_one_that_runs_holds_for_its_next_attempt() -> None:
    driver = ready(1, retry_backoff={"base_s": 0})
    driver.submit(task("t", retries=1))
    driver.submit(task("other"))
    driver.send(events.PriorityChanged("t", -1))
    driver.fail("t")
    driver.fire("retry:t")
    assert driver.state("other") is TaskState.DISPATCHING
    assert driver.machine.record("t").wanted.priority == -1


def test_a_paused_owner_starts_nothing() -> None:
    driver = ready(4)
    driver.send(events.QueuePaused("owner", "x", "over budget"))
    driver.submit(task("x0", owner="x"))
    driver.submit(task("y0", owner="y"))
    assert list(driver.sent_to()) == ["y0"]
    assert row_of(driver, "x0")[1:] == ("OWNER_PAUSED", "the queue of x is paused: over budget")
    driver.send(events.QueueResumed("owner", "x"))
    assert driver.sent_to(ever=False) == {"x0": "a"}


def test_those_that_waited_for_something_else_when_their_owner_was_paused_wait_for_that() -> None:
    driver = ready(1)
    driver.submit(task("running"))
    for name in ("x0", "x1", "x2"):
        driver.submit(task(name, owner="x", cpus=1 if name < "x2" else 0.5))
    driver.submit(task("y0", owner="y"))
    assert driver.machine.record("x0").code == "NO_CAPACITY"
    driver.send(events.QueuePaused("owner", "x", "over budget"))
    paused = (TaskState.QUEUED, "OWNER_PAUSED", "the queue of x is paused: over budget")
    assert [row_of(driver, name) for name in ("x0", "x1", "x2")] == [paused] * 3
    assert [step.code for step in driver.machine.record("x0").history][-2:] == ["NO_CAPACITY", "OWNER_PAUSED"]
    assert driver.machine.record("y0").code == "NO_CAPACITY"
    decision = driver.machine.record("x1").decision
    assert decision is not None
    assert (decision.task_id, decision.unblocked_by) == ("x1", "an operator resumes the owner's queue")
    history = len(driver.machine.record("x0").history)
    driver.send(events.QueuePaused("owner", "x", "still"))
    assert driver.machine.record("x0").sentence == "the queue of x is paused: still"
    assert len(driver.machine.record("x0").history) == history, "it is the same reason"
    late = driver.submit(task("x3", owner="x"))
    assert [step.code for step in late.history] == ["SUBMITTED", "OWNER_PAUSED"]
    driver.send(events.QueueResumed("owner", "x"))
    assert {driver.machine.record(name).code for name in ("x0", "x1", "x2", "x3")} == {"NO_CAPACITY"}
    driver.succeed("running")
    assert driver.sent_to(ever=False) == {"x0": "a"}


def test_a_paused_owner_causes_no_recalls() -> None:
    """What was sent ahead would have to make way for something more urgent, if that could start."""
    driver = knowing(1)
    driver.submit(work("running"))
    driver.send(events.QueuePaused("owner", "x"))
    driver.submit(task("urgent", owner="x", priority=5))
    driver.submit(work("ahead"))
    assert driver.machine.view("a", driver.now).prefetched == 1
    driver.submit(task("urgent2", owner="x", priority=5))
    assert driver.issued(RecallAttempt) == []


@pytest.mark.parametrize("priority", [10**400, -(10**400)])
def test_a_priority_beyond_all_measure_is_bounded(priority: int) -> None:
    driver = ready(1)
    driver.submit(task("running"))
    driver.submit(task("plain"))
    record = driver.submit(task("huge", priority=priority))
    assert record.wanted.priority == (MAX_PRIORITY if priority > 0 else -MAX_PRIORITY)
    assert record.task.priority == priority, "what was asked for is kept"
    driver.send(events.PriorityChanged("plain", priority))
    assert driver.machine.record("plain").wanted.priority == record.wanted.priority
    assert driver.send(events.PriorityChanged("plain", 2 * priority)) == [], "it has the utmost already"
    driver.succeed("running")
    assert len(driver.sent_to(ever=False)) == 1


def test_room_that_got_free_while_an_owner_was_paused_is_found() -> None:
    driver = ready(1)
    driver.submit(task("y", owner="y"))
    driver.submit(task("x", owner="x"))
    driver.send(events.QueuePaused("owner", "x"))
    driver.succeed("y")
    assert driver.state("x") is TaskState.QUEUED
    driver.send(events.QueueResumed("owner", "x"))
    assert driver.state("x") is TaskState.DISPATCHING


@pytest.mark.parametrize("item", [task("t"), job("t")])
def test_a_paused_cluster_gets_nothing_new(item: Any) -> None:
    driver = ready(4, 4)
    driver.submit(task("runs", preferred_cluster="a"))
    driver.send(events.QueuePaused("cluster", "a", "disk swap"))
    driver.submit(item)
    assert driver.sent_to(ever=False) == {"t": "b"}
    wait = driver.submit(task("only", preferred_cluster="a", fallback="wait"))
    assert (wait.code, wait.sentence) == ("QUEUE_PAUSED", "a: its queue is paused: disk swap")
    assert driver.state("runs") is TaskState.DISPATCHING  # what is there goes on
    driver.send(events.QueueResumed("cluster", "a"))
    assert driver.sent_to(ever=False) == {"only": "a"}


def test_pausing_a_cluster_that_is_not_there_changes_nothing() -> None:
    driver = ready(1)
    assert driver.send(events.QueuePaused("cluster", "nowhere")) == []
    assert driver.send(events.QueueResumed("cluster", "nowhere")) == []


def test_a_pause_takes_back_only_what_that_owner_sent_ahead() -> None:
    driver = prefetched_of_two_owners()
    assert set(driver.machine.registry.state("a").slots.prefetched) == {"theirs", "ours"}
    driver.send(events.QueuePaused("owner", "x"))
    assert [one.task_id for one in driver.issued(RecallAttempt)] == ["ours"]
