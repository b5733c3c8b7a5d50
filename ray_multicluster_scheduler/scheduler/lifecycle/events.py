"""The events that SchedulerMachine handles: its only input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ray_multicluster_scheduler.common.model import (
    ClusterMetadata,
    FailureClass,
    ResourceSnapshot,
    TaskDescription,
)
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ClusterRow, ItemRow, OwnerRow, PoolRow, SentRow
from ray_multicluster_scheduler.scheduler.pools.pool import Pool


@dataclass(frozen=True, slots=True)
class Submitted:
    """A validated item; its payload is already stored.

    ``waits_for`` names arguments without a value: the item is not queued before ArgumentsReady. ``bytes_beside`` is the
    size of arguments that are sent separately and that no other call uses.
    """

    task: TaskDescription
    waits_for: str = ""
    bytes_beside: int = 0


@dataclass(frozen=True, slots=True)
class ArgumentsReady:
    """All arguments have values. ``pinned``: one of them exists on this cluster only (an actor)."""

    task_id: str
    pinned: str | None = None
    bytes_beside: int = 0


@dataclass(frozen=True, slots=True)
class ArgumentsFailed:
    """An argument will never have a value. ``error`` as in Complete."""

    task_id: str
    sentence: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Cancel the item. ``force`` skips the interrupt."""

    task_id: str
    reason: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A cluster reported its total and free resources."""

    snapshot: ResourceSnapshot


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """A snapshot failed: no answer, or an answer that is not from a Ray dashboard.

    ``permanent``: no retry can help before an operator corrects the configuration (wrong token, …). ``awaited``: it
    could not be requested, because the link is down or the agent is not back yet. ``requested``: it answers a
    RefreshSnapshot, not a status query.
    """

    cluster: str
    code: str
    sentence: str
    permanent: bool = False
    awaited: bool = False
    requested: bool = True


@dataclass(frozen=True, slots=True)
class DashboardChecked:
    """The answer to CheckDashboard: None, or why the check failed."""

    cluster: str
    sentence: str | None = None


@dataclass(frozen=True, slots=True)
class HeadSilent:
    """The cluster's agent answers, but its head (Ray's GCS) has not answered the agent for ``silent_s``.

    Repeated while that is so; the next snapshot ends it.
    """

    cluster: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The link for tasks and actors is ready. ``python_version`` is the cluster's, for example 3.11.7."""

    cluster: str
    python_version: str
    ray_version: str
    session_id: str


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The link lost contact (suspect): no new work goes there, running work may continue. ``silent_s``: the part of
    ``lost_after_s`` that has passed; the link counts it from when the agent's lease was renewed."""

    cluster: str
    sentence: str
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProcessesDead:
    """The cluster's agent and all its workers are known to be dead. The AttemptFinished of each attempt follows."""

    cluster: str
    sentence: str


@dataclass(frozen=True, slots=True)
class LinkClosed:
    """The link is closed and nothing runs behind it; the next task there starts a new one.

    Every unanswered call has been, or will be, answered with its own AttemptFinished.
    """

    cluster: str
    sentence: str


@dataclass(frozen=True, slots=True)
class LinkFailed:
    """A link could not be made. ``permanent``: not before an operator corrects the configuration."""

    cluster: str
    code: str
    sentence: str
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class DispatchAccepted:
    """The cluster has accepted the attempt and will answer exactly once."""

    task_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class DispatchRefused:
    """The attempt was not sent or not accepted: it did not and will not run."""

    task_id: str
    attempt: int
    failure: FailureClass
    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Started:
    """The attempt was seen to run, on this node if known."""

    task_id: str
    attempt: int
    at: float
    node_id: str | None = None


@dataclass(frozen=True, slots=True)
class PlaceMoved:
    """On the cluster, a prefetched attempt (``begun``) took the slot of one that ended (``ended``). The end follows as
    its own event."""

    ended: tuple[str, int]
    begun: tuple[str, int]


@dataclass(frozen=True, slots=True)
class AttemptFinished:
    """The one answer to an accepted attempt; nothing of that attempt runs after it.

    ``error_type`` is the class name that `retry_on` matches; ``sentence`` is for people. ``took`` is the run time of
    user code, if known. ``started_at`` and ``node_id`` are those of a Started that was not sent.
    """

    task_id: str
    attempt: int
    status: Literal["succeeded", "failed", "cancelled"]
    failure: FailureClass | None = None
    error_type: str | None = None
    code: str = ""
    sentence: str = ""
    took: float | None = None
    started_at: float | None = None
    node_id: str | None = None


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time of a SetTimer has come."""

    key: str


@dataclass(frozen=True, slots=True)
class ClusterChanged:
    """A cluster was added or changed (``metadata``) or removed (``metadata`` is None). ``cordoned`` None leaves the
    cordon as it is."""

    cluster: str
    metadata: ClusterMetadata | None
    cordoned: bool | None = None


@dataclass(frozen=True, slots=True)
class CordonChanged:
    """A cluster was closed for new work, for this ``reason``, or opened again."""

    cluster: str
    cordoned: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ClusterDeclaredDead:
    """An operator reports that nothing runs there any more: its items are settled without waiting."""

    cluster: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ClusterChecked:
    """A check that an operator requested succeeded: its breaker is closed."""

    cluster: str


@dataclass(frozen=True, slots=True)
class HoldRequested:
    """Keep the item from starting until ReleaseRequested; an attempt that was already sent continues."""

    task_id: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseRequested:
    """End of a HoldRequested."""

    task_id: str


@dataclass(frozen=True, slots=True)
class PriorityChanged:
    """The item waits with this priority from now on."""

    task_id: str
    priority: float


@dataclass(frozen=True, slots=True)
class QueuePaused:
    """Send nothing new to this cluster, or start nothing of this owner, until QueueResumed."""

    what: Literal["cluster", "owner"]
    name: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class QueueResumed:
    """The end of a QueuePaused."""

    what: Literal["cluster", "owner"]
    name: str


@dataclass(frozen=True, slots=True)
class StateSaved:
    """The code of this attempt saved its state; the next attempt gets it."""

    task_id: str
    attempt: int
    digest: str


@dataclass(frozen=True, slots=True)
class OwnerLimitsChanged:
    """Replace all limits of an owner; None restores those of the settings. Running items are not affected."""

    owner: str
    limits: OwnerLimits | None


@dataclass(frozen=True, slots=True)
class PoolChanged:
    """Create a pool, or replace the one of this name. Running items continue, even above a lowered quota. Ignored if it
    cannot be in one cohort with the others."""

    pool: Pool


@dataclass(frozen=True, slots=True)
class PoolDeleted:
    """Delete a pool. One with unfinished items accepts nothing new from now on, and is deleted when they have ended."""

    name: str


@dataclass(frozen=True, slots=True)
class Restored:
    """The rows of an earlier process, for a machine that has no items yet.

    Clusters, owners and pools that are not named keep their defaults. ``next_fence`` is the next fence of the earlier
    machines, ``next_number`` the number of the next item. ``sent`` lists recent submissions of ended items, for the
    submission interval.
    """

    items: tuple[ItemRow, ...]
    clusters: tuple[ClusterRow, ...] = ()
    owners: tuple[OwnerRow, ...] = ()
    pools: tuple[PoolRow, ...] = ()
    next_fence: int = 1
    next_number: int = 1
    sent: tuple[SentRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Continued:
    """Continue the work that the last call left (the answer to Continue)."""


Event: TypeAlias = (
    Submitted
    | ArgumentsReady
    | ArgumentsFailed
    | CancelRequested
    | SnapshotTaken
    | SnapshotFailed
    | DashboardChecked
    | HeadSilent
    | LinkUp
    | LinkDown
    | ProcessesDead
    | LinkClosed
    | LinkFailed
    | DispatchAccepted
    | DispatchRefused
    | Started
    | PlaceMoved
    | AttemptFinished
    | TimerFired
    | ClusterChanged
    | CordonChanged
    | ClusterDeclaredDead
    | ClusterChecked
    | HoldRequested
    | ReleaseRequested
    | PriorityChanged
    | QueuePaused
    | QueueResumed
    | StateSaved
    | OwnerLimitsChanged
    | PoolChanged
    | PoolDeleted
    | Restored
    | Continued
)
