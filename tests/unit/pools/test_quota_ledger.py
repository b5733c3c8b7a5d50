"""The ledger of quota: bookings, borrowing and lending, refusals, live changes."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from ray_multicluster_scheduler.scheduler.pools.quota_ledger import (
    BORROW_LIMIT,
    POOL_FULL,
    POOL_NOT_HERE,
    POOL_TOO_SMALL,
    POOL_UNKNOWN,
    QuotaLedger,
    QuotaUse,
)

EVERYWHERE = ""


def start(ledger: QuotaLedger, item: str, pool: str, place: str = "east", **amounts: float) -> None:
    refusal = ledger.refusal(pool, amounts, place)
    assert refusal is None, refusal
    ledger.reserve(item, pool, amounts, place)
    ledger.commit(item)


def refused(ledger: QuotaLedger, pool: str, place: str = "east", **amounts: float) -> str | None:
    refusal = ledger.refusal(pool, amounts, place)
    return None if refusal is None else refusal.code


def use(ledger: QuotaLedger, pool: str) -> QuotaUse:
    (only,) = ledger.uses(ledger.pools[pool])
    return only


def test_a_booking_is_reserved_then_committed_then_released() -> None:
    ledger = QuotaLedger([Pool(name="train", quota={"CPU": 4})])
    ledger.reserve("a", "train", {"CPU": 3}, "east")
    assert use(ledger, "train") == QuotaUse(EVERYWHERE, "CPU", 4, 0, 3, 0, 0, 1)
    assert refused(ledger, "train", CPU=2) == POOL_FULL
    ledger.commit("a")
    assert use(ledger, "train") == QuotaUse(EVERYWHERE, "CPU", 4, 3, 0, 0, 0, 1)
    assert ledger.is_used("train")
    assert ledger.release("a") is not None
    assert use(ledger, "train").available == 4
    assert not ledger.is_used("train")
    assert ledger.release("a") is None


def test_a_second_reservation_replaces_the_first() -> None:
    ledger = QuotaLedger([Pool(name="train", quota={"CPU": 4})])
    ledger.reserve("a", "train", {"CPU": 9}, "east", claim=True)
    booking = ledger.booking("a")
    assert booking is not None
    assert booking.claim
    ledger.reserve("a", "train", {"CPU": 2}, "west")
    assert use(ledger, "train").reserved == 2


def test_a_commit_may_change_the_amounts() -> None:
    ledger = QuotaLedger([Pool(name="train", quota={"CPU": 4})])
    ledger.reserve("a", "train", {"CPU": 3}, "east", claim=True)
    ledger.commit("a", {"CPU": 1})
    booking = ledger.booking("a")
    assert booking is not None
    assert not booking.claim
    assert (use(ledger, "train").used, use(ledger, "train").reserved) == (1, 0)
    ledger.commit("unknown")
    assert ledger.booking("unknown") is None


def test_a_quota_limits_only_the_resources_that_it_names() -> None:
    ledger = QuotaLedger([Pool(name="train", quota={"CPU": 1})])
    start(ledger, "a", "train", GPU=100, CPU=1)
    start(ledger, "b", "train", GPU=100)
    assert refused(ledger, "train", CPU=1, GPU=1) == POOL_FULL


def test_an_amount_of_zero_needs_no_quota() -> None:
    ledger = QuotaLedger([Pool(name="train", quota={"CPU": 4, "GPU": 1})])
    ledger.reserve("a", "train", {"GPU": 2}, "east", claim=True)
    assert refused(ledger, "train", CPU=1, GPU=0) is None


def test_unknown_pools_and_places() -> None:
    ledger = QuotaLedger([Pool(name="train", place_quota={"east": {"CPU": 2}})])
    assert refused(ledger, "no-such-pool", CPU=1) == POOL_UNKNOWN
    assert refused(ledger, "train", "west", CPU=1) == POOL_NOT_HERE


def test_each_place_has_its_own_quota() -> None:
    ledger = QuotaLedger([Pool(name="train", place_quota={"east": {"CPU": 2}, "west": {"CPU": 1}})])
    start(ledger, "a", "train", "east", CPU=2)
    assert refused(ledger, "train", "east", CPU=1) == POOL_FULL
    refusal = ledger.refusal("train", {"CPU": 2}, "west")
    assert refusal is not None
    assert refusal.code == POOL_TOO_SMALL
    assert refusal.sentence.endswith("can never use more than 1 CPU on west")
    start(ledger, "b", "train", "west", CPU=1)
    assert [(one.place, one.used) for one in ledger.uses(ledger.pools["train"])] == [("east", 2), ("west", 1)]


def test_unused_quota_is_lent_inside_the_cohort() -> None:
    ledger = QuotaLedger([Pool(name="a", quota={"CPU": 4}, cohort="c"), Pool(name="b", quota={"CPU": 4}, cohort="c")])
    start(ledger, "a1", "a", CPU=7)
    assert use(ledger, "a").borrowed == 3
    assert use(ledger, "b").lent == 3
    assert use(ledger, "b").available == 1
    assert refused(ledger, "a", CPU=2) == POOL_FULL
    refusal = ledger.refusal("b", {"CPU": 2}, "east")
    assert refusal is not None
    assert refusal.sentence.endswith("the rest is lent to its cohort c")


def test_pools_of_other_cohorts_and_of_none_lend_nothing() -> None:
    ledger = QuotaLedger(
        [
            Pool(name="a", quota={"CPU": 2}, cohort="c"),
            Pool(name="b", quota={"CPU": 2}, cohort="d"),
            Pool(name="e", quota={"CPU": 2}),
            Pool(name="f", quota={"CPU": 2}),
            Pool(name="g", quota={"GPU": 2}, cohort="c"),
        ]
    )
    for pool in "abef":
        assert refused(ledger, pool, CPU=3) == POOL_TOO_SMALL
    ledger.reserve("e1", "e", {"CPU": 9}, "east", claim=True)
    start(ledger, "f1", "f", CPU=2)  # a claim above the quota of e is no business of f
    assert use(ledger, "a").lent == 0


def test_lend_limit_and_borrow_limit() -> None:
    ledger = QuotaLedger(
        [
            Pool(name="a", quota={"CPU": 4}, cohort="c", borrow_limit={"CPU": 1}),
            Pool(name="b", quota={"CPU": 4}, cohort="c", lend_limit={"CPU": 3}),
        ]
    )
    start(ledger, "a1", "a", CPU=4)
    assert refused(ledger, "a", CPU=2) == BORROW_LIMIT
    start(ledger, "a2", "a", CPU=1)
    refusal = ledger.refusal("a", {"CPU": 1}, "east")
    assert refusal is not None
    assert refusal.sentence == "it needs 1 CPU, and pool a uses 5 CPU of its 4 CPU; it may borrow at most 1 CPU"
    start(ledger, "b1", "b", CPU=1)  # the one that it never lends
    start(ledger, "b2", "b", CPU=2)
    assert refused(ledger, "b", CPU=1) == POOL_FULL


def test_a_pool_that_borrows_all_that_others_lend_is_full() -> None:
    ledger = QuotaLedger(
        [
            Pool(name="a", quota={"CPU": 1}, cohort="c"),
            Pool(name="b", quota={"CPU": 2}, cohort="c", lend_limit={"CPU": 1}),
        ]
    )
    start(ledger, "a1", "a", CPU=2)
    refusal = ledger.refusal("a", {"CPU": 1}, "east")
    assert refusal is not None
    assert refusal.sentence.endswith("its cohort c has too little to lend")


def test_a_protected_pool_does_not_borrow() -> None:
    ledger = QuotaLedger(
        [Pool(name="a", quota={"CPU": 2}, cohort="c", protected=True), Pool(name="b", quota={"CPU": 4}, cohort="c")]
    )
    start(ledger, "a1", "a", CPU=2)
    assert refused(ledger, "a", CPU=1) == POOL_FULL
    start(ledger, "b1", "b", CPU=4)
    assert refused(ledger, "b", CPU=1) == POOL_FULL


def test_a_protected_pool_lends() -> None:
    ledger = QuotaLedger(
        [Pool(name="a", quota={"CPU": 2}, cohort="c", protected=True), Pool(name="b", quota={"CPU": 4}, cohort="c")]
    )
    start(ledger, "b1", "b", CPU=6)
    assert refused(ledger, "a", CPU=1) == POOL_FULL


def test_a_lowered_quota_admits_nothing_until_use_has_fallen() -> None:
    ledger = QuotaLedger([Pool(name="train", quota={"CPU": 8})])
    for number in range(4):
        start(ledger, f"item{number}", "train", CPU=2)
    ledger.set_pools([Pool(name="train", quota={"CPU": 4})])
    assert use(ledger, "train") == QuotaUse(EVERYWHERE, "CPU", 4, 8, 0, 4, 0, 0)
    for number in range(2):
        assert refused(ledger, "train", CPU=1) == POOL_FULL
        ledger.release(f"item{number}")
    assert refused(ledger, "train", CPU=1) == POOL_FULL
    ledger.release("item2")
    assert refused(ledger, "train", CPU=2) is None


def test_bookings_of_a_deleted_pool_stay_and_can_be_released() -> None:
    ledger = QuotaLedger([Pool(name="train", quota={"CPU": 2})])
    start(ledger, "a", "train", CPU=2)
    pool = ledger.pools["train"]
    ledger.set_pools([])
    assert ledger.is_used("train")
    assert ledger.uses(pool) == []
    ledger.set_pools([pool])
    assert refused(ledger, "train", CPU=1) == POOL_FULL
    ledger.release("a")
    assert refused(ledger, "train", CPU=1) is None


def test_pools_that_cannot_lend_to_each_other_change_nothing() -> None:
    ledger = QuotaLedger([Pool(name="a", quota={"CPU": 2}, cohort="c")])
    with pytest.raises(ConfigurationError):
        ledger.set_pools([*ledger.pools.values(), Pool(name="b", place_quota={"east": {"CPU": 2}}, cohort="c")])
    assert list(ledger.pools) == ["a"]


def test_cohorts() -> None:
    alone, one, two = Pool(name="a"), Pool(name="b", cohort="c"), Pool(name="d", cohort="c")
    ledger = QuotaLedger([alone, one, two])
    assert ledger.cohort_of(alone) == [alone]
    assert ledger.cohort_of(one) == [one, two]
    assert ledger.cohort_of(Pool(name="e", cohort="deleted")) == []


def test_within_quota_and_borrowing() -> None:
    ledger = QuotaLedger(
        [
            Pool(name="a", quota={"CPU": 4, "GPU": 1}, cohort="c"),
            Pool(name="b", quota={"CPU": 4}, cohort="c"),
            Pool(name="p", place_quota={"east": {"CPU": 1}}),
        ]
    )
    start(ledger, "a1", "a", CPU=6, GPU=1, memory=5)
    assert ledger.borrows("a", "east", ["GPU", "CPU"])
    assert not ledger.borrows("a", "east", ["GPU", "memory"])
    assert not ledger.borrows("b", "east", ["CPU"])
    assert ledger.is_within_quota("b", {"CPU": 4, "memory": 9}, "east")
    assert not ledger.is_within_quota("b", {"CPU": 5}, "east")
    assert ledger.is_within_quota("p", {"CPU": 1}, "east")
    assert not ledger.is_within_quota("p", {"CPU": 2}, "east")
    assert ledger.missing("b", {"CPU": 4}, "east") == {"CPU": 20_000}


def test_what_is_lent_adds_up_to_what_is_borrowed() -> None:
    names = "abdef"
    ledger = QuotaLedger([Pool(name=name, quota={"CPU": 1}, cohort="c") for name in names])
    start(ledger, "item", "a", CPU=2.0001)
    uses = [use(ledger, name) for name in names]
    assert sum(round(one.lent * 10_000) for one in uses) == 10_001
    assert [one.lent for one in uses] == [0, 0.25, 0.25, 0.25, 0.2501]


def test_a_copy_is_independent() -> None:
    ledger = QuotaLedger([Pool(name="a", quota={"CPU": 4}, cohort="c"), Pool(name="b", quota={"CPU": 4}, cohort="c")])
    start(ledger, "a1", "a", CPU=7)
    twin = ledger.copy()
    twin.release_all(["a1", "unknown"])
    start(twin, "b1", "b", CPU=8)
    twin.set_pools([])
    assert (use(ledger, "a").used, use(ledger, "b").used) == (7, 0)
    assert ledger.booking("b1") is None
    assert refused(ledger, "b", CPU=2) == POOL_FULL


def test_releasing_all_equals_releasing_each() -> None:
    pools = [Pool(name="a", quota={"CPU": 4}, cohort="c"), Pool(name="b", quota={"CPU": 4}, cohort="c")]
    ledger = QuotaLedger(pools)
    for number in range(3):
        ledger.reserve(f"a{number}", "a", {"CPU": 2, "memory": number}, "east")
    ledger.reserve("b", "b", {"CPU": 1}, "west")
    ledger.commit("a1")
    each = ledger.copy()
    for name in ("a0", "a1", "b"):
        each.release(name)
    ledger.release_all(["a0", "a1", "b"])
    assert [each.uses(pool) for pool in pools] == [ledger.uses(pool) for pool in pools]
    booking = ledger.release("a2")
    assert booking is not None
    ledger.put_back("a2", booking)
    assert use(ledger, "a").reserved == 2
