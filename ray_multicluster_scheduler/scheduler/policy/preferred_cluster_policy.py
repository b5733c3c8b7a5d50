"""PreferredClusterPolicy: rank that puts the item's preferred cluster first."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView


class PreferredClusterPolicy:
    """1 for the item's preferred cluster, 0 for all others."""

    name = "preferred"

    def trait(self, task: TaskDescription) -> str | None:
        return task.preferred_cluster

    def rank(self, task: TaskDescription, cluster: ClusterView) -> int:
        return int(task.preferred_cluster == cluster.name)
