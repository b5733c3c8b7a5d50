"""An operator knows that a cluster is dead: what was there is settled at once."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import CancelAttempt, StartAttempt
from tests.unit.lifecycle.driver import Driver, actor, cluster, job, ready, snapshot, task
from tests.unit.lifecycle.test_prefetch import knowing, work


def silent(*others: float, **settings: object) -> Driver:
    """Cluster a with two CPUs does not answer; b, … do."""
    driver = ready(2, *others, **settings)
    driver.send(events.LinkDown("a", "silent"))
    return driver


def declare(driver: Driver, reason: str = "") -> None:
    driver.send(events.ClusterDeclaredDead("a", reason))


def cancelled(driver: Driver) -> list[tuple[str, int, str, bool]]:
    return [(one.task_id, one.attempt, one.cluster, one.force) for one in driver.issued(CancelAttempt)]


@pytest.mark.parametrize("lost", [True, False])
def test_a_task_goes_elsewhere_without_waiting_for_its_lease(lost: bool) -> None:
    driver = ready(2, 2)
    driver.submit(task("t", preferred_cluster="a"))
    driver.start("t")
    driver.send(events.LinkDown("a", "silent"))
    if lost:
        driver.fire("lost:a", after=60)
    declare(driver, "its rack burnt down")
    record = driver.machine.record("t")
    assert (record.state, record.code) == (TaskState.RETRYING, "DECLARED_DEAD")
    assert "an operator declared a dead: its rack burnt down" in record.sentence
    assert cancelled(driver) == [("t", 1, "a", True)]
    assert driver.machine.view("a", driver.now).in_flight == 0
    assert "lost:a" not in driver.machine.timers
    driver.fire("retry:t", after=2)
    assert driver.sent_to(ever=False) == {"t": "b"}
    driver.send(events.AttemptFinished("t", 1, "succeeded"))  # it had lived on: that changes nothing
    assert driver.state("t") is TaskState.DISPATCHING


def test_a_job_that_may_not_be_repeated_ends_with_an_error_that_names_it() -> None:
    driver = ready(2, 2)
    driver.submit(job("j", preferred_cluster="a"))
    driver.start("j")
    driver.send(events.LinkDown("a", "silent"))
    declare(driver)
    end = driver.end("j")
    assert (end.state, end.error, end.cluster) == (TaskState.FAILED, "ClusterLostError", "a")
    assert "job j (j) failed on a after 1 attempt: an operator declared a dead" in end.message
    assert "retry_lost=True" in end.next_step
    assert cancelled(driver) == [("j", 1, "a", True)]  # should it come back


def test_a_job_that_may_be_repeated_goes_elsewhere() -> None:
    driver = ready(2, 2)
    driver.submit(job("j", preferred_cluster="a", retry_lost=True))
    driver.start("j")
    driver.send(events.LinkDown("a", "silent"))
    declare(driver)
    assert driver.state("j") is TaskState.RETRYING
    driver.fire("retry:j", after=2)
    assert driver.sent_to(ever=False) == {"j": "b"}


def test_a_task_without_a_budget_ends() -> None:
    driver = ready(2, 2)
    driver.submit(task("t", preferred_cluster="a", lost_retries=0))
    declare(driver)
    assert (driver.end("t").error, driver.end("t").state) == ("ClusterLostError", TaskState.FAILED)


def test_what_was_asked_to_end_has_ended() -> None:
    driver = ready(4)
    driver.submit(task("stopped"))
    driver.submit(task("slow", run_timeout=10))
    for one in ("stopped", "slow"):
        driver.start(one)
    driver.cancel("stopped")
    driver.fire("run:slow:1", after=10)
    declare(driver)
    assert (driver.end("stopped").state, driver.end("stopped").error) == (TaskState.CANCELLED, "TaskCancelledError")
    assert (driver.end("slow").state, driver.end("slow").error) == (TaskState.FAILED, "TaskTimeoutError")


def test_a_detached_actor_is_given_up_but_not_ended_should_it_live_on() -> None:
    driver = ready(2, 2)
    driver.submit(actor("d", lifetime="detached", preferred_cluster="a", public_name="d"))
    driver.start("d")
    declare(driver)
    assert driver.end("d").error == "ClusterLostError"
    assert "get_actor('d')" in driver.end("d").next_step
    assert cancelled(driver) == []


def test_an_actor_that_may_be_restarted_elsewhere_is() -> None:
    driver = ready(2, 2)
    driver.submit(actor("x", max_restarts=1, restart_elsewhere=True, preferred_cluster="a"))
    driver.start("x")
    declare(driver)
    driver.fire("retry:x", after=2)
    assert driver.sent_to(ever=False) == {"x": "b"}


def test_what_was_sent_ahead_inherits_no_place_there() -> None:
    driver = knowing(1)
    driver.submit(work("first"))
    driver.submit(work("next"))
    assert driver.machine.view("a", driver.now).prefetched == 1
    declare(driver)
    view = driver.machine.view("a", driver.now)
    assert (view.prefetched, view.in_flight, driver.issued(StartAttempt)) == (0, 0, [])
    assert driver.state("next") is TaskState.RETRYING


def test_it_takes_no_work_with_a_reason_until_its_link_is_up() -> None:
    driver = silent(1)
    declare(driver, "sold")
    driver.submit(task("only", preferred_cluster="a", fallback="wait"))
    record = driver.machine.record("only")
    assert (record.state, record.code) == (TaskState.QUEUED, "CLUSTER_DEAD")
    assert "an operator declared it dead: sold; it takes no work before it answers again" in record.sentence
    decision = driver.machine.explain_wait("only", driver.now)
    assert decision is not None
    assert decision.unblocked_by == "a answers again"
    driver.submit(task("t"))
    assert driver.sent_to()["t"] == "b"
    driver.link_up("a", 2)
    assert driver.sent_to()["only"] == "a"


def test_a_snapshot_brings_it_back_but_not_one_that_was_taken_before() -> None:
    driver = Driver(cluster("a"))
    driver.submit(job("j"))
    driver.snapshot("a", 4, source="http")
    old = snapshot("a", driver.now, 4, source="http")
    driver.now += 20
    driver.no_answer("a")
    declare(driver)
    driver.submit(job("k"))
    driver.send(events.SnapshotTaken(old), after=1)
    assert driver.machine.record("k").code == "CLUSTER_DEAD"
    driver.now += 5
    driver.snapshot("a", 4, source="http")
    assert driver.state("k") is TaskState.DISPATCHING


def test_one_that_was_declared_dead_by_mistake_is_asked_although_its_link_is_up() -> None:
    driver = ready(2)
    driver.submit(task("t"))
    declare(driver)
    driver.fire("retry:t", after=5)
    assert driver.machine.record("t").code == "CLUSTER_DEAD"
    assert driver.asked() == ["a"]
    driver.now += 1
    driver.snapshot("a", 2)
    assert driver.state("t") is TaskState.DISPATCHING


def test_a_cluster_at_another_address_is_another_one() -> None:
    driver = silent()
    declare(driver)
    driver.send(events.ClusterChanged("a", cluster("a", weight=2.0)))
    assert driver.machine.view("a", driver.now).problem.code == "CLUSTER_DEAD"
    driver.send(events.ClusterChanged("a", cluster("a", dashboard="http://elsewhere:1")))
    assert driver.machine.view("a", driver.now).problem.code == "CLUSTER_SUSPECT"


def test_nothing_happens_to_a_cluster_that_is_not_ours() -> None:
    driver = ready(1)
    assert driver.send(events.ClusterDeclaredDead("nobody")) == []


# ---- what speaks against it


def sign(driver: Driver) -> str | None:
    return driver.machine.registry.state("a").evidence_of_life(driver.now)


def test_a_link_that_is_up_is_a_sign_of_life() -> None:
    driver = ready(2)
    assert sign(driver) == "its link is up"
    driver.send(events.LinkDown("a", "silent"))
    assert sign(driver) is None
    driver.now += 2
    driver.snapshot("a", 2, source="http")  # its dashboard answers all the same
    driver.now += 3
    assert sign(driver) == "it answered 3 s ago"


def test_an_answer_is_a_sign_of_life_while_it_is_fresh() -> None:
    driver = Driver(cluster("a"))
    assert sign(driver) is None
    driver.snapshot("a", 2, source="http")
    driver.now += 15
    assert sign(driver) == "it answered 15 s ago"
    driver.now += 1
    assert sign(driver) is None
    driver.snapshot("a", 2, source="http")
    driver.no_answer("a")
    assert sign(driver) is None
