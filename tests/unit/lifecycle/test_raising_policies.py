"""A user's policy that raises ends the items that it is asked about, and never stops the scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError, PolicyEvaluationError
from ray_multicluster_scheduler.common.model import Rejection, TaskDescription, TaskState
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.policy.catalog import PolicyCatalog
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from tests.unit.lifecycle.driver import FREE, Driver, cluster, task


class OfAKind:
    """Raises for everybody."""

    name = "of a kind"
    by_kind = True

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        raise KeyError("no such thing")


class OnAFullCluster:
    """Divides by what is free."""

    name = "ratio"

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        return None if 1 / cluster.free["CPU"] > 0 else Rejection("NO", "no")


def driver_with(policy: Any, **settings: Any) -> Driver:
    catalog = PolicyCatalog()
    catalog.register_filter(policy.name, policy)
    chosen = Settings(**{**FREE, **settings})
    driver = Driver(cluster("a"))
    driver.machine = SchedulerMachine(chosen, [cluster("a")], policy=PolicyEngine(chosen, catalog=catalog))
    driver.link_up("a", 4)
    return driver


def test_one_that_reads_the_kind_only() -> None:
    driver = driver_with(OfAKind())
    for name in ("t1", "t2"):  # the second time nothing of the first is remembered as an answer
        driver.submit(task(name))
        assert driver.end(name).error == "PolicyEvaluationError"


def test_one_that_is_asked_when_room_is_to_be_kept() -> None:
    driver = driver_with(OnAFullCluster(), reserve_after_s=10)
    driver.submit(task("x", cpus=3))
    driver.submit(task("w", cpus=2))
    driver.submit(task("y", cpus=1))
    driver.fire("keep", after=10)
    assert driver.state("w") is TaskState.QUEUED
    driver.succeed("x")
    assert driver.state("w") is TaskState.DISPATCHING


def test_explain_wait_raises_to_its_caller() -> None:
    driver = driver_with(OnAFullCluster())
    driver.submit(task("x", cpus=3))
    driver.submit(task("w", cpus=2))
    driver.submit(task("y", cpus=1))
    with pytest.raises(PolicyEvaluationError):
        driver.machine.explain_wait("w", driver.now)


def test_a_filter_may_not_be_named_like_a_built_in_one() -> None:
    class Mine(OnAFullCluster):
        name = "capacity"

    with pytest.raises(ConfigurationError, match="two filters named 'capacity'"):
        driver_with(Mine())


class Moody:
    """Raises once it is asked to."""

    name = "moody"
    angry = False

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        if self.angry:
            raise KeyError("not today")
        return None


def test_a_table_that_is_read_later_shows_it_in_its_rows() -> None:
    moody = Moody()
    driver = driver_with(moody)
    record = driver.submit(task("t"))
    moody.angry = True
    assert record.decision is not None
    (row,) = record.decision.candidates
    assert [one.code for one in row.rejections] == ["POLICY_FAILED"]
    assert "the filter 'moody' raised KeyError for cluster a: 'not today'" in row.rejections[0].sentence


def test_one_that_is_asked_who_may_be_sent_ahead() -> None:
    moody = Moody()
    driver = driver_with(moody)
    for number in range(2):
        driver.submit(task(f"before{number}", cpus=4, function_digest="f"))
        driver.succeed(f"before{number}", 0.001)
    driver.submit(task("t0", cpus=4, function_digest="f"))
    driver.submit(task("slow", cpus=4, function_digest="slow"))
    driver.submit(task("t1", cpus=4, function_digest="f"))
    assert driver.state("t1") is TaskState.QUEUED  # the next place is the slow one's
    moody.angry = True
    driver.submit(task("t2", cpus=4, function_digest="f"))
    assert driver.state("t2") is TaskState.QUEUED
    assert driver.state("slow") is TaskState.QUEUED


class MoodyScore:
    """Gives what it is asked to give, or raises."""

    name = "mood"

    def __init__(self) -> None:
        self.gives: float | None = 0.5

    def score(self, task: TaskDescription, cluster: ClusterView) -> float:
        if self.gives is None:
            raise KeyError("not today")
        return self.gives


@pytest.mark.parametrize(
    ("gives", "sentence"), [(None, "the score 'mood' raised KeyError"), (7.0, "the score 'mood' raised ValueError")]
)
def test_so_it_does_of_a_score(gives: float | None, sentence: str) -> None:
    score, catalog = MoodyScore(), PolicyCatalog()
    catalog.register_score("mood", score)
    settings = Settings(**{**FREE, "weights": {"mood": 1.0}})
    driver = Driver(cluster("a"))
    driver.machine = SchedulerMachine(settings, [cluster("a")], policy=PolicyEngine(settings, catalog=catalog))
    driver.link_up("a", 4)
    record = driver.submit(task("t"))
    score.gives = gives
    assert record.decision is not None
    (row,) = record.decision.candidates
    assert sentence in row.rejections[0].sentence


def test_one_that_is_asked_whether_an_item_could_start_in_a_full_queue() -> None:
    driver = driver_with(OfAKind(), max_queue=1)
    driver.submit(task("later", start_after=driver.now + 60))
    driver.submit(task("t"))
    assert driver.end("t").error == "QueueFullError"
