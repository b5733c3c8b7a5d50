"""PreferredOnlyFilter: an item with ``fallback="wait"`` goes only to its preferred cluster."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.reasons import PREFERRED_ONLY


class PreferredOnlyFilter:
    """Permanent for every other cluster."""

    name = "preferred_only"

    def concerns(self, task: TaskDescription) -> bool:
        return task.fallback == "wait"

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        if task.fallback != "wait" or task.preferred_cluster in (None, cluster.name):
            return None
        sentence = f'the item waits for {task.preferred_cluster} (fallback="wait")'
        return Rejection(PREFERRED_ONLY, sentence, permanent=True)
