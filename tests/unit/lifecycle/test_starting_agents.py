"""While the agent of a cluster starts, work goes where one is up."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.exception import PolicyEvaluationError
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import RecallAttempt
from tests.unit.lifecycle.driver import Driver, actor, cluster, job, task


def cold(*names: str, cpus: float = 2, **settings: object) -> Driver:
    """Clusters that answer over HTTP, without agents."""
    driver = Driver(*(cluster(name) for name in names), **settings)
    driver.submit(task("first", cpus))
    for name in names:
        driver.snapshot(name, cpus, source="http")
    driver.cancel("first")
    driver.stopped("first")
    return driver


def recalled(driver: Driver) -> list[str]:
    return [one.task_id for one in driver.issued(RecallAttempt, ever=True)]


def four_on_two() -> tuple[Driver, list[str]]:
    """Four tasks, two on each cluster; the agent of a is up and its tasks run. Returns those that wait for b."""
    driver = cold("a", "b")
    for number in range(4):
        driver.submit(task(f"t{number}"))
    sent = driver.sent_to()
    assert sorted(sent[f"t{number}"] for number in range(4)) == ["a", "a", "b", "b"]
    driver.link_up("a", 2)
    there = [name for name in ("t0", "t1", "t2", "t3") if sent[name] == "a"]
    for name in there:
        driver.accept(name)
        driver.start(name)
    return driver, there


def test_task_waiting_for_agent_moves_to_freed_slot() -> None:
    driver, running = four_on_two()
    waiting = [name for name in ("t0", "t1", "t2", "t3") if name not in running]
    assert recalled(driver) == []
    driver.succeed(running[0])
    assert recalled(driver) == [waiting[1]]  # the older one is the first when the agent is up
    assert driver.machine.record(waiting[1]).code == "TAKEN_BACK"
    driver.stopped(waiting[1])
    record = driver.machine.record(waiting[1])
    assert (record.cluster, record.attempt) == ("a", 2)
    driver.succeed(running[1])
    assert recalled(driver) == [waiting[1], waiting[0]]


def test_one_is_taken_back_at_a_time() -> None:
    driver, running = four_on_two()
    driver.succeed(running[0])
    driver.succeed(running[1])
    assert len(recalled(driver)) == 1


def test_when_the_agent_is_up_or_has_failed_nothing_is_taken_back() -> None:
    driver, running = four_on_two()
    driver.link_up("b", 2)
    driver.succeed(running[0])
    assert recalled(driver) == []


def test_a_removed_cluster_is_forgotten() -> None:
    driver, running = four_on_two()
    driver.send(events.ClusterChanged("b", None))
    driver.succeed(running[0])
    assert [one for one in recalled(driver) if driver.machine.record(one).cluster == "b"] == []


def test_an_item_stays_where_it_prefers_to_be() -> None:
    driver = cold("a", "b")
    driver.submit(task("runs", preferred_cluster="a"))
    driver.link_up("a", 2)
    driver.submit(task("waits", preferred_cluster="b"))
    driver.submit(task("anywhere", preferred_cluster="a"))
    assert driver.sent_to() | {"first": ""} == {"first": "", "runs": "a", "waits": "b", "anywhere": "a"}
    driver.succeed("runs")
    assert recalled(driver) == []


def test_new_work_prefers_an_agent_that_is_up_but_not_a_job() -> None:
    driver = cold("a", "b", cpus=8)
    driver.submit(actor("waits", preferred_cluster="b"))
    driver.link_up("a", 8)
    for number in range(4):
        driver.submit(task(f"t{number}"))
        assert driver.machine.record(f"t{number}").cluster == "a"
    driver.submit(job("j", cpus=1))
    assert driver.machine.record("j").cluster == "b"
    driver.link_up("b", 8)
    driver.submit(task("later"))
    assert driver.machine.record("later").cluster == "b"


def test_if_those_that_are_up_are_full_it_goes_where_an_agent_starts() -> None:
    driver = cold("a", "b", "c")
    driver.submit(task("waits", preferred_cluster="b"))
    driver.link_up("a", 2)
    driver.submit(task("fills", cpus=2))
    assert driver.machine.record("fills").cluster == "a"
    driver.submit(task("more", allow_clusters=("a", "b")))
    assert driver.machine.record("more").cluster == "b"


def test_a_policy_that_raises_takes_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, running = four_on_two()

    def fail(*_: object, **__: object) -> None:
        raise PolicyEvaluationError("broken")

    monkeypatch.setattr(driver.machine._state.engine, "place", fail)
    driver.succeed(running[0])
    assert recalled(driver) == []


def test_what_waits_in_the_queue_gets_a_freed_slot_first() -> None:
    driver, running = four_on_two()
    driver.submit(task("queued"))
    driver.succeed(running[0])
    assert driver.machine.record("queued").cluster == "a"
    assert recalled(driver) == []


def test_decisions_name_no_agent_that_is_up() -> None:
    """With a queue, so that nothing was taken back since the agent of b came up."""
    driver, running = four_on_two()
    for number in range(4, 8):
        driver.submit(task(f"t{number}"))
    driver.link_up("b", 2)
    (waited, _) = [name for name in ("t0", "t1", "t2", "t3") if name not in running]
    driver.accept(waited)
    driver.start(waited)
    driver.succeed(waited)
    (placed,) = [one for one in ("t4", "t5", "t6", "t7") if driver.machine.record(one).cluster is not None]
    decision = driver.machine.record(placed).decision
    assert decision is not None
    assert "starting" not in decision.sentence
