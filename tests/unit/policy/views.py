"""Builders of cluster views for policy tests."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.common.model import ClusterMetadata, Resources
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView, NodeView

_METADATA = frozenset(ClusterMetadata.__dataclass_fields__)

LOAD_SCORES = [
    (15.18, 20, 10.99, 1, False, 12.4),
    (2.06, 8, 11.14, 1.2, True, 1.2),
    (3.54, 8, 9.40, 1.2, True, 2.9),
    (1.01, 8, 9.06, 1.2, True, 0.3),
    (2.63, 20, 7.49, 1, False, 0.4),
]
"""Free CPUs, CPUs, GiB of free memory, weight, prefer, and the load score that users know for them."""


def node(total: Resources, free: Resources | None = None, *, unknown: bool = False, name: str = "n1") -> NodeView:
    """A node; idle by default."""
    if unknown:
        return NodeView(name, total, None, {}, None)
    return NodeView(name, total, {}, {}, total if free is None else free)


def view(name: str = "c", *nodes: NodeView, **values: Any) -> ClusterView:
    """A healthy cluster of these nodes (one of 8 CPUs, if none is given); keywords go to the view or its metadata."""
    metadata = {key: value for key, value in values.items() if key in _METADATA}
    rest = {key: value for key, value in values.items() if key not in _METADATA}
    return ClusterView(
        ClusterMetadata(**{"name": name, "dashboard": f"http://{name}:8265", **metadata}),
        **{"nodes": nodes or (node({"CPU": 8.0}),), "snapshot_at": 0.0, **rest},
    )
