"""Turns that history seldom takes."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.model import NodeSnapshot, ResourceSnapshot, TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Dispatch, Publish
from ray_multicluster_scheduler.scheduler.lifecycle.placement.run_times import RunTimes
from tests.unit.lifecycle.driver import Driver, actor, cluster, ready, task, with_lost_job
from tests.unit.lifecycle.test_prefetch import ahead, knowing, taken_back, work


def test_a_start_that_is_reported_with_the_end_is_recorded() -> None:
    driver = ready(4)
    driver.submit(task("t"))
    driver.accept("t")
    event = events.AttemptFinished("t", 1, "succeeded", took=0.2, started_at=driver.now + 0.1, node_id="n1")
    driver.send(event, after=0.3)
    assert driver.states("t") == ["PENDING", "QUEUED", "DISPATCHING", "RUNNING", "SUCCEEDED"]
    assert driver.machine.record("t").started_at == 1000.1


def test_a_lost_cluster_is_reported_once() -> None:
    driver = with_lost_job(refreshes=14)
    lost = [one for one in driver.issued(Publish, ever=True) if one.transition.state is TaskState.LOST]
    assert len(lost) == 1


def test_a_detached_actor_that_was_lost_may_be_found_again() -> None:
    driver = ready(4)
    driver.submit(actor("x", lifetime="detached", public_name="me"))
    driver.start("x")
    driver.fail("x", "cluster", None)
    end = driver.end("x")
    assert (end.state, end.error) == (TaskState.FAILED, "ClusterLostError")
    assert end.next_step == "get_actor('me') finds it when a is back, if it lived on there"


def test_no_room_is_kept_where_others_have_what_it_needs() -> None:
    """Everything of ours could end there, and it would still not fit."""
    driver = Driver(cluster("a"))
    driver.send(events.LinkUp("a", "3.11.9", "2.60.0", "s1"))
    driver.send(events.SnapshotTaken(ResourceSnapshot("a", driver.now, (_node(8.0, 6.0),), "agent")))
    for number in range(6):
        driver.submit(task(f"s{number}"))
    driver.submit(task("wide", cpus=8))
    driver.fire("keep", after=300)
    assert driver.machine.view("a", driver.now).reserved_for is None
    driver.succeed("s0")
    driver.submit(task("late"))
    assert driver.state("late") is TaskState.DISPATCHING


def _node(total: float, free: float) -> NodeSnapshot:
    return NodeSnapshot("n1", {"CPU": total}, {"CPU": free})


def test_who_is_placed_or_over_does_not_wait_for_anything() -> None:
    driver = ready(1)
    driver.submit(task("t"))
    driver.submit(task("waits"))
    assert driver.machine.explain_wait("t", driver.now) is None
    why = driver.machine.explain_wait("waits", driver.now)
    assert why is not None
    assert (why.task_id, why.code) == ("waits", "NO_CAPACITY")
    driver.succeed("t")
    assert driver.machine.explain_wait("t", driver.now) is None


def test_the_machine_reports_queue_positions_and_its_filters() -> None:
    driver = ready(1)
    for name in ("runs", "first", "second"):
        driver.submit(task(name))
    place = driver.machine.queue_position("second", driver.now)
    assert place is not None
    assert driver.machine.queue_position("runs", driver.now) is None
    assert {"capacity", "cordon", "threshold"} <= set(driver.machine.filter_names)


def test_decisions_stay_correct_when_more_shapes_wait_than_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray_multicluster_scheduler.scheduler.lifecycle.placement.scheduling_pass.KEPT_SHAPES", 2)
    driver = ready(4)
    driver.submit(task("runs", cpus=4))
    for number in range(5):
        driver.submit(task(f"t{number}", cpus=1 + number / 10))
    assert {driver.machine.record(f"t{number}").code for number in range(5)} == {"NO_CAPACITY"}
    driver.succeed("runs")
    assert list(driver.sent_to(ever=False)) == ["t0", "t1", "t2"]


class TestSentAhead:
    def test_past_one_that_will_not_go_there(self) -> None:
        driver = knowing(1, 1)
        for name in ("x", "y"):
            driver.submit(work(name))
        full = driver.sent_to()["x"]
        other = driver.sent_to()["y"]
        driver.send(events.ClusterChanged(other, cluster(other), cordoned=True))
        driver.submit(work("not there", deny_clusters=(full,)))
        driver.submit(work("there"))
        assert ahead(driver, ever=True) == ["there"]
        assert driver.sent_to()["there"] == full
        assert driver.state("not there") is TaskState.QUEUED

    def test_only_the_less_urgent_make_way(self) -> None:
        driver = knowing(1, prefetch_ms=100)
        driver.submit(work("runs", priority=5))
        driver.submit(work("low", priority=0))
        driver.submit(work("high", priority=5))
        assert ahead(driver, ever=True) == ["low", "high"]
        driver.submit(task("wide", priority=5, requirements={"CPU": 1.0, "memory": 0.0}))
        assert taken_back(driver) == ["low"]

    def test_is_asked_back_once(self) -> None:
        driver = knowing(1)
        driver.submit(work("t0"))
        driver.submit(work("t1"))
        for _ in range(2):
            driver.send(events.ClusterChanged("a", cluster("a"), cordoned=True))
        assert taken_back(driver) == ["t1"]

    def test_not_to_a_place_that_vanished_with_its_node(self) -> None:
        driver = knowing(1)
        driver.submit(work("t0"))
        gone = ResourceSnapshot("a", driver.now, (NodeSnapshot("n9", {"CPU": 1.0}, {"CPU": 0.0}),), "agent")
        driver.send(events.SnapshotTaken(gone))
        driver.submit(work("t1"))
        assert driver.issued(Dispatch) == []
        assert driver.state("t1") is TaskState.QUEUED

    def test_not_to_a_cluster_that_was_removed(self) -> None:
        driver = knowing(1)
        driver.submit(work("x"))  # a short one had a place on a
        driver.succeed("x", 0.01)
        driver.send(events.ClusterChanged("b", cluster("b")))
        driver.link_up("b", 1)
        driver.send(events.ClusterChanged("a", None))
        driver.submit(task("long"))
        driver.submit(work("short"))
        assert driver.state("short") is TaskState.QUEUED
        driver.succeed("long")
        assert driver.sent_to(ever=False) == {"short": "b"}

    def test_a_place_taken_over_on_a_crowded_cluster_lets_others_in(self) -> None:
        driver = Driver(cluster("a", max_in_flight=2))
        driver.link_up("a", 1)
        for number in range(2):
            driver.submit(work(f"before{number}"))
            driver.succeed(f"before{number}", 0.01)
        for name in ("t0", "t1", "t2"):
            driver.submit(work(name))
        assert ahead(driver, ever=True) == ["t1"]
        assert driver.state("t2") is TaskState.QUEUED
        driver.move("t0", "t1")
        driver.succeed("t0", 0.01)
        assert driver.sent_to()["t2"] == "a"


def test_unrelated_entries_are_not_forgotten() -> None:
    times = RunTimes()
    for _ in range(2):
        times.observe("f", 1.0)
    times.forget(None)
    assert times.expected_s("f") == pytest.approx(1.001)
    times.forget("f")
    assert times.expected_s("f") is None
