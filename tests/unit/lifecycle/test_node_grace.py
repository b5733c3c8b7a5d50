"""A head that restarts does not end at once what its other nodes run: the next attempt waits for that."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.model import FailureClass, TaskDescription, TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import SetTimer
from ray_multicluster_scheduler.scheduler.lifecycle.retry import pause
from tests.unit.lifecycle.driver import Driver, cluster, job, task

BACK_OFF = {"base_s": 1, "jitter": 0}


def running(item: TaskDescription, *nodes: float, **settings: object) -> Driver:
    """An item that runs on a cluster of these nodes, of session s1."""
    driver = Driver(cluster("a"), cluster("b"), **{"retry_backoff": BACK_OFF, **settings})
    driver.send(events.LinkUp("a", "3.11.9", "2.60.0", "s1"))
    driver.snapshot("a", *nodes, session_id="s1")
    driver.submit(item)
    driver.now += 1
    driver.start(item.id)
    return driver


def dies(driver: Driver, code: str, name: str = "t") -> float:
    """The attempt is declared dead; returns how long the next one waits."""
    attempt = driver.attempt(name)
    sentence = "the cluster was restarted and has no record of it"
    driver.send(
        events.AttemptFinished(name, attempt, "failed", FailureClass.CLUSTER, "ClusterLostError", code, sentence)
    )
    assert driver.state(name) is TaskState.RETRYING
    (timer,) = [one for one in driver.issued(SetTimer) if one.key == f"retry:{name}"]
    return timer.at - driver.now


@pytest.mark.parametrize(
    ("nodes", "code", "waits"),
    [
        ((4, 4), "CLUSTER_RESTARTED", 90),
        ((4,), "CLUSTER_RESTARTED", 1),  # what ran on the head went with it
        ((4, 4), "CLUSTER_LOST", 1),  # ended by its lease, or with the agent: nothing can still run
    ],
)
def test_the_next_attempt_waits_node_grace_s_where_there_were_several_nodes(
    nodes: tuple[float, ...], code: str, waits: float
) -> None:
    driver = running(task("t"), *nodes, node_grace_s=90)
    assert dies(driver, code) == waits


def test_the_reason_names_what_is_waited_for() -> None:
    driver = running(task("t"), 4, 4)
    dies(driver, "CLUSTER_RESTARTED")
    record = driver.machine.record("t")
    assert record.code == "CLUSTER_RESTARTED"
    assert record.sentence.endswith(
        "tried again in 60.0 s (node_grace_s), when no node of the old session can still run it"
    )
    driver.link_up("b", 4)
    assert driver.state("t") is TaskState.RETRYING  # another cluster does not help: two attempts could live at once
    driver.fire("retry:t", after=60)
    assert driver.attempt("t") == 2


def test_what_counts_is_what_the_old_session_had() -> None:
    """The first snapshot of the new one may come before the attempt is declared dead, with the head alone."""
    driver = running(task("t"), 4, 4, node_grace_s=90)
    driver.now += 5
    driver.snapshot("a", 4, session_id="s2", source="http")
    assert dies(driver, "CLUSTER_RESTARTED") == 90
    driver = running(task("t"), 4, node_grace_s=90)
    driver.now += 5
    driver.snapshot("a", 4, 4, 4, session_id="s2", source="http")
    assert dies(driver, "CLUSTER_RESTARTED") == 1


def test_a_job_that_is_repeated_waits_too() -> None:
    driver = running(job("j", retry_lost=True), 4, 4, node_grace_s=90)
    assert dies(driver, "CLUSTER_RESTARTED", "j") == 90


def test_the_node_count_of_a_removed_cluster_is_unknown() -> None:
    driver = running(task("t"), 4, node_grace_s=90)
    driver.send(events.ClusterChanged("a", None))
    assert dies(driver, "CLUSTER_RESTARTED") == 90


def test_nor_does_anybody_know_it_of_one_that_is_back_since_then() -> None:
    driver = running(task("t"), 4, node_grace_s=90)
    driver.send(events.ClusterChanged("a", None))
    driver.send(events.ClusterChanged("a", cluster("a")))
    driver.now += 1
    driver.snapshot("a", 4, session_id="s2", source="http")
    assert dies(driver, "CLUSTER_RESTARTED") == 90


@pytest.mark.parametrize("seen", [False, True])
def test_nor_does_a_process_that_took_over_what_ran_there(seen: bool) -> None:
    """The first snapshot that it sees may be of the new session, with the head alone."""
    before = running(task("t"), 4, 4, node_grace_s=90)
    driver = Driver(cluster("a"), node_grace_s=90)
    driver.now = before.now + 5
    driver.send(events.Restored((before.machine.row("t"),)))
    if seen:
        driver.snapshot("a", 4, session_id="s2", source="http")
    assert dies(driver, "CLUSTER_RESTARTED") == 90


def test_the_longer_of_the_two_waits_counts() -> None:
    assert pause(5.0, 0.0) == (5.0, "5.0 s")
    assert pause(120.0, 60.0) == (120.0, "120.0 s")
    assert pause(5.0, 60.0)[0] == 60.0
