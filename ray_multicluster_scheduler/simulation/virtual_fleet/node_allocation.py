"""Room: the nodes of a simulated cluster as they really are. Who runs where, and what others took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from ray_multicluster_scheduler.common.model import NodeSnapshot, Resources, TaskDescription
from ray_multicluster_scheduler.common.model.gang_description import Strategy
from ray_multicluster_scheduler.common.model.resources import fits
from ray_multicluster_scheduler.scheduler.cluster.packing import pack

_NOISE = 1e-9
_DIGITS = 6


class Node:
    """One node. ``wanted`` is the share of it that others want, ``others`` what they have."""

    __slots__ = ("alive", "free", "name", "others", "total", "wanted")

    def __init__(self, name: str, total: Resources) -> None:
        self.name, self.total = name, total
        self.alive = True
        self.wanted = 0.0
        self.others: dict[str, float] = {}
        self.free = dict(total)


Parts: TypeAlias = Sequence[tuple[Node, Resources]]
"""What something takes of which node."""


class Room:
    """Of one cluster. Every change is seen in ``used`` (ours) and ``changes``."""

    __slots__ = ("changes", "nodes", "used")

    def __init__(self, cluster: str, sizes: Iterable[Resources]) -> None:
        self.nodes = [Node(f"{cluster}-n{number}", size) for number, size in enumerate(sizes, start=1)]
        self.used: dict[str, float] = {}
        self.changes = 0

    def take(self, task: TaskDescription) -> Parts | None:
        """Room for it, taken, or None if there is none now. Ray puts what fits one node where it fills it best."""
        parts = self._find(task)
        if parts is not None:
            for node, amounts in parts:
                self._add(node, amounts, -1.0)
            self.changes += 1
        return parts

    def give_back(self, parts: Parts) -> None:
        """It is over; others get what they still want."""
        for node, amounts in parts:
            self._add(node, amounts, 1.0)
            if node.wanted:
                self._let_others(node)
        self.changes += 1

    def others_want(self, node: Node, share: float) -> None:
        """From now on others want this share of it."""
        node.wanted = share
        self._let_others(node)
        self.changes += 1

    def seen(self) -> tuple[NodeSnapshot, ...]:
        """The nodes that live, as a snapshot tells of them."""
        return tuple(
            NodeSnapshot(node.name, node.total, {name: round(left, _DIGITS) for name, left in node.free.items()})
            for node in self.nodes
            if node.alive
        )

    def totals(self) -> dict[str, Resources]:
        """What the nodes that live have."""
        return {node.name: node.total for node in self.nodes if node.alive}

    def total(self) -> dict[str, float]:
        """The same over all of them."""
        amounts: dict[str, float] = {}
        for node in self.nodes:
            if node.alive:
                for name, amount in node.total.items():
                    amounts[name] = amounts.get(name, 0.0) + amount
        return amounts

    def _find(self, task: TaskDescription) -> Parts | None:
        if task.gang is not None:
            return self._find_all([member.requirements for member in task.gang.members], task.gang.strategy)
        need = task.placement
        if not need:
            return ()
        best, least = None, 0.0
        for node in self.nodes:
            if node.alive and fits(need, node.free):
                left = node.free.get("CPU", 0.0)
                if best is None or left < least:
                    best, least = node, left
        if best is not None:
            return ((best, task.requirements),)
        return self._spread(need) if task.kind == "job" else None

    def _find_all(self, bundles: Sequence[Resources], strategy: Strategy) -> Parts | None:
        alive = [node for node in self.nodes if node.alive]
        chosen = pack(bundles, strategy, [node.free for node in alive])
        return None if chosen is None else [(alive[at], need) for at, need in zip(chosen, bundles, strict=True)]

    def _spread(self, need: Resources) -> Parts | None:
        """A job's own tasks go wherever there is room."""
        missing = dict(need)
        parts: list[tuple[Node, Resources]] = []
        for node in self.nodes:
            part = (
                {name: min(amount, node.free.get(name, 0.0)) for name, amount in missing.items()} if node.alive else {}
            )
            part = {name: amount for name, amount in part.items() if amount > _NOISE}
            if part:
                parts.append((node, part))
                for name, amount in part.items():
                    missing[name] -= amount
        return None if any(amount > _NOISE for amount in missing.values()) else parts

    def _add(self, node: Node, amounts: Resources, sign: float) -> None:
        free, used = node.free, self.used
        for name, amount in amounts.items():
            free[name] = free.get(name, 0.0) + sign * amount
            used[name] = used.get(name, 0.0) - sign * amount

    def _let_others(self, node: Node) -> None:
        for name, total in node.total.items():
            has = node.others.get(name, 0.0)
            wanted = total * node.wanted if name == "memory" else round(total * node.wanted)
            more = min(wanted - has, node.free[name])
            node.others[name] = has + more
            node.free[name] -= more
