"""Packing: assigns the bundles of a gang to nodes.

For one node, or as many nodes as bundles, the result is exact. In between it is bin packing: bundles are placed largest
first; if that fails, a bounded search tries other arrangements. A solution may exist that the search does not find, so
only :func:`never_fits` is certain that there is none.

Nodes with equal free resources are considered once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import le, truediv
from typing import TypeAlias

from ray_multicluster_scheduler.common.model import Resources

MAX_CHECKS = 2_000
"""Checks of a bundle against a node before the search gives up: a few milliseconds."""
_MAX_SEARCHED = 64
"""The most bundles that are searched for: the search goes one level deeper for each."""
_ROUNDING = 0.5 / 10_000  # half a step of Ray's fixed-point amounts

FreeByNode: TypeAlias = Sequence[Resources]
"""Free resources, node by node."""
_Amounts: TypeAlias = tuple[float, ...]
_NodeState: TypeAlias = tuple[int, _Amounts]
"""The number of bundles on a node, and its remaining resources."""


def pack(bundles: Sequence[Resources], strategy: str, free_by_node: FreeByNode) -> list[int] | None:
    """For each bundle the index of its node, or None if no arrangement was found."""
    return _Packing(bundles, free_by_node).arrange(strategy)


def never_fits(bundles: Sequence[Resources], strategy: str, free_by_node: FreeByNode) -> bool:
    """Is it certain that no arrangement exists?"""
    packing = _Packing(bundles, free_by_node)
    return packing.arrange(strategy) is None and not packing.gave_up


def left_over(need: Resources, free: Resources) -> float:
    """The resources that would stay free, as a sum of the shares of each requested one: GPUs and CPUs weigh the
    same."""
    return sum((free[name] - amount) / free[name] for name, amount in need.items() if free.get(name))


class _Packing:
    """One attempt to pack; used once."""

    def __init__(self, bundles: Sequence[Resources], free_by_node: FreeByNode) -> None:
        names = list(dict.fromkeys(name for one in bundles for name in one))
        self._bundles = [tuple(one.get(name, 0.0) for name in names) for one in bundles]
        self._free = [tuple(one.get(name, 0.0) + _ROUNDING for name in names) for one in free_by_node]
        self._total = _sum(self._bundles)
        self._order: list[int] = []
        self._placed: dict[int, int] = {}
        self._checks = 0
        self.gave_up = False

    def arrange(self, strategy: str) -> list[int] | None:
        there = _sum(self._free)
        if not there or not _fits(self._total, there):
            return None
        sizes = [max(map(truediv, one, there)) for one in self._bundles]
        self._order = sorted(range(len(sizes)), key=lambda index: -sizes[index])
        match strategy:
            case "STRICT_PACK":
                found = self._on_one_node()
            case "STRICT_SPREAD":
                found = self._on_different_nodes()
            case "SPREAD":
                found = self._one_by_one(_widest) or self._searched()
            case _:
                found = self._on_one_node() or self._one_by_one(_tightest) or self._searched()
        return [self._placed[index] for index in range(len(self._bundles))] if found else None

    def _on_one_node(self) -> bool:
        """Use the node with the least left over, so that large gaps remain for large items."""
        fitting = [at for at, free in enumerate(self._free) if _fits(self._total, free)]
        if not fitting:
            return False
        best = min(fitting, key=lambda at: _left(self._total, self._free[at]))
        self._placed = dict.fromkeys(range(len(self._bundles)), best)
        return True

    def _one_by_one(self, preference: Callable[[_Amounts, _NodeState], tuple[float, ...]]) -> bool:
        """Place each where it fits best; lowest ``preference`` first. Stops at the first that does not fit."""
        self._placed = {}
        groups = self._groups()
        for index in self._order:
            need = self._bundles[index]
            fitting = [node_state for node_state in groups if _fits(need, node_state[1])]
            if not fitting:
                return False
            best = min(fitting, key=lambda node_state: preference(need, node_state))
            self._placed[index] = _move(groups, best, need)
        return True

    def _groups(self) -> dict[_NodeState, list[int]]:
        """Empty nodes, those with the same room together, the first of them last."""
        groups: dict[_NodeState, list[int]] = {}
        for at in range(len(self._free) - 1, -1, -1):
            groups.setdefault((0, self._free[at]), []).append(at)
        return groups

    def _on_different_nodes(self) -> bool:
        """Bipartite matching of bundles and nodes by augmenting paths."""
        holder: dict[int, int] = {}
        known: dict[_Amounts, list[int]] = {}

        def choice(need: _Amounts) -> list[int]:
            if need not in known:
                fitting = [at for at, free in enumerate(self._free) if _fits(need, free)]
                known[need] = sorted(fitting, key=lambda at: _left(need, self._free[at]))
            return known[need]

        def settle(index: int, asked: set[int]) -> bool:
            wanted = choice(self._bundles[index])
            place = next((at for at in wanted if at not in holder), None)
            if place is None:
                for at in wanted:
                    if at not in asked:
                        asked.add(at)
                        if settle(holder[at], asked):
                            place = at
                            break
            if place is not None:
                holder[place] = index
            return place is not None

        if len(self._bundles) > len(self._free) or not all(settle(index, set()) for index in self._order):
            return False
        self._placed = {index: at for at, index in holder.items()}
        return True

    def _searched(self) -> bool:
        """Bounded search over all arrangements."""
        self._placed = {}
        self.gave_up = len(self._bundles) > _MAX_SEARCHED
        return not self.gave_up and self._search(0, list(self._free))

    def _search(self, depth: int, left: list[_Amounts]) -> bool:
        if depth == len(self._order):
            return True
        index = self._order[depth]
        need = self._bundles[index]
        tried: set[_Amounts] = set()
        for at, room in enumerate(left):
            if room in tried:
                continue  # an equal node would fare no better
            tried.add(room)
            self._checks += 1
            if self._checks > MAX_CHECKS:
                self.gave_up = True
                return False
            if not _fits(need, room):
                continue
            self._placed[index], left[at] = at, _less(room, need)
            if self._search(depth + 1, left):
                return True
            left[at] = room
            if self.gave_up:
                return False
        return False


def _move(groups: dict[_NodeState, list[int]], node_state: _NodeState, need: _Amounts) -> int:
    """Put it on the first of these nodes, and move that node to its new group."""
    number, left = node_state
    at = groups[node_state].pop()
    if not groups[node_state]:
        del groups[node_state]
    groups.setdefault((number + 1, _less(left, need)), []).append(at)
    return at


def _tightest(need: _Amounts, node_state: _NodeState) -> tuple[float, ...]:
    """A node that has one of them already, else the one that this bundle fills best."""
    number, left = node_state
    return float(not number), _left(need, left)


def _widest(need: _Amounts, node_state: _NodeState) -> tuple[float, ...]:
    """The node with the fewest of them, and of those the emptiest."""
    number, left = node_state
    return float(number), -_left(need, left)


def _fits(need: _Amounts, free: _Amounts) -> bool:
    return all(map(le, need, free))


def _less(free: _Amounts, need: _Amounts) -> _Amounts:
    return tuple(round(there - taken, 6) for there, taken in zip(free, need, strict=True))


def _left(need: _Amounts, free: _Amounts) -> float:
    """As :func:`left_over`."""
    return sum((there - wanted) / there for there, wanted in zip(free, need, strict=True) if wanted)


def _sum(parts: Sequence[_Amounts]) -> _Amounts:
    return tuple(map(sum, zip(*parts, strict=True)))
