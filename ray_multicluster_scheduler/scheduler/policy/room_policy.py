"""RoomPolicy: a cluster that has room now comes before one that would have to grow."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.cluster.fit import needs_new_node


class RoomPolicy:
    """1 where the item fits what is free, 0 where a node would have to be added for it."""

    name = "room"

    def rank(self, task: TaskDescription, cluster: ClusterView) -> int:
        return int(not needs_new_node(task, cluster))
