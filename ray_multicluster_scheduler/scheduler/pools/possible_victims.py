"""PossibleVictims: the items that the rules allow to displace, ranked; and the nodes where they could make room.

Items are checked lazily, by ascending priority: mostly the few lowest priorities are enough for a plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from typing import TypeAlias

from ray_multicluster_scheduler.common.model.resources import Resources
from ray_multicluster_scheduler.scheduler.pools.preemption_plan import Cost, Place, RunningItem
from ray_multicluster_scheduler.scheduler.pools.preemption_rules import REASONS
from ray_multicluster_scheduler.scheduler.pools.rule_check import RuleCheck

ROUNDING = 0.5 / 10_000  # half a step of Ray's fixed-point amounts
Option: TypeAlias = tuple[float, float, float, str, RunningItem]
"""A possible victim, after what ranks it: its priority, the work that is lost, minus its start, its id."""


def option_of(item: RunningItem, now: float) -> Option:
    return item.priority, item.lost_s(now), -item.started_at, item.id, item


def cost_of(options: Collection[Option], at_least: float) -> Cost:
    highest = max((option[0] for option in options), default=at_least)
    return Cost(max(highest, at_least), sum(option[1] for option in options), len(options))


class PossibleVictims:
    """The running items in levels of equal priority, or in one level of any priority, whose number is minus infinity.
    The ledger of ``check`` must be unchanged when a level is read first."""

    def __init__(self, running: Sequence[RunningItem], check: RuleCheck, now: float, *, by_priority: bool) -> None:
        self._check, self._now = check, now
        self._items: dict[float, list[RunningItem]] = {}
        for item in running:
            priority = item.priority if by_priority else -inf
            items = self._items.get(priority)
            if items is None:
                self._items[priority] = [item]
            else:
                items.append(item)
        self.priorities = sorted(self._items)
        self._levels: list[list[Option]] = []
        self._counts: Counter[str] = Counter()

    def level(self, number: int) -> list[Option]:
        """The possible victims of one priority, in order."""
        while len(self._levels) <= number:
            items = self._items[self.priorities[len(self._levels)]]
            codes = [self._check.standing(item) for item in items]
            self._counts.update(codes)
            possible = (item for item, code in zip(items, codes, strict=True) if code in REASONS)
            self._levels.append(sorted(option_of(item, self._now) for item in possible))
        return self._levels[number]

    def known(self) -> Iterator[Option]:
        """Those of the levels that were read, in order."""
        return chain.from_iterable(self._levels)

    def read_all(self) -> Counter[str]:
        """Read all levels. Returns how many items have each code."""
        if self.priorities:
            self.level(len(self.priorities) - 1)
        return self._counts


class Target:
    """Where room can be made: a node, with the possible victims on it, and what the newcomer is ``missing`` there.
    Without a node, the place decides."""

    __slots__ = ("_short", "missing", "node", "options", "place")

    def __init__(self, place: Place, node: str | None, missing: Mapping[str, float]) -> None:
        self.place, self.node = place, node
        self.options: list[Option] = []
        self.missing = self._short = missing

    def add(self, option: Option, held: Resources) -> bool:
        """Add the next one in order, and what it holds there. True if it is the one that completes the room."""
        self.options.append(option)
        if not self._short:
            return False
        self._short = {
            name: rest for name, short in self._short.items() if (rest := short - held.get(name, 0.0)) > ROUNDING
        }
        return not self._short

    def cost(self, priority: float) -> Cost:
        """The cost of the room: those that are needed, given back from the most important on. Some cost of the quota is
        known from the ``priority`` that victims have to have for it."""
        if len(self.options) == 1 or self.node is None:
            return cost_of(self.options, priority)
        held = {option[3]: option[4].nodes[self.node] for option in self.options}
        needed = list(self.options)
        spare = {name: sum(one.get(name, 0.0) for one in held.values()) - short for name, short in self.missing.items()}
        for option in self.options[::-1]:
            if all(held[option[3]].get(name, 0.0) <= amount + ROUNDING for name, amount in spare.items()):
                needed.remove(option)
                spare = {name: amount - held[option[3]].get(name, 0.0) for name, amount in spare.items()}
        return cost_of(needed, priority)
