"""Gangs as items: one place for all members or none, one attempt number, one answer."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events, timers
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import CancelAttempt, Dispatch
from tests.unit.lifecycle.driver import Driver, cluster, ready, task
from tests.unit.lifecycle.gangs import gang


def free(driver: Driver, name: str = "a") -> dict[str, float]:
    nodes = driver.machine.view(name, driver.now).nodes
    return {node.node_id: (node.free or {}).get("CPU", 0.0) for node in nodes}


def two_nodes(**settings: object) -> Driver:
    driver = Driver(cluster("a"), **settings)
    driver.link_up("a", 4, 4)
    return driver


def test_it_is_one_item_that_takes_of_each_node_what_its_members_do() -> None:
    driver = two_nodes()
    driver.submit(gang("g", 3, 3))
    assert [(one.task_id, one.attempt, one.ahead) for one in driver.issued(Dispatch)] == [("g", 1, "")]
    assert free(driver) == {"n1": 1.0, "n2": 1.0}
    driver.succeed("g")
    assert free(driver) == {"n1": 4.0, "n2": 4.0}


def test_it_waits_for_room_for_all_members_and_starts_at_once_when_there_is() -> None:
    driver = two_nodes()
    driver.submit(task("t", 2))
    driver.submit(gang("g", 3, 3))
    assert driver.state("g") is TaskState.QUEUED
    assert driver.machine.record("g").code == "NO_CAPACITY"
    assert sorted(free(driver).values()) == [2.0, 4.0], "it takes nothing while it waits"
    driver.succeed("t")
    assert driver.state("g") is TaskState.DISPATCHING


def test_one_that_is_too_big_for_any_cluster_fails_at_once_with_the_table() -> None:
    driver = ready(4, 2)
    driver.submit(gang("g", 3, 3))
    end = driver.end("g")
    assert (end.state, end.error) == (TaskState.FAILED, "NoFeasibleClusterError")
    assert "a: its 2 members (2 × 3 CPU; PACK) never fit together" in end.message
    assert "\n  b: " in end.message


def test_a_node_that_is_away_just_now_may_come_back() -> None:
    driver = two_nodes()
    driver.snapshot("a", 4)
    driver.submit(gang("g", 3, 3))
    assert driver.state("g") is TaskState.QUEUED
    driver.snapshot("a", 4, 4)
    assert driver.state("g") is TaskState.DISPATCHING


def test_the_books_follow_where_ray_put_the_members() -> None:
    driver = two_nodes()
    driver.submit(gang("g", 1, 3))
    assert sorted(free(driver).values()) == [0.0, 4.0], "expected on one node"
    driver.start("g", "n2 n1")
    assert free(driver) == {"n1": 1.0, "n2": 3.0}
    assert driver.state("g") is TaskState.RUNNING
    driver.succeed("g")
    assert free(driver) == {"n1": 4.0, "n2": 4.0}


def test_where_it_was_expected_nothing_changes() -> None:
    driver = two_nodes()
    driver.submit(gang("g", 3, 3))
    before = driver.machine.view("a", driver.now).nodes
    driver.start("g", "n1 n2")
    assert driver.machine.view("a", driver.now).nodes == before


@pytest.mark.parametrize(("failure", "error"), [("user", None), ("crash", "WorkerCrashedError")])
def test_it_is_tried_again_as_a_whole_and_fails_as_its_member_did(failure: str, error: str | None) -> None:
    driver = two_nodes()
    driver.submit(gang("g", 3, 3, retries=1, crash_retries=1))
    driver.start("g", "n1 n2")
    driver.fail("g", failure)
    assert driver.state("g") is TaskState.RETRYING
    assert free(driver) == {"n1": 4.0, "n2": 4.0}
    driver.fire("retry:g", after=10)
    assert driver.attempt("g") == 2
    driver.fail("g", failure)
    assert (driver.end("g").state, driver.end("g").error) == (TaskState.FAILED, error)


def test_one_that_does_not_start_in_time_is_called_back_and_waits_again() -> None:
    driver = two_nodes(start_grace_s=60)
    driver.submit(gang("g", 3, 3))
    driver.accept("g")
    driver.fire("starts", after=60)
    assert [one.task_id for one in driver.issued(CancelAttempt)] == ["g"]
    driver.stopped("g")
    assert driver.attempt("g") == 2, "no budget is used"


@pytest.mark.parametrize(("budget", "states"), [(0, ["DISPATCHING", "FAILED"]), (1, ["DISPATCHING", "RETRYING"])])
def test_one_of_which_some_members_had_begun_when_it_was_called_back_has_crashed(
    budget: int, states: list[str]
) -> None:
    driver = two_nodes(start_grace_s=60)
    driver.submit(gang("g", 3, 3, crash_retries=budget))
    driver.accept("g")
    driver.fire("starts", after=60)
    driver.send(events.AttemptFinished("g", 1, "cancelled", code="BEGUN"))
    assert driver.states("g")[-2:] == states
    assert "; some of its members had begun by then" in driver.machine.record("g").sentence


def test_it_is_cancelled_as_one() -> None:
    driver = two_nodes()
    driver.submit(gang("g", 3, 3))
    driver.start("g", "n1 n2")
    driver.cancel("g")
    assert [one.task_id for one in driver.issued(CancelAttempt)] == ["g"]
    driver.stopped("g")
    assert driver.state("g") is TaskState.CANCELLED


def test_serial_mode_counts_it_once() -> None:
    driver = two_nodes(execution_mode="serial")
    driver.submit(gang("g", 1, 1))
    driver.submit(task("t"))
    assert driver.sent_to() == {"g": "a"}


@pytest.mark.parametrize(("of", "waits"), [("task", True), ("actor", False)])
def test_the_submission_interval_of_tasks_holds_for_gangs_of_tasks(of: str, waits: bool) -> None:
    driver = two_nodes(submission_interval_s=40, submission_interval_kinds=["task"])
    driver.submit(task("t"))
    driver.submit(gang("g", 1, 1, of=of))
    assert ("g" not in driver.sent_to()) is waits


def test_gangs_of_other_bundles_are_decided_apart() -> None:
    """Both ask for 4 CPUs in all, but only one of them fits nodes of 2."""
    driver = Driver(cluster("a"))
    driver.link_up("a", 4, 4)
    driver.submit(task("t1", 2))
    driver.submit(task("t2", 4))
    assert free(driver) == {"n1": 2.0, "n2": 0.0} or free(driver) == {"n1": 0.0, "n2": 2.0}
    driver.submit(gang("wide", 3))
    driver.submit(gang("narrow", 1, 1))
    driver.submit(gang("wider", 2, 2))
    assert {task_id for task_id in driver.sent_to() if task_id in ("wide", "narrow", "wider")} == {"narrow"}


class TestActors:
    def serving(self) -> Driver:
        driver = two_nodes()
        driver.submit(gang("g", 3, 3, of="actor"))
        driver.accept("g")
        driver.start("g", "n1 n2")
        return driver

    def test_they_hold_their_bundles_until_their_end(self) -> None:
        driver = self.serving()
        assert driver.machine.record("g").code == "READY"
        assert free(driver) == {"n1": 1.0, "n2": 1.0}
        assert "start:g:1" not in driver.machine.timers, "ready in time"

    def test_the_death_of_one_is_the_end_of_all_whatever_the_budget(self) -> None:
        driver = self.serving()
        driver.fail("g", "crash")
        end = driver.end("g")
        assert (end.state, end.error) == (TaskState.FAILED, "ActorDiedError")
        assert "one dead member ends it" in end.next_step
        assert free(driver) == {"n1": 4.0, "n2": 4.0}

    def test_before_they_are_ready_a_crash_is_tried_again(self) -> None:
        driver = two_nodes()
        driver.submit(gang("g", 3, 3, of="actor"))
        driver.fail("g", "crash")
        assert driver.state("g") is TaskState.RETRYING

    def test_not_ready_in_time(self) -> None:
        driver = two_nodes()
        driver.submit(gang("g", 3, 3, of="actor", ready_timeout=5.0))
        driver.accept("g")
        driver.fire("start:g:1", after=5)
        driver.stopped("g")
        assert driver.end("g").error == "TaskTimeoutError"
        assert "ready_timeout of 5 s" in driver.end("g").message

    def test_no_limit_is_no_timer(self) -> None:
        driver = two_nodes()
        driver.submit(gang("g", 3, 3, of="actor", ready_timeout=None))
        driver.accept("g")
        assert "start:g:1" not in driver.machine.timers

    def test_an_actor_that_leaves_ends_the_gang_in_peace(self) -> None:
        driver = self.serving()
        driver.send(events.AttemptFinished("g", 1, "succeeded", sentence="member 0 left by itself"))
        assert driver.state("g") is TaskState.SUCCEEDED


def test_small_work_cannot_keep_it_waiting_for_ever() -> None:
    """There is always a small task for a place that gets free; after reserve_after_s room is kept for the gang."""
    driver = two_nodes(reserve_after_s=10)
    for number in range(8):
        driver.submit(task(f"t{number}"))
    driver.submit(gang("g", 3, 3))
    for number in range(8, 60):
        driver.submit(task(f"t{number}"))
    for number in range(60):
        if driver.state("g") is TaskState.DISPATCHING:
            break
        driver.now += 2
        if timers.KEEP in driver.machine.timers and driver.now >= 1010:
            driver.fire(timers.KEEP)
        driver.succeed(f"t{number}")
    assert driver.state("g") is TaskState.DISPATCHING
    assert driver.state("t59") is TaskState.QUEUED, "before all the small ones were done"
