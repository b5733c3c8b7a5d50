"""Result: what came out of a run, and several of them side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray_multicluster_scheduler.simulation.report.series import Series


@dataclass(frozen=True, slots=True)
class Result:
    """``figures`` is plain data (docs/simulation.md says what is in it); ``series`` is use and queue over time."""

    seed: int
    figures: Mapping[str, Any]
    series: Series

    @property
    def makespan_s(self) -> float:
        """From the first submission to the end of the last item."""
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
        """The same run gives the same text, to the byte."""
        return json.dumps(self.to_dict(series=series), indent=2, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs of one workload, by label."""

    results: Mapping[str, Result]

    def to_dict(self, *, series: bool = False) -> dict[str, Any]:
        return {"runs": {label: result.to_dict(series=series) for label, result in self.results.items()}}

    def to_json(self, *, series: bool = False) -> str:
        return json.dumps(self.to_dict(series=series), indent=2, ensure_ascii=False)
