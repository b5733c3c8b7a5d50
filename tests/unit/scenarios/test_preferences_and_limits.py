"""What users wish for and operators allow, as they meet in one fleet."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import TaskDescription, TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from tests.unit.lifecycle.driver import Driver, actor, cluster, job, ready, task

MAKERS: dict[str, Callable[..., TaskDescription]] = {"job": job, "task": task, "actor": actor}


@pytest.mark.parametrize("kinds", list(permutations(MAKERS)), ids="-".join)
def test_all_three_kinds_share_one_interval_where_an_operator_wants_it_for_all(kinds: tuple[str, ...]) -> None:
    """«The head of that old cluster falls over when things come too fast; whatever they are.»"""
    driver = ready(16, submission_interval_s=40, submission_interval_kinds=list(MAKERS))
    for kind in kinds:
        driver.submit(MAKERS[kind](kind), after=5)
    assert list(driver.sent_to()) == [kinds[0]]
    for kind in kinds[1:]:
        assert driver.machine.record(kind).code == "SUBMISSION_INTERVAL"
    driver.fire("wake", after=30)
    assert list(driver.sent_to()) == list(kinds[:2])
    driver.fire("wake", after=40)
    assert list(driver.sent_to()) == list(kinds)


def test_the_interval_is_each_clusters_own() -> None:
    """Two clusters take two jobs at once; the third waits for whichever is ready first."""
    driver = ready(8, 8, submission_interval_s=40)
    driver.submit(job("one"))
    driver.submit(job("two"), after=10)
    driver.submit(job("three"), after=10)
    assert len({driver.sent_to()["one"], driver.sent_to()["two"]}) == 2
    assert driver.state("three") is TaskState.QUEUED
    driver.fire("wake", after=20)
    assert driver.sent_to()["three"] == driver.sent_to()["one"]


def test_allowed_and_denied_clusters() -> None:
    """«Licences are on `a` only, and the data must not leave for `b`.»"""
    driver = ready(4, 4, 16)
    for number in range(4):
        driver.submit(task(f"licence{number}", 2, allow_clusters=("a",)))
        driver.submit(task(f"private{number}", 2, deny_clusters=("b",)))
    assert {driver.sent_to()[name] for name in driver.sent_to() if name.startswith("licence")} == {"a"}
    assert "b" not in driver.sent_to().values()
    waiting = driver.machine.record("licence3")
    assert waiting.state is TaskState.QUEUED
    assert waiting.decision is not None
    by_cluster = {row.cluster: {one.code for one in row.rejections} for row in waiting.decision.candidates}
    assert by_cluster == {"a": {"NO_CAPACITY"}, "b": {"NOT_ALLOWED"}, "c": {"NOT_ALLOWED"}}


def test_an_item_that_denies_every_cluster_fails_at_once() -> None:
    driver = ready(4, 4)
    driver.submit(task("nowhere", deny_clusters=("a", "b")))
    end = driver.end("nowhere")
    assert end.error == "NoFeasibleClusterError"
    assert end.message.count("the item denies it (deny_clusters)") == 2


def test_custom_resources_are_counted_like_cpus() -> None:
    """«Only two machines have the camera, and it can serve one at a time.»"""
    driver = Driver(cluster("lab"), cluster("plain"))
    driver.link_up("lab", {"CPU": 8.0, "camera": 1.0}, {"CPU": 8.0, "camera": 1.0})
    driver.link_up("plain", 64)
    for number in range(3):
        driver.submit(task(f"shot{number}", requirements={"CPU": 1.0, "camera": 1.0}))
    assert driver.sent_to() == {"shot0": "lab", "shot1": "lab"}
    assert driver.machine.record("shot2").code == "NO_CAPACITY"
    driver.succeed("shot0")
    assert driver.sent_to(ever=False) == {"shot2": "lab"}


def test_gpu_work_finds_gpus_and_other_work_leaves_them_alone_while_it_can() -> None:
    driver = Driver(cluster("gpus"), cluster("cpus"))
    driver.link_up("gpus", {"CPU": 16.0, "GPU": 2.0})
    driver.link_up("cpus", 2)
    driver.submit(task("train", requirements={"CPU": 1.0, "GPU": 2.0}))
    driver.succeed("train")
    for number in range(3):
        driver.submit(task(f"plain{number}"))
    driver.submit(task("half", requirements={"GPU": 0.5}))
    assert driver.sent_to() == {"train": "gpus", "plain0": "cpus", "plain1": "cpus", "plain2": "gpus", "half": "gpus"}
    driver.submit(task("three", requirements={"GPU": 3.0}))
    assert driver.end("three").error == "NoFeasibleClusterError"


def test_tags_are_a_wish_and_required_tags_a_demand() -> None:
    driver = Driver(cluster("arm", tags=("arm64",)), cluster("x86", tags=("x86_64",)))
    driver.link_up("arm", 1)
    driver.link_up("x86", 8)
    driver.submit(task("wish1", tags=("arm64",)))
    driver.submit(task("wish2", tags=("arm64", "project-7")))
    driver.submit(task("demand", require_tags=("arm64",)))
    assert driver.sent_to() == {"wish1": "arm", "wish2": "x86"}
    driver.succeed("wish1")
    assert driver.sent_to()["demand"] == "arm"
    driver.submit(task("impossible", require_tags=("riscv",)))
    assert driver.end("impossible").error == "NoFeasibleClusterError"


def test_a_node_that_may_still_appear_is_waited_for() -> None:
    """«The autoscaler adds such a node when it is asked. It was never asked: we were told that it fits nowhere.»"""
    driver = Driver(cluster("elastic", autoscaling=True, max_node={"CPU": 32.0}))
    driver.link_up("elastic", 4)
    record = driver.submit(task("wide", 32))
    assert record.state is not TaskState.FAILED
    driver.submit(task("wider", 33))
    assert driver.end("wider").error == "NoFeasibleClusterError"


def test_a_cluster_is_emptied_for_repair_without_losing_anything() -> None:
    """Cordon: what runs goes on, what waits for it alone waits on, everything else goes elsewhere; then back again."""
    metadata = cluster("a")
    driver = Driver(metadata, cluster("b"))
    driver.link_up("a", 8)
    driver.link_up("b", 8)
    driver.submit(task("runs", preferred_cluster="a"))
    driver.start("runs")
    driver.send(events.ClusterChanged("a", metadata, cordoned=True))
    driver.submit(task("rather", preferred_cluster="a"))
    driver.submit(task("only", preferred_cluster="a", fallback="wait"))
    assert driver.sent_to() == {"runs": "a", "rather": "b"}
    assert driver.machine.record("only").code == "CORDONED"
    driver.succeed("runs")
    assert driver.state("runs") is TaskState.SUCCEEDED
    assert driver.machine.view("a", driver.now).in_flight == 0  # empty: now it can be repaired
    driver.send(events.ClusterChanged("a", metadata, cordoned=False))
    assert driver.sent_to()["only"] == "a"


@pytest.mark.parametrize(
    ("limits", "settings", "code"),
    [
        ({"max_running_jobs": 1}, {}, "MAX_RUNNING_JOBS"),
        ({"max_in_flight": 1}, {}, "MAX_IN_FLIGHT"),
        ({}, {"execution_mode": "serial"}, "SERIAL"),
    ],
)
def test_limits_hold_per_cluster_and_give_way_as_soon_as_something_ends(
    limits: dict[str, Any], settings: dict[str, Any], code: str
) -> None:
    driver = Driver(cluster("a", **limits), cluster("b", **limits), **settings)
    driver.link_up("a", 8)
    driver.link_up("b", 8)
    for number in range(4):
        driver.submit(job(f"j{number}"))
    assert sorted(driver.sent_to().values()) == ["a", "b"]
    assert {driver.machine.record(name).code for name in ("j2", "j3")} == {code}
    driver.succeed("j1")
    assert driver.sent_to(ever=False) == {"j2": driver.sent_to()["j1"]}
    driver.cancel("j0")
    driver.stopped("j0")
    assert driver.sent_to(ever=False) == {"j3": driver.sent_to()["j0"]}
