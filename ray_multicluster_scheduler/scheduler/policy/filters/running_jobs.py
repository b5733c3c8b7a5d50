"""RunningJobsFilter: the cluster is below ``max_running_jobs``."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.reasons import MAX_RUNNING_JOBS


class RunningJobsFilter:
    """At most ``max_running_jobs`` jobs: each one costs the head 60 to 100 MB."""

    name = "running_jobs"
    by_kind = True

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        limit = cluster.metadata.max_running_jobs
        if task.kind != "job" or cluster.running_jobs < limit:
            return None
        sentence = f"{cluster.running_jobs} jobs of ours are there; max_running_jobs is {limit}"
        return Rejection(MAX_RUNNING_JOBS, sentence)
