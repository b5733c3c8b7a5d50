"""QuotaLedger: what the items of each pool use, what pools borrow and lend, and whether one more item may start.

The rule for one resource: of its quota, a pool keeps what it does not lend; the rest is in the pot of its cohort. An
item is paid from what its pool keeps, then from the pot. No pool gets more than its quota and its ``borrow_limit``.
Amounts are counted in ten-thousandths, as Ray counts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple, Self, TypeAlias

from ray_multicluster_scheduler.common.model.resources import Resources, describe
from ray_multicluster_scheduler.scheduler.pools.pool import Pool, check_cohorts

POOL_FULL = "POOL_FULL"
POOL_NOT_HERE = "POOL_NOT_HERE"
POOL_TOO_SMALL = "POOL_TOO_SMALL"
POOL_UNKNOWN = "POOL_UNKNOWN"
BORROW_LIMIT = "BORROW_LIMIT"

_UNITS = 10_000
_EVERYWHERE = ""
_Key: TypeAlias = tuple[str, str, str]
"""A pool, a place or none, and a resource."""
_PotKey: TypeAlias = tuple[str, str, str, str]
"""A cohort, or a pool that has none; a place or none, and a resource."""


class QuotaRefusal(NamedTuple):
    """Why an item may not start in its pool."""

    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Booking:
    """What one item uses of its pool's quota. It is ``reserved`` until the item has started. A ``claim`` is reserved
    for an item that waits for others to leave, and may be more than is free."""

    pool: str
    place: str
    amounts: Mapping[str, int]
    reserved: bool = True
    claim: bool = False


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """One resource of one quota. ``place`` is empty for a quota of all places together.

    ``used`` and ``reserved`` include what is ``borrowed``. ``lent`` is its part of what others borrow, in proportion to
    what each pool of the cohort has to lend. ``available`` is how much more its pool may use now.
    """

    place: str
    resource: str
    quota: float
    used: float
    reserved: float
    borrowed: float
    lent: float
    available: float


class _Limit(NamedTuple):
    """One resource of one quota of a pool, in units. ``most`` includes what the pool may borrow. ``pot`` is the key of
    the pot into which the pool puts what it lends."""

    quota: int
    kept: int
    most: float
    pot: _PotKey


class QuotaLedger:
    """The pools, and the bookings of items. An item has at most one booking."""

    def __init__(self, pools: Iterable[Pool] = ()) -> None:
        self.pools: Mapping[str, Pool] = {}
        self._cohorts: dict[str | None, list[Pool]] = {}
        self._limits: dict[_Key, _Limit] = {}
        self._bookings: dict[str, Booking] = {}
        self._booked: dict[_Key, int] = {}
        """The sum of bookings by pool, place and resource; the place is empty for the sum of all places."""
        self._reserved: dict[_Key, int] = {}
        """The part of these sums that is reserved."""
        self._pots: dict[_PotKey, int] = {}
        """The size of each pot."""
        self._taken: dict[_PotKey, int] = {}
        """How much is taken from each pot."""
        self.set_pools(pools)

    def copy(self) -> Self:
        """A ledger for trials: its changes do not affect this one."""
        twin = type(self)()
        twin.pools, twin._cohorts, twin._limits = self.pools, self._cohorts, self._limits
        twin._bookings, twin._booked = dict(self._bookings), dict(self._booked)
        twin._reserved, twin._pots, twin._taken = dict(self._reserved), self._pots, dict(self._taken)
        return twin

    # ---- pools

    def set_pools(self, pools: Iterable[Pool]) -> None:
        """Replace all pools. Bookings stay, also those above a lowered quota. Raises ConfigurationError."""
        known = {pool.name: pool for pool in pools}
        check_cohorts(known.values())
        cohorts: dict[str | None, list[Pool]] = {}
        for pool in known.values():
            cohorts.setdefault(pool.cohort, []).append(pool)
        self.pools, self._cohorts = known, cohorts
        self._limits = {
            (pool.name, place, name): _limit(pool, place, name, amount)
            for pool in known.values()
            for place, quota in (pool.place_quota or {_EVERYWHERE: pool.quota}).items()
            for name, amount in quota.items()
        }
        self._pots, self._taken = {}, {}
        for key, (quota, kept, _, pot) in self._limits.items():
            self._pots[pot] = self._pots.get(pot, 0) + quota - kept
            self._taken[pot] = self._taken.get(pot, 0) + max(0, self._booked.get(key, 0) - kept)

    def cohort_of(self, pool: Pool) -> list[Pool]:
        """The pools that lend to each other; the pool alone if it has no cohort."""
        return [pool] if pool.cohort is None else self._cohorts.get(pool.cohort, [])

    # ---- bookings

    def booking(self, item: str) -> Booking | None:
        return self._bookings.get(item)

    def is_used(self, pool: str) -> bool:
        return any(booking.pool == pool for booking in self._bookings.values())

    def reserve(self, item: str, pool: str, amounts: Resources, place: str, *, claim: bool = False) -> None:
        """Book for an item that is about to start. It replaces an earlier booking, such as a claim. The caller has
        checked :meth:`refusal`, except for a claim."""
        self.release(item)
        self.put_back(item, Booking(pool, place, in_units(amounts), claim=claim))

    def commit(self, item: str, amounts: Resources | None = None) -> None:
        """The item has started; from now on it uses ``amounts``, if given. No effect without a booking."""
        booking = self.release(item)
        if booking is not None:
            used = booking.amounts if amounts is None else in_units(amounts)
            self.put_back(item, replace(booking, amounts=used, reserved=False, claim=False))

    def release(self, item: str) -> Booking | None:
        """The item has ended, or does not start after all. Returns its booking, if it had one."""
        booking = self._bookings.pop(item, None)
        if booking is not None:
            self._add(booking, -1)
        return booking

    def release_all(self, items: Iterable[str]) -> None:
        """The same as :meth:`release` of each, but faster."""
        totals: dict[tuple[str, str, bool], dict[str, int]] = {}
        for item in items:
            booking = self._bookings.pop(item, None)
            if booking is not None:
                total = totals.setdefault((booking.pool, booking.place, booking.reserved), {})
                for name, amount in booking.amounts.items():
                    total[name] = total.get(name, 0) + amount
        for (pool, place, reserved), total in totals.items():
            self._add(Booking(pool, place, total, reserved), -1)

    def put_back(self, item: str, booking: Booking) -> None:
        """Undo :meth:`release`."""
        self._bookings[item] = booking
        self._add(booking, 1)

    def _add(self, booking: Booking, sign: int) -> None:
        for place in {booking.place, _EVERYWHERE}:
            for name, amount in booking.amounts.items():
                key = booking.pool, place, name
                before = self._booked.get(key, 0)
                after = self._booked[key] = before + sign * amount
                assert after >= 0, f"the sum of bookings {key} would be {after}"
                limit = self._limits.get(key)
                if limit is not None:
                    self._taken[limit.pot] += max(0, after - limit.kept) - max(0, before - limit.kept)
                if booking.reserved:
                    self._reserved[key] = self._reserved.get(key, 0) + sign * amount

    # ---- questions

    def refusal(self, pool_name: str, amounts: Resources, place: str, *, item: str = "") -> QuotaRefusal | None:
        """Why an item with these amounts may not start at this place now; None if it may. The booking of the ``item``
        itself, such as a claim, does not count."""
        own = self.release(item)
        if own is not None:
            try:
                return self.refusal(pool_name, amounts, place)
            finally:
                self.put_back(item, own)
        pool = self.pools.get(pool_name)
        if pool is None:
            return QuotaRefusal(POOL_UNKNOWN, f"there is no pool {pool_name}")
        if not pool.may_use(place):
            return QuotaRefusal(POOL_NOT_HERE, f"pool {pool.name} has no quota for {place}")
        missing = self.missing(pool_name, amounts, place)
        if not missing:
            return None
        name = next(iter(missing))
        return self._explain(pool, place if pool.place_quota else _EVERYWHERE, name, units(amounts[name]))

    def missing(self, pool_name: str, amounts: Resources, place: str) -> dict[str, float]:
        """How much more of each resource, in units, the pool would have to be allowed before such an item may start."""
        missing = {}
        for key, limit, amount in self._limited(pool_name, amounts, place):
            short = amount - self._available(key, limit)
            if short > 0:
                missing[key[2]] = short
        return missing

    def is_within_quota(self, pool_name: str, amounts: Resources, place: str) -> bool:
        """Whether the pool could pay for it without borrowing, if nobody had borrowed from it."""
        limited = self._limited(pool_name, amounts, place)
        return all(self._booked.get(key, 0) + amount <= limit.quota for key, limit, amount in limited)

    def borrows(self, pool_name: str, place: str, names: Iterable[str]) -> bool:
        """Whether the pool uses more than its quota of any of these resources."""
        place = place if self.pools[pool_name].place_quota else _EVERYWHERE
        keys = ((pool_name, place, name) for name in names)
        return any(key in self._limits and self._booked.get(key, 0) > self._limits[key].quota for key in keys)

    def uses(self, pool: Pool) -> list[QuotaUse]:
        """Each resource of each quota of the pool."""
        return [self._use(pool, key, limit) for key, limit in self._limits.items() if key[0] == pool.name]

    def _limited(self, pool_name: str, amounts: Resources, place: str) -> Iterator[tuple[_Key, _Limit, int]]:
        """The amounts, in units, that a quota limits."""
        place = place if self.pools[pool_name].place_quota else _EVERYWHERE
        for name, amount in in_units(amounts).items():
            key = pool_name, place, name
            limit = self._limits.get(key)
            if limit is not None:
                yield key, limit, amount

    def _use(self, pool: Pool, key: _Key, limit: _Limit) -> QuotaUse:
        booked, reserved = self._booked.get(key, 0), self._reserved.get(key, 0)
        borrowed = lendable = before = own = 0
        for other in self.cohort_of(pool):
            theirs = self._limits.get((other.name, *key[1:]))
            if theirs is None:
                continue
            used = self._booked.get((other.name, *key[1:]), 0)
            if other.name == pool.name:
                before, own = lendable, max(0, limit.quota - max(limit.kept, used))
            borrowed += max(0, used - theirs.quota)
            lendable += max(0, theirs.quota - max(theirs.kept, used))
        # Rounded so that what all pools lent adds up to what all borrowed, unless quotas have been lowered since.
        shared, whole = min(borrowed, lendable), max(1, lendable)
        lent = shared * (before + own) // whole - shared * before // whole
        available = max(0, self._available(key, limit))
        amounts = (limit.quota, booked - reserved, reserved, max(0, booked - limit.quota), lent, available)
        return QuotaUse(key[1], key[2], *(amount / _UNITS for amount in amounts))

    def _available(self, key: _Key, limit: _Limit) -> float:
        """How much more of a resource the pool may use; negative if it uses more than it may since a change."""
        booked = self._booked.get(key, 0)
        pot = self._pots[limit.pot] - self._taken[limit.pot]
        return min(limit.most - booked, max(0, limit.kept - booked) + pot)

    def _explain(self, pool: Pool, place: str, name: str, amount: int) -> QuotaRefusal:
        quota, kept, limit, pot = self._limits[pool.name, place, name]
        booked, most = self._booked.get((pool.name, place, name), 0), min(limit, kept + self._pots[pot])
        needs, where = f"it needs {_phrase(name, amount)}", f" on {place}" if place else ""
        if amount > most:
            sentence = f"{needs}, and pool {pool.name} can never use more than {_phrase(name, most)}{where}"
            return QuotaRefusal(POOL_TOO_SMALL, sentence)
        sentence = f"{needs}, and pool {pool.name} uses {_phrase(name, booked)} of its {_phrase(name, quota)}{where}"
        if booked + amount <= quota:
            return QuotaRefusal(POOL_FULL, f"{sentence}; the rest is lent to its cohort {pool.cohort}")
        if limit == quota:
            return QuotaRefusal(POOL_FULL, sentence)
        if booked + amount > limit:
            return QuotaRefusal(BORROW_LIMIT, f"{sentence}; it may borrow at most {_phrase(name, limit - quota)}")
        return QuotaRefusal(POOL_FULL, f"{sentence}; its cohort {pool.cohort} has too little to lend")


def _phrase(name: str, amount: float) -> str:
    return describe({name: amount / _UNITS})


def units(amount: float) -> int:
    """The amount in the units of the ledger."""
    return round(amount * _UNITS)


def in_units(amounts: Resources) -> dict[str, int]:
    """The amounts in the units of the ledger, without those that are zero."""
    counted = {name: units(amount) for name, amount in amounts.items()}
    return {name: amount for name, amount in counted.items() if amount}


def _limit(pool: Pool, place: str, name: str, amount: float) -> _Limit:
    quota = units(amount)
    pot = ("pool", pool.name) if pool.cohort is None else ("cohort", pool.cohort)
    return _Limit(quota, _kept(pool, quota, name), quota + _borrow_limit(pool, name), (*pot, place, name))


def _kept(pool: Pool, quota: int, name: str) -> int:
    """The part of the quota that is lent to nobody."""
    if pool.cohort is None:
        return quota
    return max(0, quota - units(pool.lend_limit[name])) if name in pool.lend_limit else 0


def _borrow_limit(pool: Pool, name: str) -> float:
    if pool.cohort is None or pool.protected:
        return 0
    return units(pool.borrow_limit[name]) if name in pool.borrow_limit else inf
