"""CarrierFilter: rejects clusters that have no transport for this kind of item."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.reasons import NO_CARRIER


class CarrierFilter:
    """Jobs go to the dashboard. Tasks and actors go by an agent, which is started there, or by Ray Client."""

    name = "carrier"
    by_kind = True
    lasting = True

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        known = cluster.metadata
        if known.dashboard is not None and (task.kind == "job" or known.carrier != "ray_client"):
            return None
        if task.kind != "job" and known.carrier in ("auto", "ray_client") and known.head_address is not None:
            return None
        lacking = "head_address" if task.kind != "job" and known.carrier == "ray_client" else "dashboard"
        sentence = f"it has no `{lacking}`, which is needed to send a {task.kind} there"
        return Rejection(NO_CARRIER, sentence, permanent=True)
