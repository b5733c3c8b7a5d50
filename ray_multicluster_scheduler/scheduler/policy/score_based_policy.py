"""ScoreBasedPolicy, registered as ``headroom``: how much of what the item requests would stay free."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView


class ScoreBasedPolicy:
    """The share of each requested resource that is free once the item is placed; the scarcest one decides.

    An item that requests nothing is judged by the cluster's CPUs. Each item of ours there that holds no resources
    counts as one more CPU, in use.
    """

    name = "headroom"
    counts_undeclared = True

    def score(self, task: TaskDescription, cluster: ClusterView) -> float:
        need = task.placement or {"CPU": 0.0}
        return min(self._share(name, amount, cluster) for name, amount in need.items())

    def _share(self, name: str, amount: float, cluster: ClusterView) -> float:
        total = cluster.total.get(name, 0.0)
        if total <= 0:
            return 0.0
        if name == "CPU":
            total += cluster.undeclared
        return min(1.0, max(0.0, (cluster.free.get(name, 0.0) - amount) / total))
