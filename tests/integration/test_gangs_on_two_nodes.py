"""Gangs on a cluster of two nodes: strategies, the ledger's record of member nodes, and a dead node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ray_multicluster_scheduler import NoFeasibleClusterError, TaskState, UnifiedScheduler, WorkerCrashedError, member
from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.gangs import noting_its_end
from tests.support.mac_cluster import config_of_mac, until
from tests.support.second_node import SecondNode, second_node


class TwoNodes(NamedTuple):
    """In addition to the head with 2 CPUs, "mac" has a node with 2 CPUs and 2 of "special"."""

    scheduler: UnifiedScheduler
    node: SecondNode

    def free(self) -> list[float]:
        """Reserved CPUs by node, from the ledger."""
        runtime, _ = self.scheduler._started()
        view = runtime.call_and_wait(lambda: runtime.machine.view("mac", runtime.clock.now()))
        return sorted((node.free or {})["CPU"] for node in view.nodes)


@pytest.fixture(scope="module")
def mac(fleet: LocalFleet, ray_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    folder = tmp_path_factory.mktemp("gangs-on-two-nodes")
    with UnifiedScheduler(config_of_mac(fleet, folder)) as scheduler:

        def nodes() -> int | None:
            count: int | None = scheduler.cluster_info("mac")["nodes"]
            return count

        with second_node(fleet, "mac", ray_python, folder, num_cpus=2, resources={"special": 2}) as node:
            until(lambda: not node.running or nodes() == 2, 60)
            assert node.running, (folder / "second-node.log").read_text()
            yield TwoNodes(scheduler, node)
        until(lambda: nodes() == 1, 60)  # the next test finds the cluster as it was


def node_id() -> Any:
    def run() -> str:
        import ray

        return ray.get_runtime_context().get_node_id()

    return run


@pytest.mark.parametrize(("strategy", "different"), [("STRICT_SPREAD", 2), ("STRICT_PACK", 1), ("PACK", 1)])
def test_members_are_placed_by_strategy(mac: TwoNodes, strategy: Any, different: int) -> None:
    assert len(set(mac.scheduler.submit_gang([node_id(), node_id()], strategy=strategy))) == different


def test_a_gang_larger_than_a_node_is_spread_or_fails(mac: TwoNodes) -> None:
    wide = [member(node_id(), resource_requirements={"CPU": 2}) for _ in range(2)]
    assert len(set(mac.scheduler.submit_gang(wide))) == 2
    with pytest.raises(NoFeasibleClusterError, match=r"2 × 2 CPU; STRICT_PACK\) never fit together .*2 nodes"):
        mac.scheduler.submit_gang(wide, strategy="STRICT_PACK")


def test_the_ledger_records_member_nodes_and_a_dead_node_is_a_crash(mac: TwoNodes, tmp_path: Path) -> None:
    """Runs last, since it kills the node."""
    members = [
        member(noting_its_end(), str(tmp_path), "on-head", resource_requirements={"CPU": 2}),
        member(noting_its_end(), str(tmp_path), "on-second", resource_requirements={"CPU": 1, "special": 1}),
    ]
    handle = mac.scheduler.submit_gang_async(members, crash_retries=0)
    until(lambda: handle.state is TaskState.RUNNING, 60)
    assert mac.free() == [0.0, 1.0]
    mac.node.kill()
    with pytest.raises(WorkerCrashedError, match=r"member 1 \(.*\) failed"):
        handle.result(90)
    assert (tmp_path / "on-head-ended").exists(), "the other one was ended"
    until(lambda: 2.0 in mac.free(), 30)
