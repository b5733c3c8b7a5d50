"""TagAffinityPolicy: rank by the number of the item's soft tags that the cluster has."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView


class TagAffinityPolicy:
    """Counts the item's soft tags that the cluster has. Tags that no cluster has are just labels."""

    name = "tags"

    def trait(self, task: TaskDescription) -> tuple[str, ...]:
        return task.tags

    def rank(self, task: TaskDescription, cluster: ClusterView) -> int:
        return len(set(task.tags).intersection(cluster.metadata.tags)) if task.tags else 0
