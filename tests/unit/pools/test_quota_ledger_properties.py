"""Properties of the ledger under any sequence of bookings and changes of pools."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from ray_multicluster_scheduler.scheduler.pools.quota_ledger import QuotaLedger

NAMES, PLACES = ("a", "b", "d"), ("east", "west")
amounts = st.dictionaries(st.sampled_from(["CPU", "GPU"]), st.integers(0, 5).map(float), min_size=1)
names, places, items = st.sampled_from(NAMES), st.sampled_from(PLACES), st.integers(0, 7).map("item{}".format)
cohorts = st.sampled_from(["c", "c", None])


@st.composite
def pools(draw: st.DrawFn, by_place: bool) -> list[Pool]:
    made = []
    for name in NAMES:
        protected = draw(st.booleans()) and draw(st.booleans())
        key, quotas = ("place_quota", st.dictionaries(places, amounts, min_size=1)) if by_place else ("quota", amounts)
        made.append(
            Pool(
                name=name,
                cohort=draw(cohorts),
                protected=protected,
                lend_limit=draw(st.just({}) | amounts),
                borrow_limit={} if protected else draw(st.just({}) | amounts),
                **{key: draw(quotas)},
            )
        )
    return made


class Bookings(RuleBasedStateMachine):
    """Keeps what is booked in a plain dictionary, and sums it anew for each check."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = QuotaLedger()
        self.booked: dict[str, tuple[str, str, dict[str, float]]] = {}
        self.strict = True
        """No booking is above what a pool may use: no claims, no changes of pools and no larger commits so far."""

    @rule(data=st.data(), by_place=st.booleans())
    def resize(self, data: st.DataObject, by_place: bool) -> None:
        self.ledger.set_pools(data.draw(pools(by_place)))
        self.strict = not self.booked

    @rule(item=items, pool=names, place=places, amounts=amounts)
    def start(self, item: str, pool: str, place: str, amounts: dict[str, float]) -> None:
        if item in self.booked or self.ledger.refusal(pool, amounts, place) is not None:
            return
        before = {name: self.excess(name) for name in NAMES}
        self.ledger.reserve(item, pool, amounts, place)
        self.booked[item] = pool, place, amounts
        for name in NAMES:  # what is too much since a change does not grow
            assert self.excess(name) <= before[name]

    @rule(item=items, pool=names, place=places, amounts=amounts)
    def claim(self, item: str, pool: str, place: str, amounts: dict[str, float]) -> None:
        self.ledger.reserve(item, pool, amounts, place, claim=True)
        self.booked[item] = pool, place, amounts
        self.strict = False

    @rule(item=items)
    def commit(self, item: str) -> None:
        self.ledger.commit(item)

    @rule(item=items, amounts=amounts)
    def commit_with_amounts(self, item: str, amounts: dict[str, float]) -> None:
        self.ledger.commit(item, amounts)
        if item in self.booked:
            self.booked[item] = (*self.booked[item][:2], amounts)
            self.strict = False

    @rule(item=items)
    def release(self, item: str) -> None:
        self.ledger.release(item)
        self.booked.pop(item, None)
        self.strict = self.strict or not self.booked

    @rule(some=st.lists(items))
    def release_in_a_copy(self, some: list[str]) -> None:
        twin = self.ledger.copy()
        twin.release_all(some)
        one_by_one = self.ledger.copy()
        for item in some:
            one_by_one.release(item)
        for pool in self.ledger.pools.values():
            assert twin.uses(pool) == one_by_one.uses(pool)

    def total(self, pool: str, place: str, name: str) -> float:
        return sum(
            amounts.get(name, 0)
            for of, where, amounts in self.booked.values()
            if of == pool and (not place or where == place)
        )

    def excess(self, name: str) -> float:
        """How far the pool is above its quota and what it may borrow, and its cohort above all quotas."""
        pool = self.ledger.pools.get(name)
        if pool is None:
            return 0
        excess = 0.0
        for use in self.ledger.uses(pool):
            lonely = pool.cohort is None or pool.protected
            borrow = 0.0 if lonely else pool.borrow_limit.get(use.resource, float("inf"))
            excess = max(excess, self.total(name, use.place, use.resource) - use.quota - borrow)
            mates = [(mate, mate.quota_at(use.place)) for mate in self.ledger.cohort_of(pool)]
            limited = [(mate.name, quota[use.resource]) for mate, quota in mates if use.resource in quota]
            booked = sum(self.total(mate, use.place, use.resource) for mate, _ in limited)
            excess = max(excess, booked - sum(quota for _, quota in limited))
        return excess

    @invariant()
    def sums_are_right(self) -> None:
        for pool in self.ledger.pools.values():
            for use in self.ledger.uses(pool):
                booked = self.total(pool.name, use.place, use.resource)
                assert use.used + use.reserved == booked
                assert min(use.used, use.reserved, use.lent, use.available) >= 0
                assert use.borrowed == max(0, booked - use.quota)

    @invariant()
    def nothing_is_above_its_limit(self) -> None:
        if self.strict:
            assert all(self.excess(name) <= 0 for name in NAMES)

    @invariant()
    def loans_add_up(self) -> None:
        for place in ("", *PLACES):
            for resource in ("CPU", "GPU"):
                uses = [
                    use
                    for pool in self.ledger.pools.values()
                    if pool.cohort == "c"
                    for use in self.ledger.uses(pool)
                    if (use.place, use.resource) == (place, resource)
                ]
                borrowed, lent = sum(one.borrowed for one in uses), sum(one.lent for one in uses)
                assert lent <= borrowed + 1e-6
                assert all(one.lent <= max(0, one.quota - one.used - one.reserved) + 1e-6 for one in uses)
                if self.strict:
                    assert abs(lent - borrowed) < 1e-6

    @invariant()
    def available_is_what_may_start(self) -> None:
        for pool in self.ledger.pools.values():
            for use in self.ledger.uses(pool):
                place = use.place or "east"
                if use.available:
                    assert self.ledger.refusal(pool.name, {use.resource: use.available}, place) is None
                assert self.ledger.refusal(pool.name, {use.resource: use.available + 1}, place) is not None


TestBookings = Bookings.TestCase
TestBookings.settings = settings(max_examples=80, stateful_step_count=30)
