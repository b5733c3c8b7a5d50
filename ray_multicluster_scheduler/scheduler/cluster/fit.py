"""Does it fit, and where? The two ways in which an item takes room of a cluster's nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ray_multicluster_scheduler.common.model import Resources, TaskDescription
from ray_multicluster_scheduler.common.model.resources import fits
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import NodeView

_NOTHING_LEFT = 1e-9


def find_place(task: TaskDescription, nodes: Iterable[NodeView]) -> dict[str, Resources] | None:
    """What to reserve on which node, or None when there is no room now.

    A task or an actor needs one node. A job's footprint may spread: its own tasks are placed by Ray.
    """
    need = task.placement
    if not need:
        return {}
    known = [node for node in nodes if node.free is not None]
    node_id = best_node(need, known)
    if node_id is not None:
        return {node_id: need}
    return spread(need, known) if task.kind == "job" else None


def best_node(need: Resources, nodes: Iterable[NodeView]) -> str | None:
    """The node that ``need`` fills best, so that large gaps stay for large items."""
    room = [(_left_over(need, node.free), node.node_id) for node in nodes if node.free and fits(need, node.free)]
    return min(room)[1] if room else None


def spread(need: Resources, nodes: Iterable[NodeView]) -> dict[str, Resources] | None:
    """Take from the emptiest nodes first until all of ``need`` is there, or None."""
    missing = dict(need)
    parts: dict[str, Resources] = {}
    for node in sorted(nodes, key=lambda one: (-_amount_of(missing, one.free), one.node_id)):
        part = _take(missing, node.free or {})
        if part:
            parts[node.node_id] = part
    return None if any(amount > _NOTHING_LEFT for amount in missing.values()) else parts


def _take(missing: dict[str, float], free: Resources) -> dict[str, float]:
    part = {name: min(amount, free.get(name, 0.0)) for name, amount in missing.items()}
    part = {name: amount for name, amount in part.items() if amount > _NOTHING_LEFT}
    for name, amount in part.items():
        missing[name] -= amount
    return part


def _amount_of(names: Mapping[str, float], free: Resources | None) -> float:
    return sum((free or {}).get(name, 0.0) for name in names)


def _left_over(need: Resources, free: Resources) -> float:
    """How much of what it asks for would stay free, as a sum of shares: GPUs and CPUs weigh the same."""
    return sum((free[name] - amount) / free[name] for name, amount in need.items() if free.get(name))
