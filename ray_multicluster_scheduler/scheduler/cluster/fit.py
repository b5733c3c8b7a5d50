"""Fit: whether an item fits a cluster, and what it reserves on which node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ray_multicluster_scheduler.common.model import GangDescription, Resources, TaskDescription
from ray_multicluster_scheduler.common.model.resources import fits, minus, plus
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import NEW_NODE, ClusterView, NewNode, NodeView
from ray_multicluster_scheduler.scheduler.cluster.packing import left_over, pack

_NOTHING_LEFT = 1e-9


def find_placement(
    task: TaskDescription, nodes: Sequence[NodeView], new_node: NewNode | None = None
) -> dict[str, Resources] | None:
    """The resources to reserve on each node; None when the item does not fit now.

    A task or an actor needs one node, and so does each member of a gang. A job's footprint may spread, since Ray places
    its tasks, except for what its entrypoint holds. If nothing is free, and that is known of every node, it may wait
    for a ``new_node``.
    """
    need = task.placement
    if not need:
        return {}
    parts = _find_placement(task, nodes)
    if parts is not None or new_node is None or any(node.free is None for node in nodes):
        return parts
    return _with_new_node(task, nodes, new_node)


def fits_now(task: TaskDescription, cluster: ClusterView) -> bool:
    """Whether :func:`find_placement` would find a placement; cheaper, because it compares no nodes."""
    if task.kind in ("task", "actor"):
        need = task.placement
        for node in cluster.nodes:
            if node.free is not None and fits(need, node.free):
                return True
    return find_placement(task, cluster.nodes, cluster.new_node) is not None


def needs_new_node(task: TaskDescription, cluster: ClusterView) -> bool:
    """Would it have to wait there for a node that does not exist yet?"""
    return cluster.new_node is not None and find_placement(task, cluster.nodes) is None


def may_spread(task: TaskDescription) -> bool:
    """May it use several nodes?"""
    return task.kind == "job" or task.gang is not None


def _find_placement(task: TaskDescription, nodes: Sequence[NodeView]) -> dict[str, Resources] | None:
    if task.gang is not None:
        return find_gang_placement(task.gang, nodes)
    need = task.placement
    known = [node for node in nodes if node.free is not None]
    node_id = best_node(need, known)
    if node_id is not None:
        return {node_id: need}
    return spread(need, known, task.entrypoint_resources) if task.kind == "job" else None


def _with_new_node(task: TaskDescription, nodes: Sequence[NodeView], new_node: NewNode) -> dict[str, Resources] | None:
    """The resources to reserve on existing nodes and on the new one; None if it would not fit either. Ray starts the
    entrypoint of a job at once where there is room for it, and only the rest of the job needs more nodes; an entrypoint
    that asks for nothing runs on the head, which is not booked."""
    need, whole = task.placement, task.entrypoint_resources
    there = best_node(whole, nodes) if whole else None
    if there is not None:
        rest = {name: amount for name, amount in minus(need, whole).items() if amount > _NOTHING_LEFT}
        return {there: whole, NEW_NODE: rest} if new_node.fits(rest, whole={}) else None
    return {NEW_NODE: need} if new_node.fits(need, whole=whole if may_spread(task) else None) else None


def find_gang_placement(gang: GangDescription, nodes: Iterable[NodeView]) -> dict[str, Resources] | None:
    """The resources of all members on each node; None when they do not fit."""
    known = [(node.node_id, node.free) for node in nodes if node.free is not None]
    bundles = [member.requirements for member in gang.members]
    chosen = pack(bundles, gang.strategy, [free for _, free in known])
    return None if chosen is None else gang_parts(gang, [known[at][0] for at in chosen])


def gang_parts(gang: GangDescription, node_ids: Sequence[str]) -> dict[str, Resources]:
    """Resources of the members by node, when they are on these nodes, in order."""
    parts: dict[str, Resources] = {}
    for member, node_id in zip(gang.members, node_ids, strict=True):
        parts[node_id] = plus(parts.get(node_id, {}), member.requirements)
    return parts


def best_node(need: Resources, nodes: Iterable[NodeView]) -> str | None:
    """The node that ``need`` fills best, so that large gaps remain for large items."""
    room = [(left_over(need, node.free), node.node_id) for node in nodes if node.free and fits(need, node.free)]
    return min(room)[1] if room else None


def spread(need: Resources, nodes: Sequence[NodeView], whole: Resources | None = None) -> dict[str, Resources] | None:
    """Take from the emptiest nodes first until ``need`` is met, or None. ``whole`` is the part that must be on one
    node."""
    if whole:
        return _spread_around(need, nodes, whole)
    missing = dict(need)
    parts: dict[str, Resources] = {}
    for node in sorted(nodes, key=lambda one: (-_amount_of(missing, one.free), one.node_id)):
        part = _take(missing, node.free or {})
        if part:
            parts[node.node_id] = part
    return None if any(amount > _NOTHING_LEFT for amount in missing.values()) else parts


def _spread_around(need: Resources, nodes: Sequence[NodeView], whole: Resources) -> dict[str, Resources] | None:
    """Place the whole part first: its node does not matter for the rest."""
    first = best_node(whole, nodes)
    if first is None:
        return None
    left = [replace(one, free=minus(one.free or {}, whole)) if one.node_id == first else one for one in nodes]
    parts = spread(minus(need, whole), left)
    return None if parts is None else {**parts, first: plus(parts.get(first, {}), whole)}


def _take(missing: dict[str, float], free: Resources) -> dict[str, float]:
    part = {name: min(amount, free.get(name, 0.0)) for name, amount in missing.items()}
    part = {name: amount for name, amount in part.items() if amount > _NOTHING_LEFT}
    for name, amount in part.items():
        missing[name] -= amount
    return part


def _amount_of(names: Mapping[str, float], free: Resources | None) -> float:
    return sum((free or {}).get(name, 0.0) for name in names)
