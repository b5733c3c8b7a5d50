"""ThresholdFilter: the cluster is not above ``resource_threshold``."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.cluster.fit import needs_new_node
from ray_multicluster_scheduler.scheduler.policy.reasons import ABOVE_THRESHOLD, CAPACITY_UNKNOWN
from ray_multicluster_scheduler.scheduler.queue.backpressure_controller import BackpressureController


class ThresholdFilter:
    """Rejects a cluster with too much use, by the BackpressureController.

    An item that needs a new node passes: it adds nothing to the use of existing nodes.
    """

    name = "threshold"

    def __init__(self, controller: BackpressureController) -> None:
        self._controller = controller

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        key = (self, bool(task.placement.get("GPU")))  # the verdict depends only on this and the cluster
        if key not in cluster.cache:
            cluster.cache[key] = self._controller.exceeded_threshold(task, cluster) if cluster.has_snapshot else None
        pressure = cluster.cache[key]
        if pressure is None or needs_new_node(task, cluster):
            return None
        if pressure.use is None:
            return Rejection(CAPACITY_UNKNOWN, f"the use of its {pressure.resource} is unknown")
        sentence = f"{pressure.use:.0%} of its {pressure.resource} is in use, the threshold is {pressure.limit:.0%}"
        return Rejection(ABOVE_THRESHOLD, sentence)
