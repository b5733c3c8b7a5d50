"""Chosen victims in 10,000 random small fleets, compared with all sets of victims."""

from __future__ import annotations

import random
from collections import Counter

from bench._preemption_evaluator import Case, random_case
from ray_multicluster_scheduler.scheduler.pools.preemption_plan import FITS_NOW, NoPlan, PreemptionPlan
from ray_multicluster_scheduler.scheduler.pools.preemption_rules import REASONS

CASES = 10_000


def problem(case: Case, plan: PreemptionPlan | NoPlan) -> str | None:
    """What is wrong with the plan for this case."""
    good = case.good_sets
    if isinstance(plan, NoPlan):
        expected = frozenset() in good if plan.code == FITS_NOW else not good
        return None if expected else f"{plan.code}, and {sorted(map(sorted, good))} would do"
    chosen = frozenset(victim.id for victim in plan.victims)
    if chosen not in good:
        return "the set is not feasible, or breaks a rule"
    smaller = [sorted(one) for one in good if one < chosen]
    if smaller:
        return f"{sorted(chosen)} is reducible to {smaller}"
    place = next(one for one in case.places if one.name == plan.place)
    if not case.is_feasible(chosen, place) or place.accepts(case.freed(chosen, place)) != plan.parts:
        return f"it does not fit at {plan.place}"
    gone: frozenset[str] = frozenset()
    for victim in plan.victims:
        if not case.may_take(case.item(victim.id), gone, plan.place):
            return f"{victim.id} is not allowed after {sorted(gone)}"
        gone |= {victim.id}
    return None


def test_each_set_is_feasible_irreducible_and_found_if_there_is_one() -> None:
    rng, seen = random.Random(24), Counter[str]()
    for number in range(CASES):
        case = random_case(rng)
        plan = case.plan()
        wrong = problem(case, plan)
        assert wrong is None, f"case {number}: {wrong}\n{case}"
        seen.update([plan.code] if isinstance(plan, NoPlan) else [victim.reason for victim in plan.victims])
    assert all(seen[reason] > 50 for reason in REASONS), seen
