"""ResourceSnapshot: total and free resources of a cluster, per node, at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from ray_multicluster_scheduler.common.model.resources import Resources, total_of

SnapshotSource = Literal["agent", "http"]


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One live node. ``free`` is None when the source does not know it."""

    node_id: str
    total: Resources
    free: Resources | None
    is_head: bool = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)


@dataclass(frozen=True, slots=True)
class ResourceSnapshot:
    """Total and free per node, plus what kind of cluster this is. None means unknown, never a guess.

    ``observed`` is physical use as a fraction per resource (``cpu``, ``memory``, ``gpu``), where it is known. A
    dashboard keeps a report that Ray renews every few seconds: ``reported_at`` is when it was made, by the cluster's
    clock.
    """

    cluster: str
    taken_at: float
    nodes: tuple[NodeSnapshot, ...]
    source: SnapshotSource
    session_id: str | None = None
    ray_version: str | None = None
    python_version: str | None = None
    os: str | None = None
    arch: str | None = None
    observed: Mapping[str, float] | None = None
    reported_at: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        nodes = tuple(NodeSnapshot.from_dict(node) for node in data["nodes"])
        return cls(**{**data, "nodes": nodes})

    def total(self) -> dict[str, float]:
        """Capacity of the whole cluster."""
        return total_of(node.total for node in self.nodes)

    def free(self) -> dict[str, float] | None:
        """The sum of what is free on all nodes, or None if it is unknown for any node."""
        known = [node.free for node in self.nodes if node.free is not None]
        return total_of(known) if len(known) == len(self.nodes) else None
