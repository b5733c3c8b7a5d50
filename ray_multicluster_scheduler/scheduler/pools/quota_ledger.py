"""QuotaLedger: what the items of each pool use, what pools borrow and lend, and whether one more item may start.

The rule for one resource: of its quota, a pool keeps what it does not lend; the rest is in the pot of its cohort. An
item is paid from what its pool keeps, then from the pot. No pool gets more than its quota and its ``borrow_limit``.
Amounts are counted in ten-thousandths, as Ray counts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple, Self

from ray_multicluster_scheduler.common.model.resources import Resources, describe
from ray_multicluster_scheduler.scheduler.pools.pool import Pool, check_cohorts

POOL_FULL = "POOL_FULL"
POOL_NOT_HERE = "POOL_NOT_HERE"
POOL_TOO_SMALL = "POOL_TOO_SMALL"
POOL_UNKNOWN = "POOL_UNKNOWN"
BORROW_LIMIT = "BORROW_LIMIT"

_UNITS = 10_000
_EVERYWHERE = ""


class QuotaRefusal(NamedTuple):
    """Why an item may not start in its pool."""

    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Booking:
    """What one item uses of its pool's quota. It is ``reserved`` until the item has started. A ``claim`` is reserved for
    an item that waits for others to leave, and may be more than is free."""

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


class QuotaLedger:
    """The pools, and the bookings of items. An item has at most one booking."""

    def __init__(self, pools: Iterable[Pool] = ()) -> None:
        self.pools: dict[str, Pool] = {}
        self._bookings: dict[str, Booking] = {}
        self._booked: dict[tuple[str, str, str], int] = {}
        """The sum of bookings by pool, place and resource; the place is empty for the sum of all places."""
        self._reserved: dict[tuple[str, str, str], int] = {}
        """The part of these sums that is reserved."""
        self.set_pools(pools)

    def copy(self) -> Self:
        """A ledger for trials: its changes do not affect this one."""
        twin = type(self)(self.pools.values())
        twin._bookings = dict(self._bookings)
        twin._booked = dict(self._booked)
        twin._reserved = dict(self._reserved)
        return twin

    # ---- pools

    def set_pools(self, pools: Iterable[Pool]) -> None:
        """Replace all pools. Bookings stay, also those above a lowered quota. Raises ConfigurationError."""
        known = {pool.name: pool for pool in pools}
        check_cohorts(known.values())
        self.pools = known

    def cohort_of(self, pool: Pool) -> list[Pool]:
        """The pools that lend to each other; the pool alone if it has no cohort."""
        if pool.cohort is None:
            return [pool]
        return [other for other in self.pools.values() if other.cohort == pool.cohort]

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

    def put_back(self, item: str, booking: Booking) -> None:
        """Undo :meth:`release`."""
        self._bookings[item] = booking
        self._add(booking, 1)

    def _add(self, booking: Booking, sign: int) -> None:
        for sums in (self._booked, self._reserved) if booking.reserved else (self._booked,):
            for place in {booking.place, _EVERYWHERE}:
                for name, amount in booking.amounts.items():
                    key = booking.pool, place, name
                    total = sums.get(key, 0) + sign * amount
                    assert total >= 0, f"the sum of bookings {key} would be {total}"
                    sums[key] = total

    # ---- questions

    def refusal(self, pool_name: str, amounts: Resources, place: str) -> QuotaRefusal | None:
        """Why an item with these amounts may not start at this place now; None if it may."""
        pool = self.pools.get(pool_name)
        if pool is None:
            return QuotaRefusal(POOL_UNKNOWN, f"there is no pool {pool_name}")
        if not pool.may_use(place):
            return QuotaRefusal(POOL_NOT_HERE, f"pool {pool.name} has no quota for {place}")
        quota, place = pool.quota_at(place), place if pool.place_quota else _EVERYWHERE
        for name, amount in in_units(amounts).items():
            if name in quota and amount > self._available(pool, place, name):
                return self._explain(pool, place, name, amount)
        return None

    def is_within_quota(self, pool_name: str, amounts: Resources, place: str) -> bool:
        """Whether the pool could pay for it without borrowing, if nobody had borrowed from it."""
        pool = self.pools[pool_name]
        quota, place = pool.quota_at(place), place if pool.place_quota else _EVERYWHERE
        return all(
            self._booked.get((pool.name, place, name), 0) + amount <= units(quota[name])
            for name, amount in in_units(amounts).items()
            if name in quota
        )

    def borrows(self, pool_name: str, place: str, names: Iterable[str]) -> bool:
        """Whether the pool uses more than its quota of any of these resources."""
        pool = self.pools[pool_name]
        quota, place = pool.quota_at(place), place if pool.place_quota else _EVERYWHERE
        return any(
            self._booked.get((pool.name, place, name), 0) > units(quota[name]) for name in names if name in quota
        )

    def uses(self, pool: Pool) -> list[QuotaUse]:
        """Each resource of each quota of the pool."""
        quotas = pool.place_quota or {_EVERYWHERE: pool.quota}
        return [self._use(pool, place, name) for place, quota in quotas.items() for name in quota]

    def _use(self, pool: Pool, place: str, name: str) -> QuotaUse:
        quota, booked = units(pool.quota_at(place)[name]), self._booked.get((pool.name, place, name), 0)
        reserved = self._reserved.get((pool.name, place, name), 0)
        others = [other for other in self.cohort_of(pool) if name in other.quota_at(place)]
        borrowed = sum(self._borrowed(other, place, name) for other in others)
        unused = {other.name: self._lendable(other, place, name) for other in others}
        lent = min(unused[pool.name], round(borrowed * unused[pool.name] / max(1, sum(unused.values()))))
        available = max(0, self._available(pool, place, name))
        amounts = (quota, booked - reserved, reserved, self._borrowed(pool, place, name), lent, available)
        return QuotaUse(place, name, *(amount / _UNITS for amount in amounts))

    def _borrowed(self, pool: Pool, place: str, name: str) -> int:
        return max(0, self._booked.get((pool.name, place, name), 0) - units(pool.quota_at(place)[name]))

    def _lendable(self, pool: Pool, place: str, name: str) -> int:
        """What the pool lends, or would lend if others needed it."""
        quota = units(pool.quota_at(place)[name])
        return max(0, quota - max(_kept(pool, quota, name), self._booked.get((pool.name, place, name), 0)))

    def _available(self, pool: Pool, place: str, name: str) -> float:
        """How much more of a resource the pool may use; negative if it uses more than it may since a change."""
        quota = units(pool.quota_at(place)[name])
        booked = self._booked.get((pool.name, place, name), 0)
        pot, taken = self._pot(pool, place, name)
        unused = max(0, _kept(pool, quota, name) - booked)
        return min(quota + _borrow_limit(pool, name) - booked, unused + pot - taken)

    def _pot(self, pool: Pool, place: str, name: str) -> tuple[int, int]:
        """Of the pot of the cohort: its size, and how much is taken."""
        size = taken = 0
        for other in self.cohort_of(pool):
            quota = other.quota_at(place)
            if name in quota:
                whole = units(quota[name])
                kept = _kept(other, whole, name)
                size += whole - kept
                taken += max(0, self._booked.get((other.name, place, name), 0) - kept)
        return size, taken

    def _explain(self, pool: Pool, place: str, name: str, amount: int) -> QuotaRefusal:
        quota, booked = units(pool.quota_at(place)[name]), self._booked.get((pool.name, place, name), 0)
        pot, _ = self._pot(pool, place, name)
        limit = _borrow_limit(pool, name)
        most = min(quota + limit, _kept(pool, quota, name) + pot)
        needs, where = f"it needs {_phrase(name, amount)}", f" on {place}" if place else ""
        if amount > most:
            sentence = f"{needs}, and pool {pool.name} can never use more than {_phrase(name, most)}{where}"
            return QuotaRefusal(POOL_TOO_SMALL, sentence)
        sentence = f"{needs}, and pool {pool.name} uses {_phrase(name, booked)} of its {_phrase(name, quota)}{where}"
        if booked + amount <= quota:
            return QuotaRefusal(POOL_FULL, f"{sentence}; the rest is lent to its cohort {pool.cohort}")
        if not limit:
            return QuotaRefusal(POOL_FULL, sentence)
        if booked + amount > quota + limit:
            return QuotaRefusal(BORROW_LIMIT, f"{sentence}; it may borrow at most {_phrase(name, limit)}")
        return QuotaRefusal(POOL_FULL, f"{sentence}; its cohort {pool.cohort} has too little to lend")


def _phrase(name: str, amount: float) -> str:
    return describe({name: amount / _UNITS})


def units(amount: float) -> int:
    """The amount in the units of the ledger."""
    return round(amount * _UNITS)


def in_units(amounts: Resources) -> dict[str, int]:
    return {name: units(amount) for name, amount in amounts.items()}


def _kept(pool: Pool, quota: int, name: str) -> int:
    """The part of the quota that is lent to nobody."""
    if pool.cohort is None:
        return quota
    return max(0, quota - units(pool.lend_limit[name])) if name in pool.lend_limit else 0


def _borrow_limit(pool: Pool, name: str) -> float:
    if pool.cohort is None or pool.protected:
        return 0
    return units(pool.borrow_limit[name]) if name in pool.borrow_limit else inf
