"""LinkFilter: tasks and actors need a link to the cluster; jobs do not."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView


class LinkFilter:
    """Rejects with LINK_FAILED; permanent if an operator has to correct the configuration first."""

    name = "link"
    by_kind = True
    lasting = True

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        problem = cluster.link_problem
        if task.kind == "job" or problem is None:
            return None
        return Rejection(problem.code, problem.sentence, problem.permanent)
