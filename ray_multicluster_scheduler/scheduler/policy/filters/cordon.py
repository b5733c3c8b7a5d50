"""CordonFilter: the cluster is not cordoned."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.reasons import CORDONED


class CordonFilter:
    """Rejects a cordoned cluster: running items continue there; nothing new is sent."""

    name = "cordon"
    by_kind = True
    lasting = True

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        if not cluster.cordoned:
            return None
        return Rejection(CORDONED, f"it is cordoned: {cluster.cordon_reason or 'closed for new work'}")
