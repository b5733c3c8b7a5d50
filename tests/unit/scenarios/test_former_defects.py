"""Known problems of users of such systems: each as it was reported, and as it goes now.

With the settings that a user has who changed none, except where the story itself is about one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import JobDescription, TaskState
from ray_multicluster_scheduler.control_plane.config import ClusterConfig
from ray_multicluster_scheduler.scheduler.connection.packages.runtime_env_upload import PackageCache
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Dispatch
from ray_multicluster_scheduler.scheduler.scheduler_core.attempt_preparation import AttemptPreparation
from tests.unit.lifecycle.driver import Driver, cluster, job, snapshot, task

AS_SHIPPED: dict[str, Any] = {"resource_threshold": 0.7, "submission_interval_s": 40}
DONE = {TaskState.SUCCEEDED}


def fleet(*clusters: Any, **settings: Any) -> Driver:
    return Driver(*clusters, **{**AS_SHIPPED, **settings})


def full(driver: Driver, name: str, cpus: float) -> None:
    """Another user uses nearly all of it."""
    taken = snapshot(name, driver.now, cpus)
    busy = tuple(type(node)(node.node_id, node.total, {"CPU": 1.0}) for node in taken.nodes)
    driver.send(events.LinkUp(name, "3.11.9", "2.60.0", "s1"))
    driver.send(events.SnapshotTaken(type(taken)(name, driver.now, busy, "agent")))


def test_one_free_cluster_among_full_ones_is_used_at_once() -> None:
    """«Three of our clusters were full, so nothing was sent to the fourth, which was idle all night.»

    The average over all of them was above the threshold, and the threshold was taken for the fleet's.
    """
    driver = fleet(*(cluster(name) for name in ("full1", "full2", "full3", "idle")))
    for name in ("full1", "full2", "full3"):
        full(driver, name, 20)
    driver.link_up("idle", 20)
    record = driver.submit(task("mine", 2))
    assert driver.sent_to(ever=False) == {"mine": "idle"}  # by the very call that brought it
    assert record.decision is not None
    rejected = {row.cluster: [one.code for one in row.rejections] for row in record.decision.candidates}
    assert rejected == {**{f"full{n}": ["NO_CAPACITY", "ABOVE_THRESHOLD"] for n in (1, 2, 3)}, "idle": []}


def test_three_jobs_on_one_idle_cluster_all_run_in_order() -> None:
    """«I submitted three jobs in a row. The first ran; the other two were never seen again.»

    The interval between two submissions turned them away, and nobody came back to them.
    """
    driver = fleet(cluster("only"))
    driver.submit(job("first"))
    driver.snapshot("only", 8, source="http")
    driver.submit(job("second"), after=1)
    driver.submit(job("third"), after=1)
    assert list(driver.sent_to()) == ["first"]
    assert driver.machine.record("second").code == "SUBMISSION_INTERVAL"
    assert "the next in 39 s" in driver.machine.record("second").sentence
    driver.fire("wake", after=38)
    driver.snapshot("only", 8, source="http")
    assert list(driver.sent_to()) == ["first", "second"]
    driver.fire("wake", after=40)
    driver.snapshot("only", 8, source="http")
    assert list(driver.sent_to()) == ["first", "second", "third"]
    for name in ("first", "second", "third"):
        driver.start(name)
        driver.succeed(name)
    assert {driver.state(name) for name in ("first", "second", "third")} == DONE


def test_a_16_cpu_task_never_goes_to_a_cluster_of_8_cpu_nodes() -> None:
    """«It said that 32 CPUs were free, sent my task there, and it hung: they were four machines of eight.»"""
    driver = fleet(cluster("herd"), cluster("bull"))
    driver.link_up("herd", 8, 8, 8, 8)
    driver.link_up("bull", 16)
    full(driver, "bull", 16)
    record = driver.submit(task("wide", 16))
    assert driver.state("wide") is TaskState.QUEUED
    assert record.decision is not None
    herd, bull = record.decision.candidates
    assert any(one.code == "TOO_BIG" and one.permanent for one in herd.rejections)
    assert all(not one.permanent for one in bull.rejections)  # there it is worth waiting for
    driver.now += 10
    driver.snapshot("bull", 16)
    assert driver.sent_to() == {"wide": "bull"}


def test_a_16_cpu_task_fails_at_once_where_there_are_8_cpu_nodes_only() -> None:
    """The same, where no other cluster is: it is reported now, not after a night of waiting."""
    driver = fleet(cluster("herd"))
    driver.link_up("herd", 8, 8)
    driver.submit(task("wide", 16))
    end = driver.end("wide")
    assert (end.state, end.error) == (TaskState.FAILED, "NoFeasibleClusterError")
    assert "herd: it requests 16 CPU, more than one node can ever have (the most on any node: 8 CPU)" in end.message


def test_the_third_job_starts_when_the_second_ends() -> None:
    """«Two jobs may run there. When the second had ended, the third still waited until I restarted everything.»"""
    driver = fleet(cluster("only", max_running_jobs=2), submission_interval_s=0)
    driver.link_up("only", 8)
    for name in ("first", "second", "third"):
        driver.submit(job(name))
    assert driver.machine.record("third").code == "MAX_RUNNING_JOBS"
    driver.start("first")
    driver.start("second")
    driver.succeed("second")
    assert driver.sent_to(ever=False) == {"third": "only"}  # by the very call that reported the end
    assert driver.state("first") is TaskState.RUNNING


@pytest.mark.parametrize("max_queue", [100_000, 100])
def test_150_submissions_are_150_tracked_items_or_explicit_refusals(max_queue: int) -> None:
    """«I submitted 150 tasks. 100 results came back, and no error: a queue of 100 had dropped the rest.»"""
    driver = fleet(cluster("only"), max_queue=max_queue, resource_threshold=1)
    driver.link_up("only", 4)
    ids = [f"t{number}" for number in range(150)]
    for name in ids:
        driver.submit(task(name))
    for _ in ids:  # what runs now ends, and makes room
        for name in ids:
            if driver.state(name) is TaskState.DISPATCHING:
                driver.succeed(name)
    states = Counter(driver.state(name) for name in ids)
    refused = [driver.end(name) for name in ids if driver.state(name) is TaskState.FAILED]
    assert states[TaskState.SUCCEEDED] == min(150, max_queue + 4)
    assert states[TaskState.SUCCEEDED] + len(refused) == 150
    assert all(one.error == "QueueFullError" and "max_queue is 100" in one.message for one in refused)


def test_a_metrics_outage_reads_as_unknown_not_idle() -> None:
    """«Our metrics were down, every cluster looked empty, and all the work went to the one that was overloaded.»"""
    driver = fleet(cluster("silent"), cluster("telling"))
    driver.submit(task("before"))
    driver.snapshot("silent", 64, source="http")
    driver.snapshot("telling", 4, source="http")
    assert driver.sent_to() == {"before": "silent"}  # by far the larger one
    driver.now += 120
    driver.no_answer("silent", "connection timed out")
    driver.snapshot("telling", 4, source="http")
    record = driver.submit(task("after"))
    assert driver.sent_to()["after"] == "telling"
    assert record.decision is not None
    silent = next(row for row in record.decision.candidates if row.cluster == "silent")
    assert [(one.code, one.permanent) for one in silent.rejections] == [("STALE_SNAPSHOT", False)]
    assert "120 s old: connection timed out" in silent.rejections[0].sentence
    driver.submit(task("bound", preferred_cluster="silent", fallback="wait"))
    assert driver.state("bound") is TaskState.QUEUED
    driver.snapshot("silent", 64, source="http")
    assert driver.sent_to()["bound"] == "silent"


@pytest.mark.parametrize("name", ["win-lab", "gpu_2", "Ω", "3"])
def test_a_third_cluster_of_any_name_works(name: str) -> None:
    """«It knew `centos` and `mac`. Of our third cluster it said nothing, and sent nothing there.»"""
    driver = fleet(cluster("centos"), cluster("mac"), cluster(name, tags=("ours",)))
    for one in ("centos", "mac", name):
        driver.link_up(one, 8)
    driver.submit(task("by-name", preferred_cluster=name))
    driver.submit(task("by-tag", tags=("ours",)))
    for number in range(3):
        driver.submit(task(f"t{number}"))
    sent = driver.sent_to()
    assert (sent["by-name"], sent["by-tag"]) == (name, name)
    assert set(sent.values()) == {"centos", "mac", name}  # and it takes its part of the rest
    driver.succeed("by-name")
    assert driver.end("by-name").cluster == name


class _Store:
    """Packages of a cluster that has all of them."""

    name = "any"

    async def package_exists(self, uri: str) -> bool:
        return True


class _Pool:
    def client(self, cluster: str) -> _Store:
        return _Store()


@pytest.fixture
def preparation() -> Iterator[AttemptPreparation]:
    packages = PackageCache()
    made = AttemptPreparation(_Pool().client, packages, "/home/me")
    yield made
    packages.close()


async def test_a_job_that_moves_gets_the_new_clusters_environment(preparation: AttemptPreparation) -> None:
    """«The Linux cluster refused my job. It was sent to the Mac, with the Linux paths, and failed there as well.»"""
    entries = {
        "centos": ClusterConfig(
            name="centos",
            dashboard="http://127.0.0.1:1",
            home_dir="/home/alice",
            runtime_env={"conda": "ts", "env_vars": {"DATA": "/data", "COLOUR": "red"}},
        ),
        "mac": ClusterConfig(
            name="mac",
            dashboard="http://127.0.0.1:2",
            home_dir="/Users/alice",
            runtime_env={"env_vars": {"DATA": "/Volumes/data"}},
        ),
    }
    preparation.update(entries)
    colour = {"env_vars": {"COLOUR": "blue"}}
    item = job("mine", job=JobDescription("python /home/me/train.py"), runtime_env=colour, preferred_cluster="centos")
    driver = fleet(cluster("centos"), cluster("mac"), breaker_failures=1, retry_backoff={"base_s": 0})
    for name in entries:
        driver.link_up(name, 8)
    driver.submit(item)
    driver.refuse("mine")
    driver.fire("retry:mine")
    seen = []
    for sent in driver.issued(Dispatch, ever=True):
        prepared = await preparation.job(item, sent.cluster, sent.attempt, sent.fence)
        env = prepared.runtime_env["env_vars"]
        seen.append((prepared.entrypoint, prepared.runtime_env.get("conda"), env["DATA"], env["COLOUR"]))
        assert (env["RMCS_CLUSTER"], env["RMCS_ATTEMPT"]) == (sent.cluster, str(sent.attempt))
    assert seen == [
        ("python /home/alice/train.py", "ts", "/data", "blue"),
        ("python /Users/alice/train.py", None, "/Volumes/data", "blue"),
    ]


def test_a_full_preferred_cluster_waits_or_falls_back_as_asked() -> None:
    """«My data is on one cluster. When it was full, the job ran elsewhere and found no data.» And the other way round:
    «I only meant that I would rather have it there. It waited for a day while others were idle.»
    """
    driver = fleet(cluster("mine"), cluster("other"))
    full(driver, "mine", 8)
    driver.link_up("other", 8)
    driver.submit(task("rather", preferred_cluster="mine"))
    waits = driver.submit(task("only", preferred_cluster="mine", fallback="wait"))
    assert driver.sent_to() == {"rather": "other"}
    assert waits.decision is not None
    assert waits.decision.unblocked_by == "use of mine falls to `resource_threshold`"
    driver.now += 10
    driver.snapshot("mine", 8)
    assert driver.sent_to() == {"rather": "other", "only": "mine"}


@pytest.mark.parametrize("wanted", ["preferred_cluster", "allow_clusters", "deny_clusters"])
def test_a_typo_in_a_clusters_name_fails_at_once(wanted: str) -> None:
    """«I wrote `cenots`. It waited for a cluster of that name over the whole weekend.»"""
    driver = fleet(cluster("centos"), cluster("mac"))
    driver.submit(task("mine", **{wanted: "cenots" if wanted == "preferred_cluster" else ("cenots",)}))
    end = driver.end("mine")
    assert (end.state, end.error) == (TaskState.FAILED, "ConfigurationError")
    assert "'cenots'" in end.message
    assert "centos, mac" in end.message
    assert "did you mean 'centos'" in end.next_step
    assert driver.sent_to() == {}


def test_two_equal_submissions_both_run_unless_asked_otherwise() -> None:
    """«I ran my simulation twice to compare. The second one was taken for a copy and thrown away.»"""
    driver = fleet(cluster("only"))
    driver.link_up("only", 8)
    equal = {"function_digest": "f", "arguments_digest": "x", "name": "simulate"}
    driver.submit(task("one", **equal))
    driver.submit(task("two", **equal))
    assert list(driver.sent_to()) == ["one", "two"]
    driver.send(events.Submitted(task("three", idempotency_key="night", **equal)))
    driver.send(events.Submitted(task("four", idempotency_key="night", **equal)))
    assert list(driver.sent_to()) == ["one", "two", "three"]
    assert driver.machine.id_for_key("", "night") == "three"  # who asked for one gets the first, not nothing
