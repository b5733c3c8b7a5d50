"""Without new items, preemption comes to an end: nobody takes turns for ever.

All times are chosen for the worst case: after each round, minimum run times and cool-downs have passed.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bench._preemption_evaluator import NOW, SmallPlace, amounts_of, random_case, random_item
from ray_multicluster_scheduler.common.model.resources import fits, minus, plus
from ray_multicluster_scheduler.scheduler.pools.pool import Pool, Reclaim
from ray_multicluster_scheduler.scheduler.pools.preemption_plan import (
    FITS_NOW,
    Newcomer,
    PreemptionPlan,
    RunningItem,
)
from ray_multicluster_scheduler.scheduler.pools.preemption_rules import PreemptionRules
from ray_multicluster_scheduler.scheduler.pools.quota_ledger import QuotaLedger
from ray_multicluster_scheduler.scheduler.pools.victim_selection import plan_preemption

ROUNDS = 60


class Fleet:
    """Items run or wait; nobody ends, and nobody comes."""

    def __init__(
        self, pools: tuple[Pool, ...], capacity: dict[str, dict[str, dict[str, float]]], rules: PreemptionRules
    ):
        self.ledger, self.rules, self.now = QuotaLedger(pools), rules, NOW
        self.free = capacity
        self.running: dict[str, RunningItem] = {}
        self.waiting: list[RunningItem] = []
        self.preemptions = 0

    def round(self, order: random.Random) -> None:
        """Every item that waits gets one chance, in any order."""
        self.now += 10_000
        for item in order.sample(self.waiting, len(self.waiting)):
            if item.id not in self.running:
                self._offer(item)

    def _offer(self, item: RunningItem) -> None:
        need = amounts_of(item)
        new = Newcomer(id=item.id, pool=item.pool, labels=item.labels, priority=item.priority, amounts=need, need=need)
        places = [SmallPlace(name, nodes, need, 1) for name, nodes in self.free.items()]
        plan = plan_preemption(new, places, list(self.running.values()), self.ledger, self.rules, self.now)
        if isinstance(plan, PreemptionPlan):
            for victim in plan.victims:
                self._stop(self.running[victim.id])
            self.preemptions += 1
            self.start(item, plan.place, next(iter(plan.parts)))
        elif plan.code == FITS_NOW:
            for place in places:
                parts = place.accepts({})
                if parts and (new.pool is None or self.ledger.refusal(new.pool, need, place.name) is None):
                    self.start(item, place.name, next(iter(parts)))
                    return
            raise AssertionError(plan)

    def start(self, item: RunningItem, place: str, node: str) -> None:
        need = amounts_of(item)
        assert fits(need, self.free[place][node])
        self.waiting = [one for one in self.waiting if one.id != item.id]
        self.running[item.id] = replace(item, place=place, nodes={node: need}, started_at=self.now)
        self.free[place][node] = minus(self.free[place][node], need)
        if item.pool is not None:
            self.ledger.reserve(item.id, item.pool, need, place)
            self.ledger.commit(item.id)

    def _stop(self, item: RunningItem) -> None:
        del self.running[item.id]
        self.waiting.append(item)
        ((node, amounts),) = item.nodes.items()
        self.free[item.place][node] = plus(self.free[item.place][node], amounts)
        self.ledger.release(item.id)


def random_fleet(rng: random.Random) -> Fleet:
    """Few nodes, and up to nine items that all wait at first."""
    case = random_case(rng)
    nodes = {place.name: {node: {"CPU": 3.0, "GPU": 1.0} for node in place.free} for place in case.places}
    fleet = Fleet(case.pools, nodes, case.rules)
    for at in range(rng.randint(4, 9)):
        item = random_item(rng, at, {"place0": ["node00"]}, [pool.name for pool in case.pools])
        worst = {"preemptible": True, "min_runtime_s": None, "leaving": False, "last_preempted_at": None}
        fleet.waiting.append(replace(item, priority=rng.choice([0, 1, 3, 6, 9, 12, 20]), **worst))
    return fleet


def settle(fleet: Fleet, seed: int = 0) -> None:
    order, quiet = random.Random(seed), 0
    for _ in range(ROUNDS):
        before = fleet.preemptions
        fleet.round(order)
        quiet = quiet + 1 if fleet.preemptions == before else 0
        if quiet == 3:
            return
    raise AssertionError(f"{fleet.preemptions} preemptions in {ROUNDS} rounds: {fleet.running}")


def test_preemption_ends_in_random_fleets() -> None:
    rng, preemptions = random.Random(5), 0
    for seed in range(1500):
        fleet = random_fleet(rng)
        settle(fleet, seed)
        preemptions += fleet.preemptions
    assert preemptions > 800


def item(name: str, pool: str, priority: float, cpus: float = 2) -> RunningItem:
    return RunningItem(
        id=name,
        pool=pool,
        priority=priority,
        preemptible=True,
        place="east",
        nodes={"n": {"CPU": cpus}},
        started_at=NOW,
    )


def two_pools(reclaim_of_a: Reclaim, reclaim_of_b: Reclaim) -> tuple[Pool, Pool]:
    """Each has a quota of 2 CPU."""
    quota = {"CPU": 2.0}
    return (
        Pool(name="a", quota=quota, cohort="c", reclaim=reclaim_of_a),
        Pool(name="b", quota=quota, cohort="c", reclaim=reclaim_of_b),
    )


@pytest.mark.parametrize("reclaim", ["any", "lower_priority"])
def test_two_pools_that_reclaim_from_each_other(reclaim: Reclaim) -> None:
    fleet = Fleet(two_pools(reclaim, reclaim), {"east": {"n": {"CPU": 4.0}}}, PreemptionRules())
    fleet.waiting = [item(f"{pool}{number}", pool, priority=number) for pool in "ab" for number in range(3)]
    settle(fleet)
    assert sorted(one.pool for one in fleet.running.values()) == ["a", "b"]


def test_a_reclaim_is_not_answered_by_priority() -> None:
    """``b`` borrows with a high priority; ``a`` claims its quota back; the item of ``b`` must not displace it again."""
    fleet = Fleet(two_pools("any", "never"), {"east": {"n": {"CPU": 4.0}}}, PreemptionRules())
    for number in range(2):
        fleet.start(item(f"b{number}", "b", priority=100), "east", "n")
    fleet.waiting.append(item("a", "a", priority=0))
    settle(fleet)
    assert fleet.preemptions == 1
    assert "a" in fleet.running


def test_items_of_equal_priority_leave_each_other_alone() -> None:
    rules = PreemptionRules(label=0, label_rules={"stage": {"x": ["y"], "y": ["x"]}})
    fleet = Fleet((), {"east": {"n": {"CPU": 2.0}}}, rules)
    fleet.waiting = [replace(item(stage, "", 1), pool=None, labels={"stage": stage}) for stage in "xy"]
    settle(fleet)
    assert fleet.preemptions == 0
