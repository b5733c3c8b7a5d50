"""ResourceSnapshot: total and free resources of a cluster, per node, at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from ray_multicluster_scheduler.common.model.resources import Resources

SnapshotSource = Literal["agent", "http"]


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One live node. ``free`` is None when the source cannot tell."""

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

    ``observed`` is physical use as a fraction per resource (``cpu``, ``memory``, ``gpu``), where it is known.
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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        nodes = tuple(NodeSnapshot.from_dict(node) for node in data["nodes"])
        return cls(**{**data, "nodes": nodes})

    def total(self) -> dict[str, float]:
        """Capacity of the whole cluster."""
        return _sum(node.total for node in self.nodes)

    def free(self) -> dict[str, float] | None:
        """What is free over all nodes, or None if any node's is unknown."""
        known = [node.free for node in self.nodes if node.free is not None]
        return _sum(known) if len(known) == len(self.nodes) else None


def _sum(parts: Any) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0.0) + amount
    return total
