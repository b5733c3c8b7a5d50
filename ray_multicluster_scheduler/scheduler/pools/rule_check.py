"""RuleCheck: whether a running item may be displaced by one newcomer, and by which rule.

The relation has no cycle. A rule by priority or label needs a strictly higher priority. A reclaim needs none, but goes
from a pool within its quota to one above it; and where quota can be reclaimed at any priority, a newcomer that would
borrow displaces, outside its own pool, only items of its cohort that borrow themselves.
"""

from __future__ import annotations

from collections.abc import Container
from math import inf
from typing import NamedTuple

from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from ray_multicluster_scheduler.scheduler.pools.preemption_plan import Newcomer, RunningItem
from ray_multicluster_scheduler.scheduler.pools.preemption_rules import (
    ALREADY_LEAVING,
    COOLING_DOWN,
    CROSS_POOL_DISABLED,
    LABEL_RULE,
    MIN_RUNTIME,
    NEWCOMER_BORROWS,
    NOT_PREEMPTIBLE,
    NOTHING_TO_RECLAIM,
    OTHER_POOL_PRIORITY,
    PRIORITY_TOO_CLOSE,
    PROTECTED,
    REASONS,
    RECLAIM,
    SAME_POOL_PRIORITY,
    PreemptionRules,
)
from ray_multicluster_scheduler.scheduler.pools.quota_ledger import QuotaLedger

_ROUNDING = 1e-9  # 5.1 - 5.0 is slightly less than 0.1


class Verdict(NamedTuple):
    """``code`` is a reason, which allows the preemption, or the code of a refusal."""

    allowed: bool
    code: str
    sentence: str


class _PoolPair(NamedTuple):
    """What follows from the newcomer's pool and that of a running item."""

    pool: Pool | None
    same: bool
    in_cohort: bool
    least: float
    by_priority: str
    by_label: bool


def decide(
    newcomer: Newcomer, item: RunningItem, place: str, ledger: QuotaLedger, rules: PreemptionRules, now: float
) -> Verdict:
    """Whether the item may be displaced by a newcomer at this place, before any other item has left."""
    trial = ledger.copy()
    trial.release(newcomer.id)
    return RuleCheck(newcomer, rules, trial, now).verdict(item, place)


class RuleCheck:
    """The rules for one newcomer at one moment. What a victim's pool borrows is read from ``ledger`` at each call of
    :meth:`code`, so that the caller can release those that leave first. All else is fixed."""

    def __init__(self, newcomer: Newcomer, rules: PreemptionRules, ledger: QuotaLedger, now: float) -> None:
        self.ledger = ledger
        self._newcomer, self._rules, self._now = newcomer, rules, now
        self._pool = None if newcomer.pool is None else ledger.pools.get(newcomer.pool)
        mates = [] if self._pool is None else [pool for pool in ledger.cohort_of(self._pool) if pool != self._pool]
        self._cohort = {pool.name for pool in mates}
        self._reclaimable = any(pool.reclaim == "any" for pool in mates)
        self.depends_on_ledger = self._reclaimable or (self._pool is not None and self._pool.reclaim != "never")
        """Whether the code of an item may change when others leave."""
        self._victim_values = self._find_victim_values() if rules.enable_labels else {}
        self._pairs: dict[str | None, _PoolPair] = {}
        self._borrowers: dict[tuple[str, str], bool] = {}
        self._within = {} if self._pool is None else self._places_within_quota(self._pool)

    def verdict(self, item: RunningItem, place: str) -> Verdict:
        code = self.code(item, place)
        return Verdict(code in REASONS, code, self.sentence(item, code))

    def code(self, item: RunningItem, place: str) -> str:
        """The reason or the refusal for a newcomer that would start at this place."""
        code = self.standing(item)
        if not self.depends_on_ledger or code not in REASONS:
            return code
        within = self._within.get(place, self._within.get(""))
        if code == RECLAIM:
            return code if within and self._borrows(item, self._newcomer.amounts) else NOTHING_TO_RECLAIM
        pair = self._pairs[item.pool]
        if within or pair.same or not self._reclaimable or (pair.in_cohort and self._borrows(item)):
            return code
        return NEWCOMER_BORROWS

    def standing(self, item: RunningItem) -> str:
        """The same without the quota of single items; if this is a refusal, it stays one when others leave."""
        if item.leaving:
            return ALREADY_LEAVING
        pair = self._pairs.get(item.pool) or self._add_pair(item.pool)
        if pair.pool is not None and pair.pool.protected:
            return PROTECTED
        if not item.preemptible:
            return NOT_PREEMPTIBLE
        code = self._rule(item, pair)
        if code in REASONS:
            least = self._rules.min_runtime_s if item.min_runtime_s is None else item.min_runtime_s
            if self._now - item.started_at < least:
                return MIN_RUNTIME
        return code

    def sentence(self, item: RunningItem, code: str) -> str:
        """What a code means for this item."""
        new, rules, pool = self._newcomer, self._rules, _pool_phrase(item.pool)
        least = rules.min_runtime_s if item.min_runtime_s is None else item.min_runtime_s
        limit = self._pairs[item.pool].least if item.pool in self._pairs else inf
        return {
            SAME_POOL_PRIORITY: f"its priority {item.priority:g} is {rules.same_pool:g} or more below {new.priority:g}",
            OTHER_POOL_PRIORITY: f"it is in {pool}, and its priority {item.priority:g} is {rules.other_pool:g} or "
            f"more below {new.priority:g}",
            LABEL_RULE: f"a label rule lets {new.id} take its place",
            RECLAIM: f"{pool} borrows what pool {new.pool} claims back",
            ALREADY_LEAVING: "it is being stopped already",
            PROTECTED: f"{pool} is protected",
            NOT_PREEMPTIBLE: "it was not submitted as preemptible",
            PRIORITY_TOO_CLOSE: f"its priority {item.priority:g} is not {limit:g} below {new.priority:g}, and no label "
            "rule allows it",
            CROSS_POOL_DISABLED: f"it is in {pool}, and enable_cross_pool is off",
            NOTHING_TO_RECLAIM: f"{pool} borrows none of what it holds, or {new.id} would be above its own quota",
            NEWCOMER_BORROWS: f"{new.id} would borrow its room, which then could be claimed back",
            MIN_RUNTIME: f"it has run {self._now - item.started_at:.0f} s of at least {least:g} s",
            COOLING_DOWN: f"it was preempted in the last {rules.cool_down_s:g} s",
        }[code]

    def _rule(self, item: RunningItem, pair: _PoolPair) -> str:
        higher_by = self._newcomer.priority - item.priority + _ROUNDING
        code = None
        if higher_by >= pair.least:
            code = pair.by_priority
        elif pair.by_label and higher_by >= self._rules.label and higher_by > 2 * _ROUNDING:
            code = LABEL_RULE if self._matches_labels(item, pair) else None
        cooling = item.last_preempted_at is not None and self._now - item.last_preempted_at < self._rules.cool_down_s
        if code is not None and not cooling:
            return code
        reclaim = self._pool.reclaim if self._pool is not None and pair.in_cohort else "never"
        reclaims = reclaim == "any" or (reclaim == "lower_priority" and higher_by > 2 * _ROUNDING)
        if reclaims and self._pool_borrows(item):
            return RECLAIM
        if code is not None:
            return COOLING_DOWN
        if reclaims:
            return NOTHING_TO_RECLAIM
        disabled = not pair.same and not self._rules.enable_cross_pool
        return CROSS_POOL_DISABLED if disabled else PRIORITY_TOO_CLOSE

    def _matches_labels(self, item: RunningItem, pair: _PoolPair) -> bool:
        inherited = {} if pair.pool is None else pair.pool.labels
        return any(item.labels.get(key, inherited.get(key)) in values for key, values in self._victim_values.items())

    def _find_victim_values(self) -> dict[str, frozenset[str]]:
        """By label key, the values whose items the newcomer may displace."""
        labels = {**(self._pool.labels if self._pool else {}), **self._newcomer.labels}
        found: dict[str, frozenset[str]] = {}
        for key, rules in self._rules.label_rules.items():
            if labels.get(key) in rules:
                found[key] = frozenset(rules[labels[key]])
        return found

    def _add_pair(self, name: str | None) -> _PoolPair:
        pool = None if name is None else self.ledger.pools.get(name)
        same, rules = name == self._newcomer.pool, self._rules
        pair = self._pairs[name] = _PoolPair(
            pool=pool,
            same=same,
            in_cohort=name in self._cohort,
            least=rules.same_pool if same else rules.other_pool if rules.enable_cross_pool else inf,
            by_priority=SAME_POOL_PRIORITY if same else OTHER_POOL_PRIORITY,
            by_label=bool(self._victim_values) and (same or rules.enable_cross_pool),
        )
        return pair

    def _places_within_quota(self, pool: Pool) -> dict[str, bool]:
        """By place, whether the newcomer would be within the quota of its pool; the place is empty for a quota of all
        places together. Victims from its own pool do not count: else they would come back as borrowers, and those from
        whom the room was claimed back would displace the newcomer."""
        amounts = self._newcomer.amounts
        return {place: self.ledger.is_within_quota(pool.name, amounts, place) for place in pool.place_quota or ("",)}

    def _borrows(self, item: RunningItem, names: Container[str] | None = None) -> bool:
        """Whether the item's pool borrows a resource that the item holds, of these."""
        booking = self.ledger.booking(item.id)
        if booking is None:
            return False
        held = [name for name in booking.amounts if names is None or name in names]
        return self.ledger.borrows(booking.pool, booking.place, held)

    def _pool_borrows(self, item: RunningItem) -> bool:
        """Whether the item's pool borrowed anything that the newcomer needs when this was asked first."""
        key = str(item.pool), item.place
        if key not in self._borrowers:
            self._borrowers[key] = self.ledger.borrows(key[0], item.place, self._newcomer.amounts)
        return self._borrowers[key]


def _pool_phrase(pool: str | None) -> str:
    return "no pool" if pool is None else f"pool {pool}"
