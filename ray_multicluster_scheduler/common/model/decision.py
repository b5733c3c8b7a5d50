"""A placement decision as data: what `explain` and `plan` print."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self, overload

from ray_multicluster_scheduler.common.tables import compare_to_others, decision_html, decision_text


@dataclass(frozen=True, slots=True)
class Rejection:
    """The reason of a filter for rejecting a cluster. ``permanent``: no amount of waiting helps."""

    code: str
    sentence: str
    permanent: bool = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)


@dataclass(frozen=True, slots=True)
class CandidateReport:
    """One row of the table: a cluster, the rejections of the filters, its ranks and scores. ``undeclared``: so many
    items of ours there hold no resources, and its scores count them as load."""

    cluster: str
    rejections: tuple[Rejection, ...] = ()
    ranks: Mapping[str, int] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    raw_scores: Mapping[str, float] = field(default_factory=dict)
    total: float | None = None
    node_id: str | None = None
    undeclared: int = 0

    @property
    def feasible(self) -> bool:
        return not self.rejections

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, "rejections": tuple(Rejection.from_dict(item) for item in data["rejections"])})


class CandidateTable(Sequence[CandidateReport]):
    """The rows of a decision, computed when they are first read. ``make`` holds immutable data only, so that the rows
    show the time of the decision."""

    __slots__ = ("_make", "_rows")

    def __init__(self, make: Callable[[], tuple[CandidateReport, ...]]) -> None:
        self._make: Callable[[], tuple[CandidateReport, ...]] | None = make
        self._rows: tuple[CandidateReport, ...] = ()

    @property
    def rows(self) -> tuple[CandidateReport, ...]:
        if self._make is not None:
            self._rows, self._make = self._make(), None
        return self._rows

    @overload
    def __getitem__(self, index: int) -> CandidateReport: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[CandidateReport, ...]: ...

    def __getitem__(self, index: int | slice) -> CandidateReport | tuple[CandidateReport, ...]:
        return self.rows[index]

    def __iter__(self) -> Iterator[CandidateReport]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.rows == tuple(other)

    def __hash__(self) -> int:
        return hash(self.rows)

    def __repr__(self) -> str:
        return repr(self.rows)


@dataclass(frozen=True, slots=True)
class SchedulingDecision:
    """A placement, or the reason to wait. ``cluster`` is None while it waits."""

    task_id: str
    at: float
    cluster: str | None
    code: str
    sentence: str
    candidates: Sequence[CandidateReport] = ()
    unblocked_by: str | None = None
    pool_use: Sequence[Mapping[str, Any]] = ()
    """If the item waits for the quota of its pool, and for people: each resource of that quota, with its use."""

    def __str__(self) -> str:
        """For people: the sentence, and a table of all clusters."""
        return decision_text(self)

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        return decision_html(self)

    def in_full(self) -> Self:
        """With a comparison to the other clusters in its sentence. For people only: it needs the whole table."""
        if self.cluster is None or len(self.candidates) < 2:
            return self
        if any(row.cluster == self.cluster and row.rejections for row in self.candidates):
            return self  # a prefetched item: no cluster has capacity for it yet
        return replace(self, sentence=f"{self.sentence}; {compare_to_others(self.candidates)}")

    def to_dict(self) -> dict[str, Any]:
        data = asdict(replace(self, candidates=tuple(self.candidates)))
        return data if self.pool_use else {name: value for name, value in data.items() if name != "pool_use"}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        rows = tuple(CandidateReport.from_dict(row) for row in data["candidates"])
        return cls(**{**data, "candidates": rows})
