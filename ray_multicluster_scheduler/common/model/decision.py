"""A placement decision as data: what `explain` and `plan` print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why one filter said no. ``permanent``: no amount of waiting helps."""

    code: str
    sentence: str
    permanent: bool = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)


@dataclass(frozen=True, slots=True)
class CandidateReport:
    """One row of the table: a cluster, what each filter said, its ranks and scores."""

    cluster: str
    rejections: tuple[Rejection, ...] = ()
    ranks: Mapping[str, int] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    raw_scores: Mapping[str, float] = field(default_factory=dict)
    total: float | None = None
    node_id: str | None = None

    @property
    def feasible(self) -> bool:
        return not self.rejections

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, "rejections": tuple(Rejection.from_dict(item) for item in data["rejections"])})


@dataclass(frozen=True, slots=True)
class SchedulingDecision:
    """Where an item goes, or why it waits. ``cluster`` is None while it waits."""

    task_id: str
    at: float
    cluster: str | None
    code: str
    sentence: str
    candidates: tuple[CandidateReport, ...] = ()
    unblocked_by: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        rows = tuple(CandidateReport.from_dict(row) for row in data["candidates"])
        return cls(**{**data, "candidates": rows})
