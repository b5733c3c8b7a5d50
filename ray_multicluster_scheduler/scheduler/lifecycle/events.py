"""What can happen: the only way anything gets into the machine."""

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
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ClusterRow, ItemRow, OwnerRow, SentRow


@dataclass(frozen=True, slots=True)
class Submitted:
    """A validated item; its payload is already in the payload cache.

    ``waits_for`` says which arguments have no value yet: it is not queued before ArgumentsReady. ``bytes_beside`` is
    the size of arguments that travel beside the call and that no other call uses.
    """

    task: TaskDescription
    waits_for: str = ""
    bytes_beside: int = 0


@dataclass(frozen=True, slots=True)
class ArgumentsReady:
    """All its arguments have values. ``pinned``: one of them exists on this cluster only (an actor)."""

    task_id: str
    pinned: str | None = None
    bytes_beside: int = 0


@dataclass(frozen=True, slots=True)
class ArgumentsFailed:
    """One of its arguments will never have a value. ``error`` as in Complete."""

    task_id: str
    sentence: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Somebody wants it to end. ``force`` skips the polite interrupt."""

    task_id: str
    reason: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A cluster told what it has and what is free."""

    snapshot: ResourceSnapshot


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """A cluster did not answer, or answered something no Ray dashboard says.

    ``permanent`` means that asking again cannot help until somebody mends the configuration (wrong token, …),
    ``awaited`` that it could not even be asked: its link is down, or its agent has yet to come back.
    """

    cluster: str
    code: str
    sentence: str
    permanent: bool = False
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class DashboardChecked:
    """The answer to CheckDashboard: None, or why there was none."""

    cluster: str
    sentence: str | None = None


@dataclass(frozen=True, slots=True)
class HeadSilent:
    """The cluster's agent is there, and its head (Ray's GCS) has not answered it for so long.

    Said again and again while that is so; the next snapshot says that it is over.
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
    """No contact for now (suspect): no new work goes there, what runs may still go on."""

    cluster: str
    sentence: str


@dataclass(frozen=True, slots=True)
class LinkClosed:
    """The link is over and nothing runs behind it any more; the next task there starts a new one.

    Every call that was unanswered has been, or will be, answered with its own AttemptFinished.
    """

    cluster: str
    sentence: str


@dataclass(frozen=True, slots=True)
class LinkFailed:
    """A link could not be made. ``permanent``: not before somebody mends the configuration."""

    cluster: str
    code: str
    sentence: str
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class DispatchAccepted:
    """The other side has it, and will answer exactly once."""

    task_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class DispatchRefused:
    """It was not sent, or not taken: it did not and will not run as this attempt."""

    task_id: str
    attempt: int
    failure: FailureClass
    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Started:
    """The work was seen to run, on this node if known."""

    task_id: str
    attempt: int
    at: float
    node_id: str | None = None


@dataclass(frozen=True, slots=True)
class PlaceMoved:
    """An attempt ended over there, and one that was sent ahead has taken its place. Its end is still to be told."""

    ended: tuple[str, int]
    begun: tuple[str, int]


@dataclass(frozen=True, slots=True)
class AttemptFinished:
    """The one answer to an accepted attempt; after it nothing of that attempt runs.

    ``error_type`` is the class name that `retry_on` matches; ``sentence`` is for people. ``took`` is how long user
    code ran, where that is known. ``started_at`` and ``node_id`` are those of a Started that did not come.
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
    """A time asked for by SetTimer has come."""

    key: str


@dataclass(frozen=True, slots=True)
class ClusterChanged:
    """A cluster was added or changed (``metadata``), or is no longer ours (``metadata`` is None). Whether it is closed
    for new work stays as it is, unless ``cordoned`` says something."""

    cluster: str
    metadata: ClusterMetadata | None
    cordoned: bool | None = None


@dataclass(frozen=True, slots=True)
class CordonChanged:
    """A cluster is closed for new work, or open again; its entry is what it was."""

    cluster: str
    cordoned: bool


@dataclass(frozen=True, slots=True)
class ClusterDeclaredDead:
    """An operator knows that nothing runs there any more: nobody waits for what was there."""

    cluster: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ClusterChecked:
    """Somebody had it asked now, and it answered: the person who looks knows better than a breaker that waits."""

    cluster: str


@dataclass(frozen=True, slots=True)
class HoldRequested:
    """Let it not start before ReleaseRequested; what has been sent already is not called back."""

    task_id: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseRequested:
    """It may start again."""

    task_id: str


@dataclass(frozen=True, slots=True)
class PriorityChanged:
    """From now on it waits with this priority."""

    task_id: str
    priority: int


@dataclass(frozen=True, slots=True)
class QueuePaused:
    """Nothing new goes to this cluster, or nothing of this owner's is started, until QueueResumed."""

    what: Literal["cluster", "owner"]
    name: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class QueueResumed:
    """The end of a QueuePaused."""

    what: Literal["cluster", "owner"]
    name: str


@dataclass(frozen=True, slots=True)
class OwnerLimitsChanged:
    """From now on these limits hold for an owner, all of them; None: those in the settings. What it has on clusters
    stays there."""

    owner: str
    limits: OwnerLimits | None


@dataclass(frozen=True, slots=True)
class Restored:
    """What another machine had when its process ended; for a machine that has no items yet.

    ``clusters`` and ``owners`` are what people had said of them; those that are not named are as they are by default.
    ``next_fence`` is the highest that any machine before it would have given, ``next_number`` that of its next item.
    ``sent`` is what was sent lately and is over: it counts for the submission interval.
    """

    items: tuple[ItemRow, ...]
    clusters: tuple[ClusterRow, ...] = ()
    owners: tuple[OwnerRow, ...] = ()
    next_fence: int = 1
    next_number: int = 1
    sent: tuple[SentRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Continued:
    """Go on with what the last call left over (the answer to Continue)."""


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
    | OwnerLimitsChanged
    | Restored
    | Continued
)
