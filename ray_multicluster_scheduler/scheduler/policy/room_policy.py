"""RoomPolicy: rank that prefers clusters with free capacity to those that would have to add a node."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.cluster.fit import needs_new_node


class RoomPolicy:
    """1 if the item fits now, 0 if a node would have to be added for it."""

    name = "room"

    def rank(self, task: TaskDescription, cluster: ClusterView) -> int:
        return int(not needs_new_node(task, cluster))
