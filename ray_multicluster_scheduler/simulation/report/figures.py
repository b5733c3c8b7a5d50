"""Small sums over many numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

DIGITS = 6


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest number that at least this share of them does not exceed. ``ordered`` is sorted, not empty."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(numbers: Iterable[float]) -> dict[str, float | int | None]:
    """How many, their mean, median, 95th and 99th percentile and the most; None for those of nothing."""
    ordered = sorted(numbers)
    if not ordered:
        return {"count": 0, "mean": None, "p50": None, "p95": None, "p99": None, "max": None}
    return {
        "count": len(ordered),
        "mean": round(math.fsum(ordered) / len(ordered), DIGITS),
        "p50": round(percentile(ordered, 0.50), DIGITS),
        "p95": round(percentile(ordered, 0.95), DIGITS),
        "p99": round(percentile(ordered, 0.99), DIGITS),
        "max": round(ordered[-1], DIGITS),
    }


def jain(shares: Sequence[float]) -> float | None:
    """Jain's index: 1 if all have the same, 1/n if one has all; None if nobody has anything."""
    squares = math.fsum(share * share for share in shares)
    return math.fsum(shares) ** 2 / (len(shares) * squares) if squares else None
