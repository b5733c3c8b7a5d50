"""VictimSet: the victims tried for one target, on a ledger of their own.

Invariant: the victims can leave in some order in which each is allowed when those before it have left. Only one rule
depends on that order: what a pool borrows, which a victim of the same pool reduces. So a set stays allowed when a
victim is removed; :meth:`VictimSet.in_order` checks that, and finds the order by choosing the last victim first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from ray_multicluster_scheduler.common.model.resources import Resources, fits, plus
from ray_multicluster_scheduler.scheduler.pools.possible_victims import ROUNDING, Option, cost_of
from ray_multicluster_scheduler.scheduler.pools.preemption_plan import (
    ByNode,
    Newcomer,
    Place,
    PreemptionPlan,
    Victim,
)
from ray_multicluster_scheduler.scheduler.pools.preemption_rules import REASONS
from ray_multicluster_scheduler.scheduler.pools.quota_ledger import Booking
from ray_multicluster_scheduler.scheduler.pools.rule_check import RuleCheck


class VictimSet:
    """``node`` is where the newcomer's need has to fit; without it, only the place decides. The ledger of ``check`` is
    changed by :meth:`take` and :meth:`give_back`, and restored by :meth:`clear`."""

    def __init__(self, newcomer: Newcomer, check: RuleCheck, place: Place, node: str | None) -> None:
        self.victims: list[Option] = []
        self.steps = 0
        """How often a victim was checked, to take it or to give it back."""
        self.place, self.node = place, node
        self._newcomer, self._check, self._ledger = newcomer, check, check.ledger
        self._bookings: dict[str, Booking] = {}

    def take(self, option: Option) -> bool:
        """Add the victim, if the rules allow it after those that were taken."""
        self.steps += 1
        if self._check.code(option[4], self.place.name) not in REASONS:
            return False
        self.victims.append(option)
        self._release(option)
        return True

    def drop_last(self, count: int) -> None:
        """Undo the last takes."""
        for _ in range(count):
            self._restore(self.victims.pop())

    def clear(self) -> None:
        self.drop_last(len(self.victims))

    # ---- what is freed

    def freed(self, victims: Iterable[Option]) -> dict[str, dict[str, float]]:
        """What these victims hold at the place."""
        freed: dict[str, dict[str, float]] = {}
        for *_, item in victims:
            if item.place == self.place.name:
                for node, amounts in item.nodes.items():
                    freed[node] = plus(freed.get(node, {}), amounts)
        return freed

    def parts(self) -> ByNode | None:
        """The placement, if there is room."""
        return self.place.accepts(self.freed(self.victims))

    def has_room(self) -> bool:
        if self.node is None:
            return self.parts() is not None
        free = plus(self.place.free[self.node], self.freed(self.victims).get(self.node, {}))
        return fits(self._newcomer.need or {}, free)

    def missing_quota(self) -> dict[str, float]:
        new = self._newcomer
        return {} if new.pool is None else self._ledger.missing(new.pool, new.amounts, self.place.name)

    # ---- choosing

    def make_room(self, options: Sequence[Option]) -> bool:
        """Take victims in this order until there is room."""
        return self._take_on_node(options, self.node) if self.node is not None else self._take_prefix(options)

    def free_quota(self, options: Iterable[Option]) -> bool:
        """Take victims in this order, if they free quota that is missing, until none is missing."""
        missing = self.missing_quota()
        if not missing:
            return True
        for option in options:
            booking = self._ledger.booking(option[3])  # None also if it was taken for the room
            if booking is None or missing.keys().isdisjoint(booking.amounts):
                continue
            if self.take(option):
                rest = self.missing_quota()
                if not rest:
                    return True
                if rest == missing:
                    self.drop_last(1)
                missing = rest
        return False

    def give_back(self) -> None:
        """Remove every victim that is not needed, the most important first, if all rules still allow the rest."""
        for option in sorted(self.victims, reverse=True):
            self.steps += 1
            at = self.victims.index(option)
            del self.victims[at]
            self._restore(option)
            if not self.has_room() or self.missing_quota() or not self.is_allowed():
                self.victims.insert(at, option)
                self._release(option)

    def is_allowed(self) -> bool:
        """Whether all rules still hold for these victims."""
        return not self._check.depends_on_ledger or self.in_order() is not None

    def in_order(self) -> list[tuple[Option, str]] | None:
        """The victims with their reasons, in an order in which each is allowed when those before it have left; None if
        there is no such order."""
        pending, found = sorted(self.victims), list[tuple[Option, str]]()
        while pending:
            last = self._find_last(pending)
            if last is None:
                break
            pending.remove(last[0])
            found.append(last)
        for option, _ in found:
            self._release(option)
        return None if pending else found[::-1]

    def _find_last(self, pending: Sequence[Option]) -> tuple[Option, str] | None:
        """A victim that is allowed when the others have left, with its reason. It is restored."""
        for option in reversed(pending):
            self._restore(option)
            code = self._check.code(option[4], self.place.name)
            if code in REASONS:
                return option, code
            self._release(option)
        return None

    def plan(self) -> PreemptionPlan | None:
        """The plan with these victims, if the place accepts it."""
        parts, ordered = self.parts(), self.in_order()
        if parts is None or ordered is None:
            return None
        victims = tuple(Victim(item.id, reason, item.priority, lost) for (_, lost, _, _, item), reason in ordered)
        return PreemptionPlan(self._newcomer.id, self.place.name, parts, victims, cost_of(self.victims, -inf))

    def _take_on_node(self, options: Sequence[Option], node: str) -> bool:
        need = self._newcomer.need or {}
        free = plus(self.place.free[node], self.freed(self.victims).get(node, {}))
        for option in options:
            if fits(need, free):
                return True
            held = option[4].nodes[node]
            if _helps(need, free, held) and option not in self.victims and self.take(option):
                free = plus(free, held)
        return fits(need, free)

    def _take_prefix(self, options: Sequence[Option]) -> bool:
        """Take twice as many each time until the place accepts; then drop the last that were too many, by bisection."""
        few, step, queue = len(self.victims), 1, iter(options)
        while not self.has_room():
            few, step = len(self.victims), 2 * step
            for option in queue:
                if option not in self.victims and self.take(option) and len(self.victims) >= few + step // 2:
                    break
            if len(self.victims) == few:
                return False
        taken, many = list(self.victims), len(self.victims)
        while few + 1 < many:
            middle = (few + many) // 2
            self._resize(taken, middle)
            few, many = (few, middle) if self.has_room() else (middle, many)
        self._resize(taken, many)
        return True

    def _resize(self, taken: Sequence[Option], count: int) -> None:
        """Keep the first ``count`` of these."""
        self.drop_last(max(0, len(self.victims) - count))
        for option in taken[len(self.victims) : count]:
            self.victims.append(option)
            self._release(option)

    def _release(self, option: Option) -> None:
        booking = self._ledger.release(option[3])
        if booking is not None:
            self._bookings[option[3]] = booking

    def _restore(self, option: Option) -> None:
        booking = self._bookings.pop(option[3], None)
        if booking is not None:
            self._ledger.put_back(option[3], booking)


def _helps(need: Resources, free: Resources, held: Resources) -> bool:
    """Whether it holds something of which too little is free."""
    return any(held.get(name) and amount > free.get(name, 0.0) + ROUNDING for name, amount in need.items())
