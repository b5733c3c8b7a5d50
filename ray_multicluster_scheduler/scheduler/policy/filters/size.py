"""SizeFilter: the item fits the nodes that the cluster has, had, or may add."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import GangDescription, Rejection, Resources, TaskDescription
from ray_multicluster_scheduler.common.model.resources import describe, fits, minus
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.cluster.packing import never_fits
from ray_multicluster_scheduler.scheduler.policy.reasons import TOO_BIG


class SizeFilter:
    """Rejects permanently what can never fit.

    A task or an actor must fit one node; a job's footprint may spread over all nodes, except for what its entrypoint
    holds; the members of a gang must fit together. An autoscaling cluster may add nodes of ``max_node``, or of any size
    if that is not set. A node that was seen before may come back, so it counts too.
    """

    name = "size"

    def concerns(self, task: TaskDescription) -> bool:
        """Checks gangs only in the fast path: single items that fit now also fit a node."""
        return task.gang is not None

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        need = task.placement
        if not need or not cluster.has_snapshot or not cluster.nodes:
            return None
        if task.gang is not None:
            return self._check_gang(task.gang, cluster)
        largest = cluster.metadata.max_node
        if largest is None and cluster.metadata.autoscaling:
            return None
        sizes = [node.total for node in cluster.nodes]
        known = [*sizes, *cluster.past_node_sizes, *([largest] if largest is not None else [])]
        if any(fits(need, size) for size in known):
            return None
        if task.kind != "job":
            return Rejection(TOO_BIG, _more_than_a_node("it", need, sizes), permanent=True)
        whole = task.entrypoint_resources
        if not any(fits(whole, size) for size in known):
            return Rejection(TOO_BIG, _more_than_a_node("its entrypoint", whole, sizes), permanent=True)
        if fits(need, cluster.total) or self._may_grow(minus(need, whole), cluster):
            return None
        sentence = f"it requests {describe(need)}, more than all its nodes together can ever have"
        return Rejection(TOO_BIG, sentence, permanent=True)

    def _check_gang(self, gang: GangDescription, cluster: ClusterView) -> Rejection | None:
        largest = cluster.metadata.max_node
        if largest is None and cluster.metadata.autoscaling:
            return None
        sizes = [node.total for node in cluster.nodes]
        asked = gang.total
        past = [{name: size.get(name, 0.0) for name in asked} for size in cluster.past_node_sizes]
        past = [size for size in past if not any(fits(size, present) for present in sizes)]
        more = [] if largest is None else [largest] * len(gang.members)
        bundles = [member.requirements for member in gang.members]
        for rooms in ([*sizes, *past], cluster.largest_node_set):
            if not never_fits(bundles, gang.strategy, [*rooms, *more]):
                return None
        has = {name: cluster.total.get(name, 0.0) for name in asked}
        number = "1 node" if len(sizes) == 1 else f"{len(sizes)} nodes"
        sentence = f"its {gang.describe()} never fit together on what it has ({number}, in all {describe(has)})"
        return Rejection(TOO_BIG, sentence, permanent=True)

    def _may_grow(self, rest: Resources, cluster: ClusterView) -> bool:
        """May enough nodes be added for a job, each with some of everything it needs besides its entrypoint?"""
        largest = cluster.metadata.max_node or {}
        return cluster.metadata.autoscaling and all(largest.get(name) for name, amount in rest.items() if amount)


def _more_than_a_node(what: str, need: Resources, sizes: list[Resources]) -> str:
    most = {name: max(size.get(name, 0.0) for size in sizes) for name in need}
    requests = f"{what} requests {describe(need)}"
    return f"{requests}, more than one node can ever have (the most on any node: {describe(most)})"
