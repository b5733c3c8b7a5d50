"""AllowedFilter: the item's allow and deny lists of clusters."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.reasons import NOT_ALLOWED


class AllowedFilter:
    """Permanent: an item's lists never change. Deny wins over allow."""

    name = "allowed"

    def concerns(self, task: TaskDescription) -> bool:
        return bool(task.deny_clusters) or task.allow_clusters is not None

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        if cluster.name in task.deny_clusters:
            return Rejection(NOT_ALLOWED, "the item denies it (deny_clusters)", permanent=True)
        if task.allow_clusters is not None and cluster.name not in task.allow_clusters:
            return Rejection(NOT_ALLOWED, "it is not among the item's allow_clusters", permanent=True)
        return None
