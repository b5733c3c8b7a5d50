"""PackPolicy, registered as ``pack``: fill nodes, on faster clusters first, so that wide items find whole nodes."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.common.model.resources import Resources, fits
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView, NodeView


class PackPolicy:
    """Half of the score is how well the item fills its best node, half the cluster's ``weight`` as w/(1+w).

    Set ``weight`` to how fast the cluster is. An item that fits no single node, or asks for nothing, fills none.
    """

    name = "pack"

    def score(self, task: TaskDescription, cluster: ClusterView) -> float:
        need, weight = task.placement, cluster.metadata.weight
        fill = max((self._fill(need, node) for node in cluster.nodes), default=0.0) if need else 0.0
        return (fill + weight / (1.0 + weight)) / 2.0

    def _fill(self, need: Resources, node: NodeView) -> float:
        """1 if nothing is left there of what it asks for; 0 for a node that it does not fit."""
        if node.free is None or not fits(need, node.free):
            return 0.0
        left = max((node.free[name] - amount) / node.total[name] for name, amount in need.items())
        return min(1.0, max(0.0, 1.0 - left))
