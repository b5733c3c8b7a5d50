"""CapacityFilter: the item fits what is free now, node by node."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.common.model.resources import describe, fits
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.cluster.fit import fits_now
from ray_multicluster_scheduler.scheduler.policy.reasons import CAPACITY_UNKNOWN, NO_CAPACITY


class CapacityFilter:
    """Free is the total, less external use, less our reservations. Unknown is not free."""

    name = "capacity"

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        if not cluster.has_snapshot or fits_now(task, cluster):
            return None
        if any(node.free is None for node in cluster.nodes):
            return Rejection(CAPACITY_UNKNOWN, "its last snapshot lacks the free amounts of some node")
        if task.gang is not None:
            free = {name: cluster.free.get(name, 0.0) for name in task.requirements}
            sentence = f"its {task.gang.describe()} do not fit what is free on the nodes (in all: {describe(free)})"
            return Rejection(NO_CAPACITY, sentence + _kept(cluster))
        return Rejection(NO_CAPACITY, _sentence(task, cluster) + _kept(cluster))


def _sentence(task: TaskDescription, cluster: ClusterView) -> str:
    need, where, who = task.placement, "any one node", ""
    if task.entrypoint_resources and fits(need, cluster.free):
        need, who = task.entrypoint_resources, ", which its entrypoint needs,"
    elif task.kind == "job":
        where = "its nodes together"
    free = {name: cluster.free.get(name, 0.0) for name in need}
    return f"{describe(need)}{who} is not free on {where} (free in all: {describe(free)})"


def _kept(cluster: ClusterView) -> str:
    """Does not name the wide item: the owners of other items read this."""
    return "; room is kept for a wide item that has waited long" if cluster.reserved_for else ""
