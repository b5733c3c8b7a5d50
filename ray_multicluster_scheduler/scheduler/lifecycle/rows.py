"""Rows: what of the machine outlives its process. All of them are frozen, and hold nothing that the machine changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ray_multicluster_scheduler.common.model import (
    FailureClass,
    Resources,
    SchedulingDecision,
    TaskDescription,
    TaskState,
)
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterProblem
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Transition
from ray_multicluster_scheduler.scheduler.lifecycle.record import Ending
from ray_multicluster_scheduler.scheduler.queue.owner_account import Holding

PlaceState = Literal["none", "ahead", "held", "away"]
"""It has none (or somebody else has taken it over), was sent before there was one, holds one, or its cluster was not
ours when the row was written."""


@dataclass(frozen=True, slots=True)
class ItemRow:
    """One item. ``number`` is that of its submission, ``waits_for`` says which arguments it still waits for.

    ``after`` are the items that it still waits for. ``holding`` is what it takes of its owner's share, ``place`` says
    what it has on its cluster, ``parts`` what it has reserved on the nodes that it is expected on. ``retry_at`` is when
    its next attempt may be placed. ``given_up``: attempts, with their clusters, that are still to be ended there.
    """

    task: TaskDescription
    number: int
    history: tuple[Transition, ...]
    priority: int
    attempt: int = 0
    cluster: str | None = None
    fence: int | None = None
    earlier_fences: tuple[int, ...] = ()
    queued_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    decision: SchedulingDecision | None = None
    ending: Ending | None = None
    failures: Mapping[FailureClass, int] = field(default_factory=dict)
    restarts: int = 0
    load_bytes: int = 0
    pinned: str | None = None
    held: str | None = None
    waits_for: str = ""
    after: tuple[str, ...] = ()
    retry_at: float | None = None
    holding: Holding | None = None
    place: PlaceState = "none"
    parts: Mapping[str, Resources] = field(default_factory=dict)
    given_up: tuple[tuple[int, str], ...] = ()

    @property
    def state(self) -> TaskState:
        return self.history[-1].state

    @property
    def sent_at(self) -> float:
        """When its newest attempt was sent; for one that has an attempt."""
        return next(step.at for step in self.history if step.attempt == self.attempt)


@dataclass(frozen=True, slots=True)
class SentRow:
    """When something of this kind, which is over by now, was sent to a cluster."""

    kind: str
    cluster: str
    at: float


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """What people said of a cluster. ``paused`` is why its queue is; None if it is not. So is ``dead``."""

    name: str
    cordoned: bool = False
    paused: str | None = None
    dead: ClusterProblem | None = None


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """What people said of an owner. ``paused`` is why its queue is; None if it is not. ``limits`` hold instead of those
    in the settings; None if those do."""

    name: str
    paused: str | None = None
    limits: OwnerLimits | None = None
