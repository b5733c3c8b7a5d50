"""The result of a simulated run: its figures, time series of use and queue depth, and statistics over many numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DIGITS = 6


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest number that at least this share of them does not exceed. ``ordered`` is sorted and not empty."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(numbers: Iterable[float]) -> dict[str, float | int | None]:
    """Count, mean, median, 95th and 99th percentile and maximum; None for all but the count without numbers."""
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
    """Jain's fairness index: 1 if all shares are equal, 1/n if one has everything; None if all are 0."""
    squares = math.fsum(share * share for share in shares)
    return math.fsum(shares) ** 2 / (len(shares) * squares) if squares else None


MAX_SAMPLES = 1000


class Series:
    """Samples over time. Beyond a limit, every second sample is dropped and the interval doubled."""

    def __init__(self, clusters: Sequence[str], every_s: float) -> None:
        self.every_s = every_s
        self.times: list[float] = []
        self.queued: list[int] = []
        self.use: dict[str, list[float]] = {name: [] for name in clusters}
        """By cluster, the share of its CPUs that our items hold."""

    def sample(self, now: float, queued: int, use: Sequence[float]) -> None:
        self.times.append(round(now, DIGITS))
        self.queued.append(queued)
        for line, share in zip(self.use.values(), use, strict=True):
            line.append(round(share, DIGITS))
        if len(self.times) > MAX_SAMPLES:
            self.every_s *= 2
            del self.times[1::2], self.queued[1::2]
            for line in self.use.values():
                del line[1::2]

    def mean_queue(self) -> float:
        return round(sum(self.queued) / len(self.queued), DIGITS) if self.queued else 0.0

    def most_queued(self) -> int:
        return max(self.queued, default=0)

    def to_dict(self) -> dict[str, Any]:
        return {"times_s": self.times, "queued": self.queued, "use": self.use}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run. ``figures`` is plain data (see docs/simulation.md)."""

    seed: int
    figures: Mapping[str, Any]
    series: Series

    @property
    def makespan_s(self) -> float:
        """Seconds from the first submission to the end of the last item."""
        return float(self.figures["makespan_s"])

    @property
    def wait_s(self) -> Mapping[str, Any]:
        """Count, mean, p50, p95, p99 and max of all waits."""
        waits: Mapping[str, Any] = self.figures["wait_s"]
        return waits

    @property
    def succeeded(self) -> int:
        return int(self.figures["items"]["succeeded"])

    def to_dict(self, *, series: bool = False) -> dict[str, Any]:
        data: dict[str, Any] = {"seed": self.seed, **self.figures}
        return {**data, "series": self.series.to_dict()} if series else data

    def to_json(self, *, series: bool = False) -> str:
        """JSON; the same run gives the same bytes."""
        return json.dumps(self.to_dict(series=series), indent=2, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The results of one workload on several fleets, by label."""

    results: Mapping[str, Result]

    def to_dict(self, *, series: bool = False) -> dict[str, Any]:
        return {"runs": {label: result.to_dict(series=series) for label, result in self.results.items()}}

    def to_json(self, *, series: bool = False) -> str:
        return json.dumps(self.to_dict(series=series), indent=2, ensure_ascii=False)
