"""The durable rows of items, clusters and owners: what outlives the process. Immutable."""

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
from ray_multicluster_scheduler.scheduler.lifecycle.record import Ending, FreedRoom
from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from ray_multicluster_scheduler.scheduler.queue.owner_account import Holding

PlaceState = Literal["none", "ahead", "held", "away"]
"""No slot; prefetched; holds a slot; or its cluster was not configured when the row was written."""


@dataclass(frozen=True, slots=True)
class ItemRow:
    """One item. ``number`` is that of its submission; ``waits_for`` names arguments and ``after`` items that it still
    waits for.

    ``holding`` is its part of its owner's share, ``place`` its slot on its cluster, ``parts`` its reservation by node.
    ``retry_at`` is when its next attempt may be placed. ``given_up``: abandoned attempts, with their clusters, that are
    still to be cancelled there.
    """

    task: TaskDescription
    number: int
    history: tuple[Transition, ...]
    priority: float
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
    pool: str | None = None
    held: str | None = None
    waits_for: str = ""
    after: tuple[str, ...] = ()
    retry_at: float | None = None
    holding: Holding | None = None
    place: PlaceState = "none"
    parts: Mapping[str, Resources] = field(default_factory=dict)
    given_up: tuple[tuple[int, str], ...] = ()
    room: FreedRoom | None = None
    saved: str | None = None
    saved_at: float | None = None
    preempted_at: float | None = None
    resumes: bool = False

    @property
    def state(self) -> TaskState:
        return self.history[-1].state

    @property
    def sent_at(self) -> float:
        """When its newest attempt was sent; only for an item that has an attempt."""
        return next(step.at for step in self.history if step.attempt == self.attempt)


@dataclass(frozen=True, slots=True)
class SentRow:
    """When an item of this kind, which has ended since, was sent to a cluster."""

    kind: str
    cluster: str
    at: float


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """Operators' orders for a cluster. ``paused`` and ``dead`` hold the reason, or None."""

    name: str
    cordoned: bool = False
    paused: str | None = None
    dead: ClusterProblem | None = None
    cordon_reason: str = ""


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """Orders for an owner. ``paused`` holds the reason or None; ``limits`` replace those of the settings if given."""

    name: str
    paused: str | None = None
    limits: OwnerLimits | None = None


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool that was created or changed at run time. ``pool`` is None if it was deleted."""

    name: str
    pool: Pool | None = None
