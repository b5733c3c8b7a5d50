"""There is a way to get this kind of item to the cluster."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.reasons import NO_CARRIER


class CarrierFilter:
    """Jobs go to the dashboard, and so does the agent that carries tasks and actors."""

    name = "carrier"
    by_kind = True
    lasting = True

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        if cluster.metadata.dashboard is None:
            sentence = f"it has no `dashboard`, by which a {task.kind} would get there"
            return Rejection(NO_CARRIER, sentence, permanent=True)
        if task.kind != "job" and cluster.metadata.carrier == "ray_client":
            sentence = f"its `carrier` is ray_client, which cannot carry a {task.kind} yet; use agent or auto"
            return Rejection(NO_CARRIER, sentence, permanent=True)
        return None
