"""Which items leave for a newcomer, and where it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from bench._preemption_evaluator import SmallPlace
from ray_multicluster_scheduler.common.model.resources import Resources
from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from ray_multicluster_scheduler.scheduler.pools.possible_victims import option_of
from ray_multicluster_scheduler.scheduler.pools.preemption_plan import (
    FITS_NOW,
    NO_VICTIM,
    WOULD_NOT_FIT,
    Cost,
    Newcomer,
    NoPlan,
    Place,
    PreemptionPlan,
    RunningItem,
    Victim,
)
from ray_multicluster_scheduler.scheduler.pools.preemption_rules import PreemptionRules
from ray_multicluster_scheduler.scheduler.pools.quota_ledger import QuotaLedger
from ray_multicluster_scheduler.scheduler.pools.rule_check import RuleCheck
from ray_multicluster_scheduler.scheduler.pools.victim_selection import list_candidates, plan_preemption
from ray_multicluster_scheduler.scheduler.pools.victim_set import VictimSet

NOW = 1000.0
RULES = PreemptionRules()
FULL = {"CPU": 0.0}


@dataclass
class Fleet:
    """Items by what they hold, one place per name; ``free`` is by place and node."""

    pools: Sequence[Pool] = ()
    free: Mapping[str, Mapping[str, Resources]] = field(default_factory=lambda: {"east": {"n1": FULL}})
    items: list[RunningItem] = field(default_factory=list)
    ledger: QuotaLedger = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = QuotaLedger(self.pools)

    def run(self, name: str, cpus: float = 2, *, node: str = "n1", pool: str | None = None, **fields: Any) -> Fleet:
        given = {"place": "east", "nodes": {node: {"CPU": cpus}}, "preemptible": True, "started_at": 0.0, **fields}
        item = RunningItem(id=name, pool=pool, **given)
        self.items.append(item)
        if pool is not None:
            self.ledger.reserve(name, pool, {"CPU": sum(part["CPU"] for part in item.nodes.values())}, item.place)
            self.ledger.commit(name)
        return self

    def plan(self, cpus: float = 2, *, count: int = 1, **fields: Any) -> PreemptionPlan | NoPlan:
        need = {"CPU": float(cpus)}
        places = [SmallPlace(name, nodes, need, count) for name, nodes in self.free.items()]
        return self.plan_at(places, newcomer(cpus * count, need=need if count == 1 else None, **fields))

    def plan_at(self, places: Sequence[Place], new: Newcomer) -> PreemptionPlan | NoPlan:
        return plan_preemption(new, places, self.items, self.ledger, RULES, NOW)


def newcomer(cpus: float = 2, **fields: Any) -> Newcomer:
    return Newcomer(**{"id": "new", "priority": 10, "amounts": {"CPU": cpus}, **fields})


def victims(plan: PreemptionPlan | NoPlan) -> list[str]:
    assert isinstance(plan, PreemptionPlan), plan
    return [victim.id for victim in plan.victims]


def refusal(plan: PreemptionPlan | NoPlan) -> tuple[str, str]:
    assert isinstance(plan, NoPlan), plan
    return plan.code, plan.sentence


# ---- which victims


def test_a_plan_says_who_leaves_why_and_what_it_costs() -> None:
    plan = Fleet().run("a", started_at=100, saved_at=400).plan()
    assert plan == PreemptionPlan(
        newcomer="new",
        place="east",
        parts={"n1": {"CPU": 2}},
        victims=(Victim("a", "same_pool_priority", 0, 600),),
        cost=Cost(0, 600, 1),
    )


def test_the_lowest_priority_leaves_then_the_least_lost_work_then_the_youngest() -> None:
    fleet = Fleet().run("a", priority=1, started_at=900).run("b", priority=0, started_at=100)
    assert victims(fleet.plan()) == ["b"]
    fleet.run("c", priority=0, started_at=50, saved_at=900)
    assert victims(fleet.plan()) == ["c"]
    fleet.run("d", priority=0, started_at=60, saved_at=900)
    assert victims(fleet.plan()) == ["d"]


def test_a_save_before_the_start_does_not_count() -> None:
    item = RunningItem(id="a", place="east", nodes={}, started_at=500, saved_at=100)
    assert item.lost_s(NOW) == 500
    assert item.lost_s(400) == 0


def test_the_cheapest_node_of_all_places() -> None:
    free = {"east": {"n1": FULL, "n2": FULL}, "west": {"n3": FULL}}
    fleet = Fleet(free=free).run("a", 4, started_at=100).run("b", node="n2", priority=1, started_at=900)
    fleet.run("c", node="n3", place="west", started_at=500)
    plan = fleet.plan()
    assert victims(plan) == ["c"]
    assert isinstance(plan, PreemptionPlan)
    assert plan.parts == {"n3": {"CPU": 2}}


def test_fewer_victims_of_equal_cost() -> None:
    saved = {"started_at": 100.0, "saved_at": NOW}
    fleet = Fleet(free={"east": {"n1": FULL, "n2": FULL}}).run("a", 1, **saved).run("b", 1, **saved)
    fleet.run("c", node="n2", **saved)
    assert victims(fleet.plan()) == ["c"]


def test_victims_that_are_not_needed_are_given_back() -> None:
    fleet = Fleet().run("small", 1, started_at=900).run("large", 4, started_at=100)
    assert victims(fleet.plan(4)) == ["large"]
    several = Fleet().run("a", 1, started_at=900).run("b", 1, started_at=800).run("c", 3, started_at=100)
    assert victims(several.plan(4)) == ["a", "c"]


def test_only_what_is_missing_counts() -> None:
    fleet = Fleet(free={"east": {"n1": {"CPU": 4.0, "GPU": 0.0}}}).run("cpus", started_at=900)
    fleet.run("gpu", nodes={"n1": {"CPU": 1, "GPU": 1}}, started_at=100)
    need = {"CPU": 4.0, "GPU": 1.0}
    plan = fleet.plan_at([SmallPlace("east", fleet.free["east"], need, 1)], newcomer(amounts=need, need=need))
    assert victims(plan) == ["gpu"]


def test_items_on_unknown_nodes_and_places_make_no_room() -> None:
    fleet = Fleet().run("a", node="gone").run("b", place="elsewhere")
    assert refusal(fleet.plan()) == (WOULD_NOT_FIT, "it would have no room, even if all possible victims left")


def test_a_victim_may_hold_several_nodes() -> None:
    fleet = Fleet(free={"east": {"n1": FULL, "n2": FULL}})
    fleet.run("gang", nodes={"n1": {"CPU": 1}, "n2": {"CPU": 1}}, started_at=100).run("a", 1, started_at=900)
    assert victims(fleet.plan()) == ["a", "gang"]


# ---- gangs, and what the place decides


def test_a_gang_gets_the_nodes_of_its_packing() -> None:
    fleet = Fleet(free={"east": {f"n{at}": FULL for at in range(8)}})
    for at in range(8):
        fleet.run(f"item{at}", node=f"n{at}", priority=at, started_at=500)
    plan = fleet.plan(count=5)
    assert victims(plan) == [f"item{at}" for at in range(5)]
    assert isinstance(plan, PreemptionPlan)
    assert plan.parts == {f"n{at}": {"CPU": 2} for at in range(5)}


def test_a_gang_for_which_there_is_no_room() -> None:
    fleet = Fleet().run("a")
    assert refusal(fleet.plan(count=2)) == (WOULD_NOT_FIT, "no set of victims that the rules allow would make it fit")
    assert refusal(Fleet(free={"east": {"n1": {"CPU": 4.0}}}).plan(count=2))[0] == FITS_NOW


@dataclass(frozen=True)
class FilteredPlace(SmallPlace):
    """Its filters ask for more free room on the node than the newcomer needs."""

    spare: float = 0

    def accepts(self, freed: Mapping[str, Resources]) -> dict[str, Resources] | None:
        parts = replace(self, bundle={"CPU": self.bundle["CPU"] + self.spare}, spare=0).accepts_all(freed)
        return None if parts is None else dict.fromkeys(parts, self.bundle)

    def accepts_all(self, freed: Mapping[str, Resources]) -> dict[str, Resources] | None:
        return SmallPlace.accepts(self, freed)


@pytest.mark.parametrize(("spare", "expected"), [(0, ["a"]), (1, ["a", "b"])])
def test_a_place_may_ask_for_more_than_the_room(spare: float, expected: list[str]) -> None:
    fleet = Fleet().run("a").run("b", priority=1)
    place = FilteredPlace("east", fleet.free["east"], {"CPU": 2.0}, 1, spare)
    assert victims(fleet.plan_at([place], newcomer(need={"CPU": 2}))) == expected


def test_a_place_that_accepts_nothing() -> None:
    fleet = Fleet().run("a").run("b", priority=1)
    place = FilteredPlace("east", fleet.free["east"], {"CPU": 2.0}, 1, spare=9)
    assert refusal(fleet.plan_at([place], newcomer(need={"CPU": 2})))[0] == WOULD_NOT_FIT


# ---- quota


def test_quota_that_is_missing_is_freed_too() -> None:
    free = {"east": {"n1": FULL, "n2": {"CPU": 2.0}}}
    fleet = Fleet([Pool(name="a", quota={"CPU": 2}), Pool(name="b", quota={"CPU": 2})], free)
    fleet.run("a1", pool="a", started_at=100).run("b1", pool="b", started_at=900)
    assert victims(fleet.plan(pool="a")) == ["a1"]


def test_victims_of_another_pool_count_only_where_the_newcomer_may_use_what_they_free() -> None:
    """``b1`` is cheaper, but its quota is of no use to the pool ``a``."""
    fleet = Fleet([Pool(name="a", quota={"CPU": 2}), Pool(name="b", quota={"CPU": 2})])
    fleet.run("a1", pool="a", priority=3).run("b1", pool="b", priority=0)
    assert victims(fleet.plan(pool="a")) == ["a1"]


def test_room_and_quota_may_come_from_different_victims() -> None:
    free = {"east": {"n1": FULL}, "west": {"n2": FULL}}
    fleet = Fleet([Pool(name="a", quota={"CPU": 2}), Pool(name="b", quota={"CPU": 9})], free)
    fleet.run("b1", 4, pool="b").run("a1", 2, pool="a", node="n2", place="west", nodes={"n2": {"CPU": 2}})
    new = newcomer(need={"CPU": 2}, pool="a")
    plan = fleet.plan_at([SmallPlace("east", free["east"], {"CPU": 2.0}, 1)], new)
    assert sorted(victims(plan)) == ["a1", "b1"]


def test_a_quota_of_one_place_is_freed_there() -> None:
    free = {"east": {"n1": {"CPU": 2.0}}, "west": {"n2": {"CPU": 2.0}}}
    pools = [Pool(name="a", place_quota={"east": {"CPU": 2}, "west": {"CPU": 2}})]
    fleet = Fleet(pools, free).run("a1", pool="a", priority=3)
    fleet.run("a2", pool="a", place="west", nodes={"n2": {"CPU": 2}}, priority=2)
    plan = fleet.plan(pool="a")
    assert victims(plan) == ["a2"]
    assert isinstance(plan, PreemptionPlan)
    assert plan.place == "west"


def test_nothing_is_stopped_for_a_newcomer_that_would_not_fit_anyway() -> None:
    fleet = Fleet([Pool(name="a", quota={"CPU": 4})]).run("a1", pool="a").run("a2", pool="a", preemptible=False)
    code, sentence = refusal(fleet.plan(3, pool="a"))
    assert code == WOULD_NOT_FIT
    assert sentence == ("even without all possible victims, it needs 3 CPU, and pool a uses 2 CPU of its 4 CPU")
    assert refusal(fleet.plan(9, pool="a"))[0] == WOULD_NOT_FIT
    assert refusal(fleet.plan(1, pool="unknown")) == (
        WOULD_NOT_FIT,
        "even without all possible victims, there is no pool unknown",
    )
    assert refusal(Fleet().run("a").plan(3))[0] == WOULD_NOT_FIT


def test_why_no_item_may_give_way() -> None:
    fleet = Fleet().run("a", preemptible=False).run("b", priority=10).run("c", priority=9.5)
    plan = fleet.plan()
    assert refusal(plan) == (
        NO_VICTIM,
        "no running item may give way to it: 1 NOT_PREEMPTIBLE, 2 PRIORITY_TOO_CLOSE",
    )
    assert isinstance(plan, NoPlan)
    assert plan.counts == {"NOT_PREEMPTIBLE": 1, "PRIORITY_TOO_CLOSE": 2}
    assert refusal(Fleet().plan()) == (NO_VICTIM, "no running item may give way to it: none runs")


def test_an_item_that_fits_needs_no_victims() -> None:
    assert refusal(Fleet(free={"east": {"n1": {"CPU": 2.0}}}).run("a").plan())[0] == FITS_NOW


def test_victims_that_were_taken_for_one_place_may_be_too_many_for_another() -> None:
    """``b2`` leaves last for the quota of a newcomer at ``east``, but makes room at ``west``."""
    pools = [Pool(name="a", quota={"CPU": 3}, cohort="c"), Pool(name="b", quota={"CPU": 2}, cohort="c", reclaim="any")]
    fleet = Fleet(pools, {"east": {"n1": {"CPU": 1.0}}, "west": {"n2": FULL}}).run("a1", 1, pool="a", priority=2)
    fleet.run("a2", 1, pool="a", preemptible=False).run("b1", 1, pool="b", priority=1)
    fleet.run("b2", pool="b", place="west", nodes={"n2": {"CPU": 3}})
    plan = fleet.plan(3, pool="a")
    assert sorted(victims(plan)) == ["a1", "b2"]
    assert isinstance(plan, PreemptionPlan)
    assert plan.place == "west"


# ---- items that are leaving


def test_items_that_are_leaving_are_never_chosen_again() -> None:
    assert refusal(Fleet().run("a", leaving=True).plan())[0] == NO_VICTIM
    assert victims(Fleet().run("a", leaving=True).run("b", priority=5).plan()) == ["b"]


def test_the_quota_of_those_that_are_leaving_belongs_to_their_newcomer() -> None:
    """``first`` waits for ``a1`` and holds a claim. The second newcomer neither shares that, nor pays for it twice."""
    fleet = Fleet([Pool(name="a", quota={"CPU": 4})], {"east": {"n1": {"CPU": 8.0}}})
    fleet.run("a1", pool="a", leaving=True).run("a2", pool="a")
    fleet.ledger.reserve("first", "a", {"CPU": 2}, "east", claim=True)
    assert victims(fleet.plan(pool="a")) == ["a2"]
    fleet.ledger.release("first")
    assert refusal(fleet.plan(pool="a"))[0] == FITS_NOW


def test_a_pool_owes_nothing_if_it_will_not_borrow_when_those_that_are_leaving_have_left() -> None:
    pools = [Pool(name="a", quota={"CPU": 4}, cohort="c", reclaim="any"), Pool(name="b", quota={"CPU": 2}, cohort="c")]
    fleet = Fleet(pools).run("b1", pool="b", leaving=True, priority=9).run("b2", pool="b", priority=9)
    plan = fleet.plan(pool="a")
    assert isinstance(plan, NoPlan)
    assert plan.counts == {"ALREADY_LEAVING": 1, "NOTHING_TO_RECLAIM": 1}


# ---- reclaim


def lenders(quota_of_b: float = 2) -> list[Pool]:
    """``b`` borrows what it uses above its quota, and ``a`` may claim it back."""
    mine = Pool(name="a", quota={"CPU": 8}, cohort="c", reclaim="any")
    return [mine, Pool(name="b", quota={"CPU": quota_of_b}, cohort="c")]


def test_a_reclaim_takes_only_while_the_pool_borrows() -> None:
    fleet = Fleet(lenders()).run("b1", 2, pool="b", priority=9).run("b2", 2, pool="b", priority=9)
    assert victims(fleet.plan(2, pool="a")) == ["b1"]
    assert refusal(fleet.plan(4, pool="a"))[0] == WOULD_NOT_FIT


def test_each_rule_is_checked_again_for_those_that_stay() -> None:
    """``b`` borrows 1 CPU, so only one of its items may leave. The small one is cheaper, but of no use."""
    fleet = Fleet(lenders(4)).run("b1", 1, pool="b", priority=8, started_at=900).run("b2", 4, pool="b", priority=8)
    assert victims(fleet.plan(4, pool="a")) == ["b2"]


def test_the_smallest_leave_first_if_only_that_order_is_allowed() -> None:
    """``b`` borrows 2 CPU: after ``b1`` it would not borrow any more, but after ``b2`` it does."""
    fleet = Fleet(lenders(1)).run("b1", 2, pool="b", priority=8).run("b2", 1, pool="b", priority=9)
    plan = fleet.plan(3, pool="a")
    assert victims(plan) == ["b2", "b1"]
    assert isinstance(plan, PreemptionPlan)
    assert {victim.reason for victim in plan.victims} == {"reclaim"}


def test_a_set_that_the_rules_do_not_allow_has_no_order() -> None:
    fleet = Fleet(lenders()).run("b1", 2, pool="b", priority=9).run("b2", 2, pool="b", priority=9)
    new, place = newcomer(pool="a", need={"CPU": 2}), SmallPlace("east", fleet.free["east"], {"CPU": 2.0}, 1)
    chosen = VictimSet(new, RuleCheck(new, RULES, fleet.ledger, NOW), place, "n1")
    assert chosen.take(option_of(fleet.items[0], NOW))
    assert chosen.plan() is not None
    fleet.ledger.release("b2")  # from now on, b does not borrow
    assert chosen.in_order() is None
    assert chosen.plan() is None
    assert not chosen.take(option_of(fleet.items[1], NOW))


def test_protected_pools_give_nothing_and_borrow_nothing() -> None:
    pools = [lenders()[0], Pool(name="b", quota={"CPU": 2}, cohort="c", protected=True)]
    fleet = Fleet(pools).run("b1", pool="b")
    assert refusal(fleet.plan(pool="a", priority=100))[0] == NO_VICTIM
    free = Fleet(pools, {"east": {"n1": {"CPU": 8.0}}}).run("b1", pool="b").run("a1", 4, pool="a")
    assert refusal(free.plan(pool="b", priority=100))[0] == WOULD_NOT_FIT


# ---- all candidates


def test_all_candidates_with_rank_and_reason() -> None:
    fleet = Fleet().run("b", priority=3).run("no", preemptible=False).run("a", priority=1)
    listed = list_candidates(newcomer(), fleet.items, fleet.ledger, RULES, NOW, "east")
    assert [(one.id, one.rank, one.code) for one in listed] == [
        ("a", 1, "same_pool_priority"),
        ("b", 2, "same_pool_priority"),
        ("no", None, "NOT_PREEMPTIBLE"),
    ]
    assert listed[0].sentence == "its priority 1 is 1 or more below 10"
    assert (listed[0].place, listed[0].priority, listed[0].lost_s) == ("east", 1, 1000)
