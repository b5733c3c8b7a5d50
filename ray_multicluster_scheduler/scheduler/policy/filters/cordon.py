"""CordonFilter: the cluster is not cordoned."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.reasons import CORDONED


class CordonFilter:
    """What runs there goes on; nothing new is sent."""

    name = "cordon"
    by_kind = True
    lasting = True

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        return Rejection(CORDONED, "it is cordoned: closed for new work") if cluster.cordoned else None
