"""GpuAvoidancePolicy: rank that keeps items without GPU needs away from clusters with free GPUs."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView


class GpuAvoidancePolicy:
    """0 for a cluster with free GPUs when the item asks for none, else 1."""

    name = "spares_gpus"

    def trait(self, task: TaskDescription) -> bool:
        return bool(task.placement.get("GPU"))

    def rank(self, task: TaskDescription, cluster: ClusterView) -> int:
        if task.placement.get("GPU"):
            return 1
        return int(cluster.free.get("GPU", 0.0) <= 0)
