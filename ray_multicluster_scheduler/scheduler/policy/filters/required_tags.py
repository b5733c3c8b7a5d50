"""RequiredTagsFilter: the cluster has every tag that the item requires."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.reasons import REQUIRED_TAGS


class RequiredTagsFilter:
    """Permanent: tags change only with the configuration."""

    name = "required_tags"

    def concerns(self, task: TaskDescription) -> bool:
        return bool(task.require_tags)

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        missing = [tag for tag in task.require_tags if tag not in cluster.metadata.tags]
        if not missing:
            return None
        return Rejection(REQUIRED_TAGS, f"it lacks the required tag(s) {', '.join(missing)}", permanent=True)
