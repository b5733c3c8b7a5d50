"""Series: use of each cluster and depth of the queue over time, in a bounded number of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray_multicluster_scheduler.simulation.report.figures import DIGITS

MOST_SAMPLES = 1000


class Series:
    """When there are too many samples, every second one is dropped and the pace is halved."""

    def __init__(self, clusters: Sequence[str], every_s: float) -> None:
        self.every_s = every_s
        self.times: list[float] = []
        self.queued: list[int] = []
        self.use: dict[str, list[float]] = {name: [] for name in clusters}
        """Share of the cluster's CPUs that work of ours holds."""

    def sample(self, now: float, queued: int, use: Sequence[float]) -> None:
        self.times.append(round(now, DIGITS))
        self.queued.append(queued)
        for line, share in zip(self.use.values(), use, strict=True):
            line.append(round(share, DIGITS))
        if len(self.times) > MOST_SAMPLES:
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
