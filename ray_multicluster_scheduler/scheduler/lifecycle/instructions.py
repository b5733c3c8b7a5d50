"""What is to be done: the only way anything gets out of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from ray_multicluster_scheduler.common.model import SchedulingDecision, TaskState

Ahead = Literal["", "queue", "overlap"]


class Transition(NamedTuple):
    """One step of an item's history: legal by the table, with a reason code and a time.

    This and the two that carry it are tuples because every item makes many of them: they are made twice as fast.
    """

    task_id: str
    number: int
    state: TaskState
    attempt: int
    at: float
    code: str
    sentence: str
    cluster: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, "state": TaskState(data["state"])})


class Persist(NamedTuple):
    """Make this durable before any outward effect of the same call.

    ``decision`` comes with the transition that placed the item; several items may share one.
    """

    transition: Transition
    decision: SchedulingDecision | None = None


class Remember(NamedTuple):
    """Something of this item has changed without a step: make its row durable, before any outward effect as well."""

    task_id: str


class RememberFleet(NamedTuple):
    """What people said of clusters or owners has changed: make those rows durable, before any outward effect too."""


class Publish(NamedTuple):
    """Tell whoever listens (after it was made durable)."""

    transition: Transition


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send this attempt to this cluster. ``fence`` only grows, over all items.

    One that is sent ``ahead`` has no place there yet (see Call.ahead): it gets that of another one that ends
    (PlaceMoved), or StartAttempt says that there is one. Of one that is known to be ``short``, the start may be told
    with the end.

    ``again``: it may have been sent before, by a process that is no more. What knows it over there answers as it did
    then, and does not begin anew; and nobody says DispatchRefused before it is sure that nothing of it is alive. If
    it was sent ahead then and is not now, it has a place: a StartAttempt follows.
    """

    task_id: str
    attempt: int
    fence: int
    cluster: str
    ahead: Ahead = ""
    short: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True)
class AdoptAttempt:
    """This attempt ran over there when the process before ours ended: say what becomes of it. It is never begun anew;
    if nobody knows it there, and once nothing of it can be alive, it has failed with its cluster."""

    task_id: str
    attempt: int
    fence: int
    cluster: str


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """There is a place now for this attempt that was sent ahead."""

    task_id: str
    attempt: int
    cluster: str


@dataclass(frozen=True, slots=True)
class RecallAttempt:
    """Take back this attempt that was sent ahead, if it has not begun; then it finishes as cancelled."""

    task_id: str
    attempt: int
    cluster: str


@dataclass(frozen=True, slots=True)
class CancelAttempt:
    """End this attempt over there; its AttemptFinished says when it is over."""

    task_id: str
    attempt: int
    cluster: str
    force: bool


@dataclass(frozen=True, slots=True)
class RefreshSnapshot:
    """Ask this cluster what it has; answered by SnapshotTaken or SnapshotFailed, exactly once."""

    cluster: str


@dataclass(frozen=True, slots=True)
class CheckDashboard:
    """See whether the cluster's dashboard answers; answered by DashboardChecked, exactly once."""

    cluster: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire TimerFired(key) at this time; a second one with the same key replaces the first."""

    key: str
    at: float


@dataclass(frozen=True, slots=True)
class ClearTimer:
    """The timer is no longer needed."""

    key: str


@dataclass(frozen=True, slots=True)
class Complete:
    """The item is over. ``error`` names a class of the error tree; None with FAILED means that the
    last attempt's own answer (the user's exception) is the error."""

    task_id: str
    state: TaskState
    attempt: int
    cluster: str | None
    error: str | None = None
    message: str = ""
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Continue:
    """There is more to do: feed Continued after other waiting events had their turn."""


Instruction: TypeAlias = (
    Persist
    | Remember
    | RememberFleet
    | Publish
    | Dispatch
    | AdoptAttempt
    | StartAttempt
    | RecallAttempt
    | CancelAttempt
    | RefreshSnapshot
    | CheckDashboard
    | SetTimer
    | ClearTimer
    | Complete
    | Continue
)
