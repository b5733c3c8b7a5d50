"""DashboardFilter: jobs need a dashboard that answers. Tasks and actors use the link."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView


class DashboardFilter:
    """Rejects with DASHBOARD_SILENT; not permanent, as the dashboard is checked again."""

    name = "dashboard"
    by_kind = True
    lasting = True

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        problem = cluster.job_problem
        if task.kind != "job" or problem is None:
            return None
        return Rejection(problem.code, problem.sentence, problem.permanent)
