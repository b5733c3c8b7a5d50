"""UsageHistory: how much of one node was ours, over the last while."""

from __future__ import annotations

import math
from collections import deque

from ray_multicluster_scheduler.common.model import Resources
from ray_multicluster_scheduler.common.model.resources import plus

BUCKET_S = 0.1
"""Changes within one bucket are kept as their peak: memory stays bounded at any rate of tasks."""

KEEP_S = 30.0
"""How far back a late snapshot can still be explained."""


class _Bucket:
    __slots__ = ("at", "last", "peak")

    def __init__(self, at: float, peak: Resources, last: Resources) -> None:
        self.at = at
        self.peak = peak
        self.last = last


class UsageHistory:
    """A step function of time, coarse but never too low."""

    def __init__(self) -> None:
        self._buckets: deque[_Bucket] = deque()

    def record(self, now: float, ours: Resources) -> None:
        """From now on, this much is ours."""
        at = math.floor(now / BUCKET_S) * BUCKET_S
        if self._buckets and self._buckets[-1].at >= at:
            bucket = self._buckets[-1]
            bucket.peak = _highest(bucket.peak, ours)
            bucket.last = ours
        else:
            before = self._buckets[-1].last if self._buckets else {}
            self._buckets.append(_Bucket(at, _highest(before, ours), ours))
        # The last bucket before the horizon stays: it says what was ours at the horizon.
        while len(self._buckets) > 1 and self._buckets[1].at < now - KEEP_S:
            self._buckets.popleft()

    def backdate(self, since: float, extra: Resources) -> None:
        """We learnt that ``extra`` was ours here since then already (it started on another node than expected)."""
        at = math.floor(since / BUCKET_S) * BUCKET_S
        earlier = [bucket for bucket in self._buckets if bucket.at < at]
        later = [bucket for bucket in self._buckets if bucket.at >= at]
        if not later or later[0].at > at:
            before = earlier[-1].last if earlier else {}
            later.insert(0, _Bucket(at, before, before))
        for bucket in later:
            bucket.peak = plus(bucket.peak, extra)
            bucket.last = plus(bucket.last, extra)
        self._buckets = deque(earlier + later)

    def peak(self, begin: float, end: float) -> dict[str, float]:
        """The most that was ours at any time from ``begin`` to ``end``, resource by resource."""
        highest: dict[str, float] = {}
        for index, bucket in enumerate(self._buckets):
            if bucket.at > end:
                break
            until = self._buckets[index + 1].at if index + 1 < len(self._buckets) else math.inf
            if bucket.at + BUCKET_S > begin:
                highest = _highest(highest, bucket.peak)
            if until > begin:
                highest = _highest(highest, bucket.last)
        return highest


def _highest(left: Resources, right: Resources) -> dict[str, float]:
    merged = dict(left)
    for name, amount in right.items():
        merged[name] = max(merged.get(name, 0.0), amount)
    return merged
