"""It fits the largest node there is, was, or may be."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import GangDescription, Rejection, Resources, TaskDescription
from ray_multicluster_scheduler.common.model.resources import describe, fits
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.cluster.packing import never_fits
from ray_multicluster_scheduler.scheduler.policy.reasons import TOO_BIG


class SizeFilter:
    """Permanent, for what no waiting can mend.

    A task or an actor must fit one node; a job's footprint may spread over all of them; each member of a gang must fit
    a node beside the others. A cluster that scales itself may get nodes of ``max_node``, or, if that is not given, of
    any size. A node that was seen before may come back, so it counts as well.
    """

    name = "size"

    def concerns(self, task: TaskDescription) -> bool:
        """What fits what is free fits what there is; only a gang may be sent to where nothing is free for all of it."""
        return task.gang is not None

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        need = task.placement
        if not need or not cluster.known or not cluster.nodes:
            return None
        if task.gang is not None:
            return self._check_gang(task.gang, cluster)
        if self._may_grow(need, cluster, spread=task.kind == "job"):
            return None
        sizes = [node.total for node in cluster.nodes]
        if any(fits(need, size) for size in (*sizes, *cluster.bygone_nodes)):
            return None
        if task.kind == "job" and fits(need, cluster.total):
            return None
        return Rejection(TOO_BIG, self._sentence(task, sizes), permanent=True)

    def _check_gang(self, gang: GangDescription, cluster: ClusterView) -> Rejection | None:
        largest = cluster.metadata.max_node
        if largest is None and cluster.metadata.autoscaling:
            return None
        sizes = [node.total for node in cluster.nodes]
        asked = gang.total
        gone = [{name: size.get(name, 0.0) for name in asked} for size in cluster.bygone_nodes]
        gone = [size for size in gone if not any(fits(size, there) for there in sizes)]
        more = [] if largest is None else [largest] * len(gang.members)
        bundles = [member.requirements for member in gang.members]
        for rooms in ([*sizes, *gone], cluster.most_nodes):
            if not never_fits(bundles, gang.strategy, [*rooms, *more]):
                return None
        has = {name: cluster.total.get(name, 0.0) for name in asked}
        number = "1 node" if len(sizes) == 1 else f"{len(sizes)} nodes"
        sentence = f"its {gang.describe()} never fit together on what it has ({number}, in all {describe(has)})"
        return Rejection(TOO_BIG, sentence, permanent=True)

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
