"""UsageHistory: how much of one node our own items used during the last ``KEEP_S`` seconds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

from ray_multicluster_scheduler.common.model import Resources
from ray_multicluster_scheduler.common.model.resources import plus

BUCKET_S = 0.1
"""Changes within one bucket are kept as their peak: memory stays bounded at any rate of tasks."""

KEEP_S = 30.0
"""How far back a late snapshot can still be explained."""


class _Bucket:
    __slots__ = ("at", "last", "peak", "trough")

    def __init__(self, at: float, peak: Resources, low: Resources, last: Resources) -> None:
        self.at = at
        self.peak = peak
        self.trough = low
        self.last = last


class UsageHistory:
    """A coarse step function of time: its peaks are never too low, and its troughs never too high."""

    def __init__(self) -> None:
        self._buckets: deque[_Bucket] = deque()

    def record(self, now: float, ours: Resources) -> None:
        """Record how much is ours from now on."""
        at = math.floor(now / BUCKET_S) * BUCKET_S
        if self._buckets and self._buckets[-1].at >= at:
            bucket = self._buckets[-1]
            bucket.peak = highest(bucket.peak, ours)
            bucket.trough = _lowest(bucket.trough, ours)
            bucket.last = ours
        else:
            before = self._buckets[-1].last if self._buckets else {}
            self._buckets.append(_Bucket(at, highest(before, ours), _lowest(before, ours), ours))
        # The last bucket before the horizon stays: its end is what was ours at the horizon.
        while len(self._buckets) > 1 and self._buckets[1].at < now - KEEP_S:
            self._buckets.popleft()

    def backdate(self, since: float, extra: Resources) -> None:
        """``extra`` has been ours here since then: it started on another node than expected."""
        at = math.floor(since / BUCKET_S) * BUCKET_S
        earlier = [bucket for bucket in self._buckets if bucket.at < at]
        later = [bucket for bucket in self._buckets if bucket.at >= at]
        if not later or later[0].at > at:
            before = earlier[-1].last if earlier else {}
            later.insert(0, _Bucket(at, before, before, before))
        for bucket in later:
            bucket.peak = plus(bucket.peak, extra)
            bucket.trough = plus(bucket.trough, extra) if bucket.at > at else bucket.trough
            bucket.last = plus(bucket.last, extra)
        self._buckets = deque(earlier + later)

    def peak(self, begin: float, end: float) -> Resources:
        """The most that was ours at any time from ``begin`` to ``end``, resource by resource."""
        most: Resources = {}
        for bucket in self._buckets_between(begin, end):
            most = highest(most, bucket.last if bucket.at + BUCKET_S <= begin else bucket.peak)
        return most

    def trough(self, begin: float, end: float) -> Resources:
        """The least that was ours at any time from ``begin`` to ``end``, resource by resource."""
        if not self._buckets or self._buckets[0].at > begin:
            return {}
        least: Resources | None = None
        for bucket in self._buckets_between(begin, end):
            low = bucket.last if bucket.at + BUCKET_S <= begin else bucket.trough
            least = low if least is None else _lowest(least, low)
        return least or {}

    def _buckets_between(self, begin: float, end: float) -> Iterator[_Bucket]:
        """The buckets of that time, newest first, including the last one before ``begin``."""
        until = math.inf
        for bucket in reversed(self._buckets):
            if until <= begin:
                return
            if bucket.at <= end:
                yield bucket
            until = bucket.at


def _lowest(left: Resources, right: Resources) -> Resources:
    """The minimum by resource; returns ``left`` itself if that is the minimum, the usual case."""
    for name, amount in left.items():
        if right.get(name, 0.0) < amount:
            return {name: min(amount, right[name]) for name, amount in left.items() if name in right}
    return left


def highest(left: Resources, right: Resources) -> Resources:
    """The maximum by resource; returns ``left`` itself if that is the maximum."""
    for name, amount in right.items():
        if amount > left.get(name, 0.0):
            return {**left, **{name: max(amount, left.get(name, 0.0)) for name, amount in right.items()}}
    return left
