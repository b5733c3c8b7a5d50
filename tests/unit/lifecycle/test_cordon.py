"""A cluster is closed for new work, and opened again."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import RecallAttempt
from tests.unit.lifecycle.driver import ready, task
from tests.unit.lifecycle.test_prefetch import knowing, work


def test_cordon_keeps_entry_and_snapshot() -> None:
    driver = ready(4, breaker_failures=1)
    driver.submit(task("t", lost_retries=0))
    driver.fail("t", "cluster")
    driver.send(events.CordonChanged("a", cordoned=True))
    driver.submit(task("new"))
    assert [one.code for one in driver.machine.explain_wait("new", driver.now).candidates[0].rejections] == [
        "BREAKER_OPEN",
        "CORDONED",
    ]
    driver.send(events.CordonChanged("a", cordoned=False))
    assert driver.machine.record("new").code == "BREAKER_OPEN"


def test_a_cordon_calls_back_what_was_sent_ahead_and_lets_the_rest_run() -> None:
    driver = knowing(1)
    driver.submit(work("running"))
    driver.submit(work("ahead"))
    driver.send(events.CordonChanged("a", cordoned=True))
    assert [one.task_id for one in driver.issued(RecallAttempt)] == ["ahead"]
    driver.stopped("ahead")
    assert driver.machine.record("ahead").code == "CORDONED"
    view = driver.machine.view("a", driver.now)
    assert (view.cordoned, view.in_flight, view.prefetched) == (True, 1, 0)
    driver.succeed("running")
    assert driver.state("ahead") is TaskState.QUEUED
    driver.send(events.CordonChanged("a", cordoned=False))
    assert driver.sent_to(ever=False) == {"ahead": "a"}


def test_the_reason_of_a_cordon_is_shown_until_it_ends() -> None:
    driver = ready(4)
    driver.send(events.CordonChanged("a", cordoned=True, reason="new disk"))
    driver.submit(task("t"))
    assert (driver.machine.record("t").code, driver.machine.record("t").sentence) == (
        "CORDONED",
        "a: it is cordoned: new disk",
    )
    driver.send(events.CordonChanged("a", cordoned=True))  # as `drain` does without a reason
    assert driver.machine.view("a", driver.now).cordon_reason == "new disk"
    assert [one.cordon_reason for one in driver.machine.cluster_rows()] == ["new disk"]
    driver.send(events.CordonChanged("a", cordoned=False))
    driver.submit(task("t2"))
    driver.send(events.CordonChanged("a", cordoned=True))
    assert driver.machine.view("a", driver.now).cordon_reason == ""
