"""The cluster is not above ``resource_threshold``."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.reasons import ABOVE_THRESHOLD, CAPACITY_UNKNOWN
from ray_multicluster_scheduler.scheduler.queue.backpressure_controller import BackpressureController


class ThresholdFilter:
    """Asks the BackpressureController about this one cluster."""

    name = "threshold"

    def __init__(self, controller: BackpressureController) -> None:
        self._controller = controller

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        pressure = self._controller.pressure(task, cluster) if cluster.known else None
        if pressure is None:
            return None
        if pressure.use is None:
            return Rejection(CAPACITY_UNKNOWN, f"nobody knows how much of its {pressure.resource} is in use")
        sentence = f"{pressure.use:.0%} of its {pressure.resource} is in use, the threshold is {pressure.limit:.0%}"
        return Rejection(ABOVE_THRESHOLD, sentence)
