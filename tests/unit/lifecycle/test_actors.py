"""Actors as items: placed like tasks, RUNNING from ready to their end, restarted where they were."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import ActorDescription, TaskDescription, TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import CancelAttempt, Dispatch
from tests.unit.lifecycle.driver import Driver, actor, cluster, ready, task


def serving(driver: Driver, task_id: str, **values: Any) -> TaskDescription:
    """An actor that is ready."""
    item = actor(task_id, **values)
    driver.submit(item)
    driver.accept(task_id)
    driver.start(task_id, "n1")
    return item


def free(driver: Driver, name: str = "a") -> float:
    return driver.machine.view(name, driver.now).free["CPU"]


def test_one_cpu_to_place_and_none_held_once_it_is_ready() -> None:
    driver = ready(1)
    driver.submit(actor("x"))
    assert free(driver) == 0
    driver.start("x", "n1")
    assert free(driver) == 1
    assert driver.state("x") is TaskState.RUNNING
    assert driver.machine.record("x").code == "READY"


def test_actor_holds_its_requirements_while_it_lives() -> None:
    driver = ready(2)
    serving(driver, "x", cpus=2)
    assert free(driver) == 0
    driver.submit(task("t"))
    assert driver.state("t") is TaskState.QUEUED
    driver.cancel("x")
    assert [(one.task_id, one.force) for one in driver.issued(CancelAttempt)] == [("x", False)]
    driver.stopped("x")
    assert driver.state("x") is TaskState.CANCELLED
    assert driver.state("t") is TaskState.DISPATCHING


def test_without_a_free_cpu_it_waits_although_it_will_hold_none() -> None:
    driver = ready(1)
    driver.submit(task("t"))
    assert driver.submit(actor("x")).state is TaskState.QUEUED
    driver.succeed("t")
    assert driver.state("x") is TaskState.DISPATCHING


def test_leaving_by_itself_is_success() -> None:
    driver = ready(1)
    serving(driver, "x")
    driver.succeed("x")
    assert driver.states("x") == ["PENDING", "QUEUED", "DISPATCHING", "RUNNING", "SUCCEEDED"]


def test_the_death_of_an_actor_fails_it_with_its_error_class() -> None:
    driver = ready(1)
    serving(driver, "x")
    driver.fail("x", "crash", "ActorDiedError")
    assert driver.state("x") is TaskState.FAILED
    assert driver.end("x").error == "ActorDiedError"
    assert "max_restarts" in driver.end("x").next_step


def test_an_error_of_its_constructor_is_the_users_own_and_it_never_ran() -> None:
    driver = ready(1)
    driver.submit(actor("x"))
    driver.fail("x", "user")
    assert driver.end("x").error is None
    assert "RUNNING" not in driver.states("x")


def test_it_is_restarted_max_restarts_times_on_its_own_cluster() -> None:
    driver = ready(2, 8)
    serving(driver, "x", max_restarts=1, preferred_cluster="a")
    driver.fail("x", "crash", "ActorDiedError")
    assert driver.state("x") is TaskState.RETRYING
    driver.send(events.ClusterChanged("a", cluster("a"), cordoned=True))
    driver.fire("retry:x", after=2)
    assert driver.state("x") is TaskState.QUEUED  # not on b, which has room
    driver.send(events.ClusterChanged("a", cluster("a"), cordoned=False))
    assert driver.issued(Dispatch)[0].cluster == "a"
    assert driver.attempt("x") == 2
    driver.start("x", "n1")
    driver.fail("x", "crash", "ActorDiedError")
    assert driver.state("x") is TaskState.FAILED


def test_restart_elsewhere_moves_it() -> None:
    driver = ready(2, 2)
    serving(driver, "x", max_restarts=1, preferred_cluster="a", restart_elsewhere=True)
    driver.fail("x", "cluster", "ClusterLostError")
    driver.send(events.ClusterChanged("a", cluster("a"), cordoned=True))
    driver.fire("retry:x", after=2)
    assert driver.issued(Dispatch)[0].cluster == "b"


def test_max_restarts_minus_one_has_no_end() -> None:
    driver = ready(2)
    serving(driver, "x", max_restarts=-1)
    for _ in range(20):
        driver.fail("x", "crash", "ActorDiedError")
        driver.fire("retry:x", after=100)
        driver.start("x", "n1")
    assert driver.state("x") is TaskState.RUNNING


def test_crash_retries_are_for_tasks() -> None:
    driver = ready(2)
    serving(driver, "x", crash_retries=3, lost_retries=3)
    driver.fail("x", "cluster", "ClusterLostError")
    assert driver.end("x").error == "ClusterLostError"


def test_a_detached_one_is_restarted_by_ray_alone() -> None:
    driver = ready(2)
    serving(driver, "x", max_restarts=5, lifetime="detached", public_name="me")
    driver.fail("x", "crash", "ActorDiedError")
    assert driver.state("x") is TaskState.FAILED


def test_not_ready_in_time_ends_it() -> None:
    driver = ready(2)
    driver.submit(actor("x", ready_timeout=30))
    driver.accept("x")
    driver.fire("start:x:1", after=30)
    assert driver.issued(CancelAttempt)[0].force
    driver.stopped("x")
    assert driver.end("x").error == "TaskTimeoutError"
    assert "ready_timeout of 30 s" in driver.end("x").message


def test_it_is_lost_and_found_like_a_task() -> None:
    driver = ready(2)
    serving(driver, "x")
    driver.send(events.LinkDown("a", "silent"))
    driver.fire("lost:a", after=60)
    assert driver.state("x") is TaskState.LOST
    driver.link_up("a", 2)
    assert driver.state("x") is TaskState.RUNNING


def test_serial_mode_counts_an_actor_until_it_is_ready() -> None:
    driver = ready(8, execution_mode="serial")
    driver.submit(actor("x"))
    driver.submit(task("t"))
    assert driver.state("t") is TaskState.QUEUED
    driver.start("x", "n1")
    assert driver.state("t") is TaskState.DISPATCHING


def test_a_bound_item_whose_cluster_is_removed_fails() -> None:
    driver = ready(2, 2)
    serving(driver, "x", max_restarts=1, preferred_cluster="a")
    driver.fail("x", "crash", "ActorDiedError")
    driver.send(events.ClusterChanged("a", cluster("a"), cordoned=True))
    driver.fire("retry:x", after=2)
    driver.send(events.ClusterChanged("a", None))
    assert driver.state("x") is TaskState.FAILED
    assert "removed" in driver.end("x").message


@pytest.mark.parametrize(
    "wrong",
    [
        {"lifetime": "for ever"},
        {"lifetime": "detached"},
        {"lifetime": "detached", "public_name": "n", "restart_elsewhere": True},
        {"max_restarts": -2},
        {"ready_timeout": 0},
        {"max_concurrency": 0},
    ],
)
def test_invalid_options_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        ActorDescription("x", **wrong)


def test_a_description_survives_its_dict() -> None:
    item = actor("x", cpus=2, max_restarts=3, public_name="me")
    assert TaskDescription.from_dict(item.to_dict()) == item


def test_restarts_are_counted_whatever_the_cause_and_refusals_are_not() -> None:
    driver = ready(2)
    serving(driver, "x", max_restarts=1)
    driver.fail("x", "crash", "ActorDiedError")
    driver.fire("retry:x", after=2)
    driver.refuse("x")
    driver.fire("retry:x", after=5)
    driver.start("x", "n1")
    driver.fail("x", "cluster", "ClusterLostError")
    assert driver.state("x") is TaskState.FAILED, "one restart, and it is used up"


def test_until_it_was_ready_it_is_tried_again_like_a_task() -> None:
    driver = ready(2)
    driver.submit(actor("x", crash_retries=1))
    driver.fail("x", "crash", "WorkerCrashedError")
    assert driver.state("x") is TaskState.RETRYING
    driver.fire("retry:x", after=2)
    driver.fail("x", "crash", "WorkerCrashedError")
    assert driver.state("x") is TaskState.FAILED


def test_an_actor_that_gets_ready_while_its_cluster_is_not_configured_stays_there_too() -> None:
    driver = ready(4, 4)
    driver.submit(actor("c"))
    driver.accept("c")
    where = driver.sent_to()["c"]
    metadata = driver.machine.registry.state(where).metadata
    driver.send(events.ClusterChanged(where, None))
    driver.start("c", "n1")
    assert driver.machine.record("c").pinned == where
    driver.send(events.ClusterChanged(where, metadata))
    driver.fail("c", "crash")
    driver.now += 60
    for timer in [one for one in driver.machine.timers if one.startswith("retry")]:
        driver.fire(timer)
    assert set(driver.sent_to().values()) == {where}
