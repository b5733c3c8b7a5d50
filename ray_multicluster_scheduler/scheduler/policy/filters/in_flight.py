"""InFlightFilter: the cluster is below ``max_in_flight``."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.reasons import MAX_IN_FLIGHT


class InFlightFilter:
    """At most ``max_in_flight`` items of any kind, also of those that reserve nothing."""

    name = "in_flight"
    by_kind = True

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        limit = cluster.metadata.max_in_flight
        there = cluster.in_flight + cluster.prefetched
        if there < limit:
            return None
        return Rejection(MAX_IN_FLIGHT, f"{there} items of ours are there; max_in_flight is {limit}")
