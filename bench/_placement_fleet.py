"""A synthetic fleet and its items for the placement benchmark: a function of their numbers, without randomness.

Clusters differ in nodes, GPUs, weights and tags; of twenty, two are cordoned and one has no link. Their snapshots are
pushed over links, as by agents, so no cluster is polled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ray_multicluster_scheduler.common.model import (
    ClusterMetadata,
    JobDescription,
    NodeSnapshot,
    ResourceSnapshot,
    TaskDescription,
)
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.pools.pool import Pool

SHAPES = 1000
PYTHON = "3.11.9"
_GIB = 1024.0**3
_MIB = 1024.0**2
_OWNERS = 10
_WISHES = 5


@dataclass(frozen=True)
class SyntheticCluster:
    """One cluster of the fleet, and its health."""

    metadata: ClusterMetadata
    nodes: tuple[dict[str, float], ...]
    cordoned: bool
    silent: bool

    @property
    def usable(self) -> bool:
        return not self.cordoned and not self.silent


def fleet(count: int) -> list[SyntheticCluster]:
    """The clusters; the first two are always healthy."""
    return [_cluster(number) for number in range(count)]


def introductions(clusters: list[SyntheticCluster], now: float) -> Iterator[events.Event]:
    """The events that register the clusters before the first item."""
    for one in clusters:
        name = one.metadata.name
        yield events.LinkUp(name, PYTHON, "2.60.0", f"session of {name}")
        yield events.SnapshotTaken(snapshot(one, now, [dict(node) for node in one.nodes]))
        if one.cordoned:
            yield events.ClusterChanged(name, one.metadata, cordoned=True)
        if one.silent:
            yield events.LinkDown(name, "no heartbeat")


def snapshot(one: SyntheticCluster, now: float, free: list[dict[str, float]]) -> ResourceSnapshot:
    """The snapshot that its agent would push."""
    name = one.metadata.name
    nodes = tuple(
        NodeSnapshot(f"{name}-n{number}", total, rest)
        for number, (total, rest) in enumerate(zip(one.nodes, free, strict=True))
    )
    return ResourceSnapshot(name, now, nodes, "agent", session_id=f"session of {name}", python_version=PYTHON)


def synthetic_pools(count: int, clusters: list[SyntheticCluster]) -> list[Pool]:
    """Pools in cohorts of five, which share the CPUs of the fleet equally."""
    cpus = sum(node["CPU"] for one in clusters if one.usable for node in one.nodes)
    return [
        Pool(name=f"pool-{number}", quota={"CPU": cpus / count}, cohort=f"cohort-{number // 5}")
        for number in range(count)
    ]


def item(task_id: str, shape: int, clusters: list[SyntheticCluster], now: float, pools: int = 0) -> TaskDescription:
    """A task of 1 CPU in one of :data:`SHAPES` shapes: ten owners, five wishes, twenty sizes of memory.

    All need one CPU, so that the end of any item makes room for any other.
    """
    owner, wanted, size = shape % _OWNERS, shape // _OWNERS % _WISHES, shape // (_OWNERS * _WISHES)
    values: dict[str, Any] = {"pool": f"pool-{shape % pools}"} if pools else {}
    some = clusters[shape % min(2, len(clusters))].metadata.name
    match wanted:
        case 1:
            values["tags"] = ("zone-0", "a label")
        case 2:
            values["require_tags"] = ("zone-1",)
        case 3:
            values["preferred_cluster"] = some
        case 4:
            values["deny_clusters"] = (some,)
    return TaskDescription(
        id=task_id,
        kind="task",
        name="work",
        requirements={"CPU": 1.0, "memory": (16 + size) * _MIB},
        owner=f"owner-{owner}",
        function_digest=f"function-{shape}",
        submitted_at=now,
        **values,
    )


def new_shape(task_id: str, number: int, now: float) -> TaskDescription:
    """An item of a new shape, by its amount of memory. One in ten is a job, one in 40 needs a GPU."""
    requirements = {"CPU": 1.0 + number % 2, "memory": 64 * _MIB + number * 1024.0}
    if number % 40 == 5:
        requirements["GPU"] = 1.0
    job = JobDescription("python train.py") if number % 10 == 3 else None
    return TaskDescription(
        id=task_id,
        kind="task" if job is None else "job",
        name="work",
        requirements=requirements,
        tags=("zone-0",) if number % 3 == 0 else (),
        owner=f"owner-{number % _OWNERS}",
        function_digest=None if job else f"function-{number}",
        job=job,
        submitted_at=now,
    )


def _cluster(number: int) -> SyntheticCluster:
    cpus = (16.0, 32.0, 48.0)[number % 3]
    node = {"CPU": cpus, "memory": cpus * 4 * _GIB}
    if number % 4 == 1:
        node["GPU"] = 4.0
    metadata = ClusterMetadata(
        name=f"cluster-{number:03}",
        dashboard=f"http://10.0.{number // 250}.{number % 250 + 1}:8265",
        weight=(1.0, 1.2, 0.8)[number % 3],
        prefer=number % 5 == 1,
        tags=(f"zone-{number % 2}", ("x86_64", "arm64")[number % 2]),
        max_running_jobs=1000,
    )
    return SyntheticCluster(
        metadata,
        nodes=tuple(dict(node) for _ in range(1 + number % 3)),
        cordoned=number % 10 == 7,
        silent=number % 20 == 13,
    )
