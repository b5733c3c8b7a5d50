"""The data of a preemption: who comes, who runs, who leaves for whom, and at what cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from ray_multicluster_scheduler.common.model.resources import Resources

ByNode: TypeAlias = Mapping[str, Resources]

FITS_NOW = "FITS_NOW"
NO_VICTIM = "NO_VICTIM"
WOULD_NOT_FIT = "WOULD_NOT_FIT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """An item that waits. ``amounts`` is what it uses of its pool's quota, ``need`` what it needs on one node; None if
    only :meth:`Place.accepts` decides where it fits."""

    id: str
    pool: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: float = 0
    amounts: Resources = field(default_factory=dict)
    need: Resources | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningItem:
    """An item that runs, as a possible victim. ``nodes`` is what it holds. Its work since ``started_at``, or since
    ``saved_at`` if that is later, is lost if it has to leave. An item that is ``leaving`` was stopped already, for
    another newcomer or by an operator."""

    id: str
    pool: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: float = 0
    preemptible: bool = False
    place: str
    nodes: ByNode
    started_at: float
    saved_at: float | None = None
    min_runtime_s: float | None = None
    last_preempted_at: float | None = None
    leaving: bool = False

    def lost_s(self, now: float) -> float:
        saved = self.started_at if self.saved_at is None else max(self.started_at, self.saved_at)
        return max(0.0, now - saved)


class Place(Protocol):
    """Where the newcomer may run: a cluster of the fleet, for example. ``free`` leaves out what is pinned for other
    newcomers."""

    @property
    def name(self) -> str: ...

    @property
    def free(self) -> ByNode: ...

    def accepts(self, freed: ByNode) -> ByNode | None:
        """What the newcomer would hold on each node if this much more were free there; None if it would not be placed.
        Quota is no part of this. More freed room must not turn a placement into None."""


class Cost(NamedTuple):
    """Plans are compared by these, in this order; the lowest wins."""

    highest_priority: float
    lost_s: float
    victims: int


@dataclass(frozen=True, slots=True)
class Victim:
    """An item that leaves, and the rule that allows it."""

    id: str
    reason: str
    priority: float
    lost_s: float


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """The newcomer starts at ``place`` and holds ``parts`` when all victims have left.

    Each victim is allowed by the rules when those before it have left.
    """

    newcomer: str
    place: str
    parts: ByNode
    victims: tuple[Victim, ...]
    cost: Cost


@dataclass(frozen=True, slots=True)
class NoPlan:
    """Why nothing is stopped for the newcomer. ``counts``: the running items by the code of the rules."""

    newcomer: str
    code: str
    sentence: str
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running item, and why it may or may not give way. ``rank`` is its position in the order in which victims are
    considered, from 1; None if it may not be one."""

    id: str
    place: str
    priority: float
    lost_s: float
    rank: int | None
    code: str
    sentence: str
