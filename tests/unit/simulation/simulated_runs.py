"""Small fleets with predictable runs: no latency, no threshold, no submission interval."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.common.model import ClusterMetadata
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.simulation import (
    Item,
    PlannedFault,
    Result,
    SimulatedCluster,
    SimulatedFleet,
    Workload,
    simulate,
)
from ray_multicluster_scheduler.simulation.history import (
    AttemptBegan,
    AttemptEnded,
    EventHandled,
    FaultInjected,
    HistoryLine,
    InstructionIssued,
    NodesChanged,
)
from ray_multicluster_scheduler.simulation.size_syntax import parse_nodes

FREE: dict[str, Any] = {"resource_threshold": 1, "submission_interval_s": 0, "prefetch_ms": 0}


def exact(name: str, nodes: str, *, tags: tuple[str, ...] = (), **values: Any) -> SimulatedCluster:
    """A cluster without delays."""
    shapes, speed = parse_nodes(nodes)
    own = {key: values.pop(key) for key in ("weight", "max_running_jobs") if key in values}
    metadata = ClusterMetadata(name, dashboard=f"http://{name}.invalid:8265", tags=tags, **own)
    plain = {"latency_s": 0.0, "job_poll_s": 0.0, "agent_start_s": 0.0, "speed": speed or 1.0}
    return SimulatedCluster(metadata, tuple(shapes), **{**plain, **values})


def fleet(*clusters: SimulatedCluster, faults: tuple[PlannedFault, ...] = (), **settings: Any) -> SimulatedFleet:
    return SimulatedFleet(clusters, Settings(**{**FREE, **settings}), faults)


def item(submit_s: float, cpus: float, run_s: float, **values: Any) -> Item:
    return Item(submit_s, {"CPU": float(cpus)} if cpus else {}, run_s, **values)


class SimulatedRun:
    """One run, and its history."""

    def __init__(self, where: SimulatedFleet, *items: Item, seed: int = 0) -> None:
        self.lines: list[HistoryLine] = []
        self.result: Result = simulate(where, Workload(items), seed=seed, observe=self.lines.append)
        self.figures = self.result.figures

    def began(self) -> list[tuple[float, str, str, int]]:
        """Time, task id, cluster and attempt number of each start."""
        return [(one.at, one.task_id, one.cluster, one.attempt) for one in self.lines if isinstance(one, AttemptBegan)]

    def ended(self) -> list[tuple[float, str, str]]:
        return [(one.at, one.task_id, one.how) for one in self.lines if isinstance(one, AttemptEnded)]

    def events(self, kind: type[Any]) -> list[tuple[float, Any]]:
        return [
            (one.at, one.event) for one in self.lines if isinstance(one, EventHandled) and isinstance(one.event, kind)
        ]

    def instructions(self, kind: type[Any]) -> list[tuple[float, Any]]:
        wanted = (one for one in self.lines if isinstance(one, InstructionIssued))
        return [(one.at, one.instruction) for one in wanted if isinstance(one.instruction, kind)]

    def nodes(self) -> list[tuple[float, str, int]]:
        return [(one.at, one.cluster, len(one.nodes)) for one in self.lines if isinstance(one, NodesChanged)]

    def faults(self) -> list[tuple[float, str]]:
        return [(one.at, one.what) for one in self.lines if isinstance(one, FaultInjected)]
