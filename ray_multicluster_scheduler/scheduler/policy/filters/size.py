"""It fits the largest node there is, was, or may be."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, Resources, TaskDescription
from ray_multicluster_scheduler.common.model.resources import describe, fits
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.reasons import TOO_BIG


class SizeFilter:
    """Permanent, for what no waiting can mend.

    A task or an actor must fit one node; a job's footprint may spread over all of them. A cluster that scales
    itself may get a node of ``max_node``, or, if that is not given, of any size. A node that was seen before may
    come back, so it counts as well.
    """

    name = "size"

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        need = task.placement
        if not need or not cluster.known or not cluster.nodes:
            return None
        if self._may_grow(need, cluster, spread=task.kind == "job"):
            return None
        sizes = [node.total for node in cluster.nodes]
        if any(fits(need, size) for size in (*sizes, *cluster.bygone_nodes)):
            return None
        if task.kind == "job" and fits(need, cluster.total):
            return None
        return Rejection(TOO_BIG, self._sentence(task, sizes), permanent=True)

    def _may_grow(self, need: Resources, cluster: ClusterView, *, spread: bool) -> bool:
        largest = cluster.metadata.max_node
        if largest is None:
            return cluster.metadata.autoscaling
        if spread and cluster.metadata.autoscaling:
            return all(largest.get(name) for name in need)
        return fits(need, largest)

    def _sentence(self, task: TaskDescription, sizes: list[Resources]) -> str:
        asked = {name: max(size.get(name, 0.0) for size in sizes) for name in task.placement}
        where = "all its nodes together" if task.kind == "job" else "one node"
        most = "" if task.kind == "job" else f" (the most on any node: {describe(asked)})"
        return f"it asks for {describe(task.placement)}, more than {where} can ever have{most}"
