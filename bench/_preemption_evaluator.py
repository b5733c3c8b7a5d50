"""Random small fleets, and the sets of victims in them by brute force.

The rules of pools and preemption are written here a second time, as plainly as possible: sums are made anew for each
question, and every order of the victims is tried.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import inf

from ray_multicluster_scheduler.common.model.resources import Resources, fits, plus
from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from ray_multicluster_scheduler.scheduler.pools.preemption_plan import Newcomer, NoPlan, PreemptionPlan, RunningItem
from ray_multicluster_scheduler.scheduler.pools.preemption_rules import PreemptionRules
from ray_multicluster_scheduler.scheduler.pools.quota_ledger import QuotaLedger
from ray_multicluster_scheduler.scheduler.pools.victim_selection import plan_preemption

NOW = 1000.0
RULES = PreemptionRules(label_rules={"stage": {"urgent": ["batch", "idle"], "batch": ["idle"]}}, cool_down_s=100)
_STAGES = ("urgent", "batch", "idle", None)
_NAMES = ("CPU", "GPU")


@dataclass(frozen=True)
class SmallPlace:
    """A place that gives each of ``count`` equal bundles to one node."""

    name: str
    free: Mapping[str, Resources]
    bundle: Resources
    count: int

    def accepts(self, freed: Mapping[str, Resources]) -> dict[str, Resources] | None:
        parts: dict[str, Resources] = {}
        left = self.count
        for node, free in self.free.items():
            room = plus(free, freed.get(node, {}))
            while left and fits(plus(parts.get(node, {}), self.bundle), room):
                parts[node] = plus(parts.get(node, {}), self.bundle)
                left -= 1
        return None if left else parts


@dataclass(frozen=True)
class Case:
    """One fleet with a newcomer."""

    pools: tuple[Pool, ...]
    places: tuple[SmallPlace, ...]
    items: tuple[RunningItem, ...]
    newcomer: Newcomer
    rules: PreemptionRules

    def ledger(self) -> QuotaLedger:
        ledger = QuotaLedger(self.pools)
        for item in self.items:
            if item.pool is not None:
                ledger.reserve(item.id, item.pool, amounts_of(item), item.place)
                ledger.commit(item.id)
        return ledger

    def plan(self) -> PreemptionPlan | NoPlan:
        return plan_preemption(self.newcomer, self.places, self.items, self.ledger(), self.rules, NOW)

    # ---- the rules, once more

    @cached_property
    def _pools_by_name(self) -> dict[str | None, Pool]:
        return {pool.name: pool for pool in self.pools}

    def is_feasible(self, gone: frozenset[str], place: SmallPlace) -> bool:
        """Whether the newcomer would fit there, and have the quota."""
        return place.accepts(self.freed(gone, place)) is not None and self._has_quota(gone, place.name)

    def freed(self, gone: frozenset[str], place: SmallPlace) -> dict[str, Resources]:
        freed: dict[str, Resources] = {}
        for item in self.items:
            if item.id in gone and item.place == place.name:
                for node, amounts in item.nodes.items():
                    freed[node] = plus(freed.get(node, {}), amounts)
        return freed

    def item(self, name: str) -> RunningItem:
        return next(item for item in self.items if item.id == name)

    def _booked(self, pool: Pool, name: str, place: str, gone: frozenset[str]) -> float:
        return sum(
            amounts_of(item).get(name, 0)
            for item in self.items
            if item.pool == pool.name
            and item.id not in gone
            and not item.leaving
            and (not pool.place_quota or item.place == place)
        )

    def _cohort(self, pool: Pool) -> list[Pool]:
        return [other for other in self.pools if other == pool or (pool.cohort and other.cohort == pool.cohort)]

    def _has_quota(self, gone: frozenset[str], place: str) -> bool:
        pool = self._pools_by_name.get(self.newcomer.pool)
        if pool is None:
            return self.newcomer.pool is None
        if not pool.may_use(place):
            return False
        for name, quota in pool.quota_at(place).items():
            amount = self.newcomer.amounts.get(name, 0)
            after = self._booked(pool, name, place, gone) + amount
            borrow = pool.borrow_limit.get(name, inf) if pool.cohort and not pool.protected else 0
            if amount and (after > quota + borrow or not self._pot_pays(pool, name, place, gone, amount)):
                return False
        return True

    def _pot_pays(self, pool: Pool, name: str, place: str, gone: frozenset[str], amount: float) -> bool:
        pot = 0.0
        for other in self._cohort(pool):
            if name in other.quota_at(place):
                quota = other.quota_at(place)[name]
                kept = max(0, quota - other.lend_limit.get(name, inf)) if other.cohort else quota
                booked = self._booked(other, name, place, gone)
                pot += quota - kept - max(0, booked - kept)
                if other == pool:
                    pot += max(0, kept - booked)
        return amount <= pot

    def _is_within(self, place: str) -> bool:
        pool = self._pools_by_name.get(self.newcomer.pool)
        return pool is None or all(
            self._booked(pool, name, place, frozenset()) + self.newcomer.amounts[name] <= quota
            for name, quota in pool.quota_at(place).items()
            if self.newcomer.amounts.get(name)
        )

    def _borrows(self, item: RunningItem, names: Iterator[str] | Sequence[str], gone: frozenset[str]) -> bool:
        pool = self._pools_by_name[item.pool]
        quota = pool.quota_at(item.place)
        held = amounts_of(item)
        return any(
            name in quota and name in held and self._booked(pool, name, item.place, gone) > quota[name]
            for name in names
        )

    def may_take(self, item: RunningItem, gone: frozenset[str], place: str) -> bool:
        """Whether the newcomer may take the place of the item when others are gone."""
        new, rules = self.newcomer, self.rules
        own, theirs = self._pools_by_name.get(new.pool), self._pools_by_name.get(item.pool)
        if item.leaving or not item.preemptible or (theirs and theirs.protected):
            return False
        if NOW - item.started_at < (rules.min_runtime_s if item.min_runtime_s is None else item.min_runtime_s):
            return False
        higher_by = round(new.priority - item.priority, 6)
        mates = [pool for pool in self._cohort(own) if pool != own] if own else []
        least = {"any": -inf, "lower_priority": 0, "never": inf}[own.reclaim] if own and theirs in mates else inf
        if higher_by > least and self._is_within(place) and self._borrows(item, list(new.amounts), gone):
            return True
        if item.last_preempted_at is not None and NOW - item.last_preempted_at < rules.cool_down_s:
            return False
        same = new.pool == item.pool
        if not same and not rules.enable_cross_pool:
            return False
        if not (higher_by >= (rules.same_pool if same else rules.other_pool) or self._label_rule(item, higher_by)):
            return False
        if same or not any(pool.reclaim == "any" for pool in mates) or self._is_within(place):
            return True
        return theirs in mates and self._borrows(item, list(amounts_of(item)), gone)

    def _label_rule(self, item: RunningItem, higher_by: float) -> bool:
        if not self.rules.enable_labels or higher_by <= 0 or higher_by < self.rules.label:
            return False
        return any(
            self._label(item, key) in by_value.get(self._label(self.newcomer, key) or "", ())
            for key, by_value in self.rules.label_rules.items()
        )

    def _label(self, one: RunningItem | Newcomer, key: str) -> str | None:
        pool = self._pools_by_name.get(one.pool)
        return one.labels.get(key, pool.labels.get(key) if pool else None)

    # ---- brute force

    @cached_property
    def good_sets(self) -> dict[frozenset[str], float]:
        """Each set that makes the newcomer fit and can leave in an allowed order, with the work that is lost."""
        by_id = {item.id: item for item in self.items if item.preemptible and not item.leaving}
        lost = {name: lost_s(item) for name, item in by_id.items()}
        found = {}
        reachable: dict[tuple[frozenset[str], str], bool] = {}
        for place in self.places:
            for size in range(len(by_id) + 1):
                for chosen in combinations(by_id, size):
                    gone = frozenset(chosen)
                    if self._is_reachable(gone, place.name, by_id, reachable) and self.is_feasible(gone, place):
                        found[gone] = sum(lost[name] for name in chosen)
        return found

    def _is_reachable(
        self,
        gone: frozenset[str],
        place: str,
        by_id: Mapping[str, RunningItem],
        known: dict[tuple[frozenset[str], str], bool],
    ) -> bool:
        key = gone, place
        if key not in known:
            known[key] = not gone or any(
                self._is_reachable(gone - {last}, place, by_id, known)
                and self.may_take(by_id[last], gone - {last}, place)
                for last in gone
            )
        return known[key]


def amounts_of(item: RunningItem) -> dict[str, float]:
    amounts: dict[str, float] = {}
    for part in item.nodes.values():
        amounts = plus(amounts, part)
    return amounts


def lost_s(item: RunningItem) -> float:
    return NOW - max(item.started_at, item.started_at if item.saved_at is None else item.saved_at)


def random_case(rng: random.Random) -> Case:
    """A fleet of one or two places with up to six running items."""
    nodes = {f"place{at}": [f"node{at}{n}" for n in range(rng.randint(1, 2))] for at in range(rng.randint(1, 2))}
    pools = _random_pools(rng, list(nodes))
    names = [pool.name for pool in pools]
    others = names[:-1] if rng.random() < 0.5 and len(names) > 1 else names
    free = {place: {node: _amounts(rng, 0, 1) for node in inside} for place, inside in nodes.items()}
    items = tuple(random_item(rng, at, nodes, others) for at in range(rng.choice([2, 3, 4, 5, 6, 7])))
    bundle, count = _amounts(rng, 1, 4), rng.choice([1, 1, 1, 2, 3])
    newcomer = Newcomer(
        id="new",
        pool=rng.choice([*names, *names[-1:] * 3, None]),
        labels=_labels(rng),
        priority=rng.choice([1, 2, 5, 8.5, 9, 12]),
        amounts={name: amount * count for name, amount in bundle.items()},
        need=bundle if count == 1 else None,
    )
    places = tuple(SmallPlace(name, free[name], bundle, count) for name in nodes)
    return Case(pools, places, items, newcomer, RULES)


def _random_pools(rng: random.Random, places: Sequence[str]) -> tuple[Pool, ...]:
    per_place = rng.random() < 0.2
    pools = []
    for at in range(rng.randint(0, 3)):
        quotas = {place: _amounts(rng, 0, 6) for place in places if rng.random() < 0.8} or {places[0]: {"CPU": 2}}
        cohort, protected = rng.choice(["c", "c", "c", None]), rng.random() < 0.08
        pools.append(
            Pool(
                name=f"pool{at}",
                labels=_labels(rng),
                quota={} if per_place else _amounts(rng, 1, 7),
                place_quota=quotas if per_place else {},
                cohort=cohort,
                protected=protected,
                lend_limit=_amounts(rng, 0, 3) if rng.random() < 0.3 else {},
                borrow_limit=_amounts(rng, 1, 4) if rng.random() < 0.2 and not protected else {},
                reclaim=rng.choice(["any", "any", "lower_priority", "never"]) if cohort else "never",
            )
        )
    return tuple(pools)


def random_item(rng: random.Random, at: int, nodes: Mapping[str, Sequence[str]], pools: Sequence[str]) -> RunningItem:
    place = rng.choice(list(nodes))
    held = rng.sample(nodes[place], rng.choice([1, 1, len(nodes[place])]))
    parts = {node: _amounts(rng, 1, rng.choice([1, 3])) for node in held}
    return RunningItem(
        id=f"item{at}",
        pool=rng.choice([*pools, *pools, None]),
        labels=_labels(rng),
        priority=rng.choice([0, 1, 1, 2, 3, 5, 8, 9]),
        preemptible=rng.random() < 0.9,
        place=place,
        nodes=parts,
        started_at=NOW - rng.choice([30, *(rng.uniform(60, 900) for _ in range(9))]),
        saved_at=NOW - rng.uniform(0, 300) if rng.random() < 0.3 else None,
        min_runtime_s=rng.choice([None, None, None, 0, 200]),
        last_preempted_at=NOW - 50 if rng.random() < 0.1 else None,
        leaving=rng.random() < 0.05,
    )


def _amounts(rng: random.Random, low: int, high: int) -> dict[str, float]:
    """Some of each resource; never none of all, unless it may be zero."""
    amounts = {name: float(rng.randint(low, high)) for name in _NAMES if name == "CPU" or rng.random() < 0.3}
    return {name: amount for name, amount in amounts.items() if amount or low == 0}


def _labels(rng: random.Random) -> dict[str, str]:
    stage = rng.choice(_STAGES)
    return {} if stage is None else {"stage": stage}
