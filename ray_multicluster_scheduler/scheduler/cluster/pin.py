"""Pin: room that is kept for one wide item until enough of it is free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ray_multicluster_scheduler.common.model import Resources
from ray_multicluster_scheduler.common.model.resources import minus
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import NodeView


@dataclass(frozen=True, slots=True)
class WideItemReservation:
    """``parts``: what it will take of which node. ``start_at``: when that is expected to be free; None: nobody knows.

    ``urgency`` is the item's own: whoever is more urgent is not kept away.
    """

    task_id: str
    parts: Mapping[str, Resources]
    urgency: float
    start_at: float | None


def without_reserved(nodes: Iterable[NodeView], pin: WideItemReservation) -> tuple[NodeView, ...]:
    """The nodes as everybody else sees them: what is free of the kept room is not free for them."""
    return tuple(
        replace(node, free={name: minus(node.free, pin.parts[node.node_id])[name] for name in node.free})
        if node.free is not None and node.node_id in pin.parts
        else node
        for node in nodes
    )
