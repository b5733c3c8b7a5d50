"""HealthFilter: the cluster answers, its breaker is closed, its snapshot is fresh."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView


class HealthFilter:
    """One code per cause. No snapshot, or a stale one, means unknown: never idle."""

    name = "health"
    by_kind = True
    lasting = True

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        problem = cluster.problem
        return Rejection(problem.code, problem.sentence, problem.permanent) if problem else None
