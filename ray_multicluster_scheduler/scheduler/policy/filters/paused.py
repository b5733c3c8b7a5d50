"""PausedFilter: the cluster's queue is not paused."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.reasons import QUEUE_PAUSED


class PausedFilter:
    """Nothing is sent there until its queue is resumed; what runs there continues."""

    name = "paused"
    by_kind = True
    lasting = True

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        if cluster.paused is None:
            return None
        return Rejection(QUEUE_PAUSED, f"its queue is paused{f': {cluster.paused}' if cluster.paused else ''}")
