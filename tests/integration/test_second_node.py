"""A cluster of two nodes: requirements must fit a single node, and a dead node ends only its own work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ray_multicluster_scheduler import (
    ActorDiedError,
    NoFeasibleClusterError,
    TaskState,
    UnifiedScheduler,
    WorkerCrashedError,
    get,
)
from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.mac_cluster import config_of_mac, until
from tests.support.second_node import SecondNode, second_node


class TwoNodes(NamedTuple):
    """In addition to the head with 2 CPUs, "mac" has a node with 2 CPUs, a GPU and 2 of "special"."""

    scheduler: UnifiedScheduler
    node: SecondNode


@pytest.fixture(scope="module")
def mac(fleet: LocalFleet, ray_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    folder = tmp_path_factory.mktemp("second-node")
    with UnifiedScheduler(config_of_mac(fleet, folder)) as scheduler:

        def nodes() -> int | None:
            count: int | None = scheduler.cluster_info("mac")["nodes"]
            return count

        with second_node(fleet, "mac", ray_python, folder, num_cpus=2, num_gpus=1, resources={"special": 2}) as node:
            until(lambda: not node.running or nodes() == 2, 60)
            assert node.running, (folder / "second-node.log").read_text()
            yield TwoNodes(scheduler, node)
        until(lambda: nodes() == 1, 60)  # the next test finds the cluster as it was


def test_requirements_must_fit_a_single_node(mac: TwoNodes) -> None:
    def assigned() -> dict[str, float]:
        import ray

        return ray.get_runtime_context().get_assigned_resources()

    with pytest.raises(NoFeasibleClusterError, match="3 CPU.*the most on any node: 2 CPU"):
        mac.scheduler.submit_task(assigned, resource_requirements={"CPU": 3})
    assert mac.scheduler.cluster_info("mac")["total"]["CPU"] == 4, "both together would have had it"
    assert mac.scheduler.submit_task(assigned, resource_requirements={"CPU": 2}) == {"CPU": 2}


def test_gpus_and_custom_resources_reach_ray(mac: TwoNodes) -> None:
    def assigned() -> tuple[dict[str, float], list[int]]:
        import ray

        return ray.get_runtime_context().get_assigned_resources(), ray.get_gpu_ids()

    needs = {"CPU": 0, "GPU": 1, "special": 1.5}
    held, gpus = mac.scheduler.submit_task(assigned, resource_requirements=needs)
    assert (held, [int(one) for one in gpus]) == ({"GPU": 1, "special": 1.5}, [0])

    class Holder:
        def held(self) -> dict[str, float]:
            import ray

            return ray.get_runtime_context().get_assigned_resources()

    actor = mac.scheduler.submit_actor(Holder, resource_requirements={"special": 1, "memory": "10MiB"})
    assert actor.held.remote().result(30) == {"special": 1, "memory": 10 * 1024**2}
    assert mac.scheduler.plan({"special": 1.5}).code == "NO_CAPACITY", "it holds the other one"
    actor.kill()


def test_a_dead_node_ends_only_its_own_work(mac: TwoNodes, tmp_path: Path) -> None:
    scheduler, there = mac.scheduler, {"special": 0.5}

    def wait(folder: str, name: str) -> tuple[str, int, str]:
        """Records its node, and returns when the test allows it."""
        import os
        import time

        import ray

        from ray_multicluster_scheduler import current

        node, attempt = ray.get_runtime_context().get_node_id(), current().attempt
        with open(f"{folder}/{name}-runs", "a") as file:
            file.write(f"{node} {attempt}\n")
        while not os.path.exists(f"{folder}/{name}-go") and not os.path.exists(f"{folder}/go"):
            time.sleep(0.02)
        return name, attempt, node

    class Where:
        def node(self) -> str:
            import ray

            return ray.get_runtime_context().get_node_id()

        def stay(self) -> None:
            import time

            time.sleep(600)

    def runs(name: str) -> list[list[str]]:
        path = tmp_path / f"{name}-runs"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    # Lost with the node: an idle actor, one that runs a method, and a task that may not be repeated.
    idle = scheduler.submit_actor(Where, resource_requirements=there)
    busy = scheduler.submit_actor(Where, resource_requirements=there)
    second = busy.node.remote().result(30)
    stays = busy.stay.remote()
    once = scheduler.submit_task_async(
        wait, (str(tmp_path), "once"), resource_requirements={"CPU": 0, **there}, crash_retries=0
    )
    # Tasks for all four CPUs. One of those on the second node ends, and in its place is an actor that is made anew.
    names = [f"task{number}" for number in range(4)]
    tasks = {name: scheduler.submit_task_async(wait, (str(tmp_path), name), crash_retries=1) for name in names}
    until(lambda: all(runs(name) for name in [*names, "once"]), 60)
    on_second = [name for name in names if runs(name)[0][0] == second]
    assert len(on_second) == 2
    ended = on_second.pop()
    (tmp_path / f"{ended}-go").touch()
    assert tasks.pop(ended).result(30) == (ended, 1, second)
    again = scheduler.submit_actor(Where, resource_requirements={"CPU": 1}, max_restarts=1)
    assert again.node.remote().result(30) == second

    mac.node.kill()
    with pytest.raises(WorkerCrashedError, match=f"(?s){once.id}.*on mac.*node") as caught:
        once.result(60)
    assert (caught.value.cluster, caught.value.task_id) == ("mac", once.id)
    with pytest.raises(ActorDiedError, match=busy.id):
        stays.result(60)
    until(lambda: idle.state is TaskState.FAILED and busy.state is TaskState.FAILED, 60)
    assert "node" in idle.explain()["sentence"]

    (tmp_path / "go").touch()
    results: dict[str, Any] = {name: (attempt, node) for name, attempt, node in get(list(tasks.values()), timeout=60)}
    head = results[next(name for name in results if name not in on_second)][1]
    assert head != second
    assert results == {name: (2 if name in on_second else 1, head) for name in results}, "no other was repeated"
    assert len(runs("once")) == 1
    until(lambda: again.state is TaskState.RUNNING and again.attempt == 2, 60)
    assert again.node.remote().result(60) == head, "made anew on the node that is left"
    again.kill()
