"""Who may take whose place: each reason, each refusal."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from ray_multicluster_scheduler.scheduler.pools.preemption_plan import Newcomer, RunningItem
from ray_multicluster_scheduler.scheduler.pools.preemption_rules import PreemptionRules
from ray_multicluster_scheduler.scheduler.pools.quota_ledger import QuotaLedger
from ray_multicluster_scheduler.scheduler.pools.rule_check import Verdict, decide

NOW = 1000.0
STAGES = {"stage": {"rlhf": ["pretrain", "idle"]}}


def newcomer(**fields: Any) -> Newcomer:
    return Newcomer(**{"id": "new", "pool": "a", "priority": 5, "amounts": {"CPU": 2}, **fields})


def running(**fields: Any) -> RunningItem:
    given = {"id": "old", "pool": "a", "priority": 4, "preemptible": True, "started_at": 0.0}
    return RunningItem(**{**given, "place": "east", "nodes": {"node": {"CPU": 2}}, **fields})


def verdict(
    new: Newcomer, item: RunningItem, *pools: Pool, rules: PreemptionRules | None = None, extra: float = 0
) -> Verdict:
    """``extra`` is booked in the pool of the item, too."""
    ledger = QuotaLedger(pools or [Pool(name="a"), Pool(name="b")])
    for name, amount in (("old", 2.0), ("extra", extra)):
        if item.pool is not None and amount:
            ledger.reserve(name, item.pool, {"CPU": amount}, "east")
            ledger.commit(name)
    return decide(new, item, "east", ledger, rules or PreemptionRules(), NOW)


def code(*args: Any, **options: Any) -> str:
    found = verdict(*args, **options)
    assert found.allowed == found.code.islower()
    assert found.sentence
    return found.code


# ---- by priority


@pytest.mark.parametrize(
    ("priority", "expected"), [(4, "same_pool_priority"), (4.5, "PRIORITY_TOO_CLOSE"), (5, "PRIORITY_TOO_CLOSE")]
)
def test_in_the_same_pool(priority: float, expected: str) -> None:
    assert code(newcomer(), running(priority=priority)) == expected
    assert code(newcomer(pool=None), running(pool=None, priority=priority)) == expected


@pytest.mark.parametrize("pool", ["b", None])
@pytest.mark.parametrize(("priority", "expected"), [(0, "other_pool_priority"), (0.5, "PRIORITY_TOO_CLOSE")])
def test_in_another_pool(pool: str | None, priority: float, expected: str) -> None:
    assert code(newcomer(), running(pool=pool, priority=priority)) == expected


def test_a_difference_is_compared_without_errors_of_rounding() -> None:
    assert 5.1 - 5.0 < 0.1
    rules = PreemptionRules(same_pool=0.1)
    assert code(newcomer(priority=5.1), running(priority=5.0), rules=rules) == "same_pool_priority"


def test_other_pools_can_be_left_alone() -> None:
    rules = PreemptionRules(enable_cross_pool=False, label_rules=STAGES)
    idle = running(pool="b", priority=-100, labels={"stage": "idle"})
    assert code(newcomer(labels={"stage": "rlhf"}), idle, rules=rules) == "CROSS_POOL_DISABLED"
    assert code(newcomer(), running(), rules=rules) == "same_pool_priority"


# ---- by label


@pytest.mark.parametrize(
    ("mine", "theirs", "priority", "expected"),
    [
        ("rlhf", "pretrain", 4.5, "label_rule"),
        ("rlhf", "idle", 4.5, "label_rule"),
        ("rlhf", "pretrain", 4.6, "PRIORITY_TOO_CLOSE"),
        ("rlhf", "other", 4.5, "PRIORITY_TOO_CLOSE"),
        ("pretrain", "rlhf", 4.5, "PRIORITY_TOO_CLOSE"),
        (None, "pretrain", 4.5, "PRIORITY_TOO_CLOSE"),
        ("rlhf", None, 4.5, "PRIORITY_TOO_CLOSE"),
    ],
)
@pytest.mark.parametrize("inherited", [False, True])
def test_label_rules(mine: str | None, theirs: str | None, priority: float, expected: str, inherited: bool) -> None:
    rules = PreemptionRules(label_rules=STAGES)
    new_labels, old_labels = ({"stage": value} if value else {} for value in (mine, theirs))
    if inherited:
        pools = Pool(name="a", labels=new_labels), Pool(name="b", labels=old_labels)
        found = code(newcomer(), running(pool="b", priority=priority), *pools, rules=rules)
    else:
        found = code(newcomer(labels=new_labels), running(pool="b", priority=priority, labels=old_labels), rules=rules)
    assert found == expected


def test_labels_of_an_item_override_those_of_its_pool() -> None:
    rules, pools = PreemptionRules(label_rules=STAGES), [Pool(name="a"), Pool(name="b", labels={"stage": "pretrain"})]
    item = running(pool="b", priority=4.5, labels={"stage": "eval"})
    assert code(newcomer(labels={"stage": "rlhf"}), item, *pools, rules=rules) == "PRIORITY_TOO_CLOSE"


def test_label_rules_can_be_disabled() -> None:
    rules = PreemptionRules(label_rules=STAGES, enable_labels=False)
    item = running(priority=4.5, labels={"stage": "idle"})
    assert code(newcomer(labels={"stage": "rlhf"}), item, rules=rules) == "PRIORITY_TOO_CLOSE"


def test_items_of_equal_share_never_displace_each_other() -> None:
    both = {"stage": {"x": ["y"], "y": ["x"]}}
    rules = PreemptionRules(label_rules=both, label=0)
    for mine, theirs in (("x", "y"), ("y", "x")):
        item = running(priority=5, labels={"stage": theirs})
        assert code(newcomer(labels={"stage": mine}), item, rules=rules) == "PRIORITY_TOO_CLOSE"


# ---- by reclaim


def cohort(reclaim: str = "any", **fields: Any) -> list[Pool]:
    """``b`` borrows from ``a`` what it uses above 2 CPU."""
    mine = Pool(name="a", quota={"CPU": 4}, cohort="c", reclaim=reclaim)  # type: ignore[arg-type]
    return [mine, Pool(**{"name": "b", "quota": {"CPU": 2}, "cohort": "c", **fields})]


def test_lent_quota_is_claimed_back_at_any_priority() -> None:
    borrower = running(pool="b", priority=100)
    assert code(newcomer(), borrower, *cohort(), extra=1) == "reclaim"
    assert code(newcomer(), borrower, *cohort("never"), extra=1) == "PRIORITY_TOO_CLOSE"


@pytest.mark.parametrize(("priority", "expected"), [(4.9, "reclaim"), (5, "PRIORITY_TOO_CLOSE")])
def test_lent_quota_is_claimed_back_from_lower_priorities(priority: float, expected: str) -> None:
    assert code(newcomer(), running(pool="b", priority=priority), *cohort("lower_priority"), extra=1) == expected


def test_a_pool_that_does_not_borrow_has_nothing_to_give_back() -> None:
    assert code(newcomer(), running(pool="b", priority=9), *cohort()) == "NOTHING_TO_RECLAIM"


def test_a_pool_above_its_quota_cannot_reclaim() -> None:
    assert code(newcomer(amounts={"CPU": 5}), running(pool="b", priority=9), *cohort(), extra=1) == "NOTHING_TO_RECLAIM"


def test_pools_outside_the_cohort_owe_nothing() -> None:
    other = Pool(name="d", quota={"CPU": 1})
    assert code(newcomer(), running(pool="d", priority=9), *cohort(), other) == "PRIORITY_TOO_CLOSE"
    assert code(newcomer(), running(pool=None, priority=9), *cohort()) == "PRIORITY_TOO_CLOSE"


def test_an_item_that_holds_nothing_borrowed_is_no_victim_of_a_reclaim() -> None:
    ledger = QuotaLedger(cohort(quota={"CPU": 2, "GPU": 0}))
    ledger.reserve("borrower", "b", {"CPU": 3}, "east")
    ledger.reserve("old", "b", {"GPU": 0, "memory": 1}, "east")
    item = running(pool="b", priority=9)
    assert decide(newcomer(), item, "east", ledger, PreemptionRules(), NOW).code == "NOTHING_TO_RECLAIM"
    ledger.release("old")
    assert decide(newcomer(), item, "east", ledger, PreemptionRules(), NOW).code == "NOTHING_TO_RECLAIM"


def test_a_quota_for_each_place_is_claimed_back_there() -> None:
    pools = [
        Pool(name="a", place_quota={"east": {"CPU": 4}, "west": {"CPU": 0}}, cohort="c", reclaim="any"),
        Pool(name="b", place_quota={"east": {"CPU": 1}, "west": {"CPU": 9}}, cohort="c"),
    ]
    ledger = QuotaLedger(pools)
    ledger.reserve("old", "b", {"CPU": 2}, "east")
    item = running(pool="b", priority=9)
    assert decide(newcomer(), item, "east", ledger, PreemptionRules(), NOW).code == "reclaim"
    assert decide(newcomer(), item, "west", ledger, PreemptionRules(), NOW).code == "NOTHING_TO_RECLAIM"


def test_a_claim_of_the_newcomer_itself_does_not_count() -> None:
    ledger = QuotaLedger(cohort())
    ledger.reserve("old", "b", {"CPU": 3}, "east")
    ledger.reserve("new", "a", {"CPU": 4}, "east", claim=True)
    found = decide(newcomer(amounts={"CPU": 4}), running(pool="b", priority=9), "east", ledger, PreemptionRules(), NOW)
    assert found.code == "reclaim"


def test_who_borrows_ranks_below_who_is_within_its_quota() -> None:
    """Else the room would be claimed back at once, and so on for ever."""
    a, b = cohort(reclaim="any")[1], cohort(reclaim="any")[0]  # here, b borrows and a reclaims
    borrowing = newcomer(pool="b", priority=100, amounts={"CPU": 3})
    assert code(borrowing, running(pool="a"), a, b) == "NEWCOMER_BORROWS"
    within = newcomer(pool="b", priority=100, amounts={"CPU": 1})
    assert code(within, running(pool="a"), a, b) == "other_pool_priority"
    assert code(borrowing, running(pool=None), a, b) == "NEWCOMER_BORROWS"
    assert code(borrowing, running(pool="b"), a, b) == "same_pool_priority"
    third = Pool(name="d", quota={"CPU": 1}, cohort="c")
    assert code(borrowing, running(pool="d"), a, b, third) == "other_pool_priority"
    assert code(borrowing, running(pool="a"), *cohort("lower_priority")) == "other_pool_priority"


# ---- who is never a victim


@pytest.mark.parametrize("labels", [{}, {"stage": "idle"}])
def test_no_item_of_a_protected_pool_is_ever_a_victim(labels: dict[str, str]) -> None:
    rules = PreemptionRules(label_rules=STAGES)
    protected = running(pool="b", priority=-100, labels=labels)
    for pool in ("a", "b", None):
        new = newcomer(pool=pool, priority=100, labels={"stage": "rlhf"})
        assert code(new, protected, *cohort(protected=True), rules=rules, extra=5) == "PROTECTED"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"preemptible": False}, "NOT_PREEMPTIBLE"),
        ({"leaving": True}, "ALREADY_LEAVING"),
        ({"started_at": NOW - 59}, "MIN_RUNTIME"),
        ({"started_at": NOW - 60}, "same_pool_priority"),
        ({"started_at": NOW - 60, "min_runtime_s": 61}, "MIN_RUNTIME"),
        ({"started_at": NOW, "min_runtime_s": 0}, "same_pool_priority"),
        ({"last_preempted_at": NOW - 299}, "COOLING_DOWN"),
        ({"last_preempted_at": NOW - 300}, "same_pool_priority"),
    ],
)
def test_who_is_not_preempted_now(fields: dict[str, Any], expected: str) -> None:
    assert code(newcomer(), running(priority=0, **fields)) == expected


def test_a_reclaim_waits_for_the_minimum_run_time_and_for_no_cool_down() -> None:
    borrower = {"pool": "b", "priority": 0, "last_preempted_at": NOW - 1}
    assert code(newcomer(), running(**borrower), *cohort(), extra=1) == "reclaim"
    assert code(newcomer(), running(**borrower, started_at=NOW - 1), *cohort(), extra=1) == "MIN_RUNTIME"
    assert code(newcomer(), running(**borrower), *cohort()) == "COOLING_DOWN"


def test_pools_that_are_unknown_have_no_rules_of_their_own() -> None:
    ledger = QuotaLedger()
    found = decide(newcomer(pool="gone"), running(pool="gone"), "east", ledger, PreemptionRules(), NOW)
    assert found.code == "same_pool_priority"
