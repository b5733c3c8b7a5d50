"""When waiting is pointless an item fails at once; when a cluster may come back it waits."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from tests.unit.lifecycle.driver import Driver, cluster, job, ready, task


def test_what_no_node_can_ever_meet_fails_with_the_table() -> None:
    driver = ready(4, 8)
    driver.submit(task("t", cpus=16))
    end = driver.end("t")
    assert (end.state, end.error) == (TaskState.FAILED, "NoFeasibleClusterError")
    assert "a: it requests 16 CPU, more than one node can ever have (the most on any node: 4 CPU)" in end.message
    assert "b: it requests 16 CPU" in end.message
    assert "request less" in end.next_step
    decision = driver.machine.record("t").decision
    assert decision is not None
    assert {row.cluster for row in decision.candidates} == {"a", "b"}


def test_a_cluster_without_a_snapshot_may_have_such_a_node() -> None:
    driver = Driver()
    driver.link_up("a", 4)
    driver.submit(task("t", cpus=16))
    assert driver.state("t") is TaskState.QUEUED
    driver.snapshot("b", 4)
    assert driver.end("t").error == "NoFeasibleClusterError"


def test_a_dashboard_that_is_down_from_the_start_fails_the_item() -> None:
    driver = Driver(cluster("a"))
    driver.submit(task("t"))
    driver.no_answer("a", "http://a:8265 refused the connection.")
    end = driver.end("t")
    assert (end.state, end.error) == (TaskState.FAILED, "NoHealthyClusterError")
    assert "a: it has not answered since it was added: http://a:8265 refused the connection." in end.message
    assert "rmcs clusters" in end.next_step
    assert driver.machine.timers == frozenset()


def test_the_next_submission_asks_again_before_it_fails() -> None:
    driver = Driver(cluster("a"))
    driver.submit(task("t1"))
    driver.no_answer("a")
    driver.submit(task("t2"), after=1)
    assert driver.state("t2") is TaskState.QUEUED
    assert driver.asked() == ["a"]
    driver.snapshot("a", 4)
    assert driver.state("t2") is TaskState.DISPATCHING


def test_an_answer_that_is_on_its_way_is_waited_for() -> None:
    driver = Driver(cluster("a"))
    driver.submit(task("t1"))
    driver.no_answer("a")
    driver.submit(task("t2"), after=1)
    assert driver.asked() == ["a"]
    driver.submit(task("t3", cpus=2), after=1)
    assert driver.asked() == []
    assert driver.state("t3") is TaskState.QUEUED
    driver.no_answer("a")
    assert {driver.end("t2").error, driver.end("t3").error} == {"NoHealthyClusterError"}


def test_but_not_while_the_breaker_is_open() -> None:
    driver = Driver(cluster("a"), breaker_failures=2, snapshot_interval_s=1)
    for number in range(2):
        driver.submit(task(f"t{number}"), after=1)
        driver.no_answer("a")
    driver.submit(task("t2"), after=1)
    end = driver.end("t2")
    assert end.error == "NoHealthyClusterError"
    assert "2 times in a row" in end.message
    assert driver.asked() == []


def test_a_wrong_token_fails_the_item_even_if_the_cluster_was_fine_before() -> None:
    driver = Driver(cluster("a"))
    driver.submit(job("j1"))
    driver.snapshot("a", 4, source="http")
    driver.submit(job("j2"), after=60)
    driver.no_answer("a", "the token was refused (HTTP 403).", permanent=True)
    end = driver.end("j2")
    assert end.error == "NoHealthyClusterError"
    assert "the token was refused" in end.message


def test_a_cluster_that_was_healthy_and_went_away_means_waiting() -> None:
    driver = Driver(cluster("a"))
    driver.submit(task("t1"))
    driver.snapshot("a", 4)
    driver.submit(task("t2"), after=100)
    driver.no_answer("a")
    record = driver.machine.record("t2")
    assert record.state is TaskState.QUEUED
    assert record.code == "STALE_SNAPSHOT"
    assert "connection refused" in record.sentence


def test_one_unreachable_cluster_does_not_matter_while_another_may_take_it() -> None:
    driver = Driver()
    driver.submit(task("t"))
    driver.no_answer("a")
    assert driver.state("t") is TaskState.QUEUED
    driver.snapshot("b", 2)
    assert driver.sent_to() == {"t": "b"}


def test_too_big_here_and_unreachable_there_is_unhealthy() -> None:
    driver = Driver()
    driver.link_up("a", 1)
    driver.submit(task("t", cpus=4))
    driver.no_answer("b")
    end = driver.end("t")
    assert end.error == "NoHealthyClusterError"
    assert "more than one node" in end.message
    assert "has not answered" in end.message


def test_an_interpreter_without_ray_stops_tasks_but_not_jobs() -> None:
    driver = Driver(cluster("a"))
    driver.submit(task("t1"))
    driver.snapshot("a", 4)
    driver.send(events.LinkFailed("a", "NO_RAY", "`python` there cannot import ray.", permanent=True))
    driver.refuse("t1")
    driver.fire("retry:t1", after=2)
    end = driver.end("t1")
    assert end.error == "NoHealthyClusterError"
    assert "cannot import ray" in end.message
    driver.submit(job("j"))
    assert driver.state("j") is TaskState.DISPATCHING


def test_a_link_that_failed_is_tried_again_after_a_while() -> None:
    driver = Driver(cluster("a"), breaker_recovery_s=60)
    driver.submit(task("t1"))
    driver.snapshot("a", 4)
    driver.send(events.LinkFailed("a", "TIMEOUT", "the agent did not dial back."))
    driver.refuse("t1")
    driver.fire("retry:t1", after=2)
    assert driver.machine.record("t1").code == "LINK_FAILED"
    driver.fire("wake", after=58)
    assert driver.machine.record("t1").code == "STALE_SNAPSHOT"
    driver.fire("refresh:a")
    driver.snapshot("a", 4)
    assert driver.attempt("t1") == 2


def test_no_cluster_at_all() -> None:
    driver = Driver(cluster("a"))
    driver.send(events.ClusterChanged("a", None))
    driver.submit(task("t"))
    end = driver.end("t")
    assert end.error == "NoHealthyClusterError"
    assert "rmcs fleet up" in end.next_step


def test_a_node_that_vanished_may_come_back() -> None:
    driver = Driver(cluster("a"))
    driver.link_up("a", 2, 16)
    driver.snapshot("a", 2)
    driver.submit(task("t", cpus=8))
    assert driver.machine.record("t").code == "NO_CAPACITY"
    driver.snapshot("a", 2, 16)
    assert driver.sent_to() == {"t": "a"}


def test_without_a_dashboard_tasks_go_by_ray_client() -> None:
    driver = Driver(cluster("a", dashboard=None, head_address="a:10001"))
    driver.snapshot("a", 2)
    driver.submit(task("t"))
    assert driver.sent_to() == {"t": "a"}
    driver.submit(job("j"))
    end = driver.end("j")
    assert end.error == "NoFeasibleClusterError"
    assert "`dashboard`" in end.message
