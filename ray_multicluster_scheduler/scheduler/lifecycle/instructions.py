"""The instructions that SchedulerMachine returns: its only output, and the buffer that collects them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from ray_multicluster_scheduler.common.model import SchedulingDecision, TaskState

Ahead = Literal["", "queue", "overlap"]


class Transition(NamedTuple):
    """One step of an item's history: legal by the state table, with a reason code and a time.

    This and the two that carry it are tuples, because every item makes many of them and tuples are created twice as
    fast.
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
    """Make this transition durable before any outward effect of the same call.

    ``decision`` comes with the transition that placed the item; several items may share one.
    """

    transition: Transition
    decision: SchedulingDecision | None = None


class Remember(NamedTuple):
    """An item changed without a transition: make its row durable before any outward effect of the same call."""

    task_id: str


class RememberFleet(NamedTuple):
    """Orders for clusters, owners or pools changed: make those rows durable before any outward effect of the same
    call."""


class Publish(NamedTuple):
    """Publish this transition to listeners after it is durable."""

    transition: Transition


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send this attempt to this cluster. ``fence`` only grows, over all items.

    An attempt sent ``ahead`` has no slot there yet (see Call.ahead): it takes the slot of an attempt that ends
    (PlaceMoved) or waits for StartAttempt. The start of a ``short`` one may be reported with its end.

    ``again``: an earlier process may have sent it. A gateway that knows it answers as before and does not start it
    again; DispatchRefused is posted only when the attempt cannot be alive any more. If it was prefetched then and is
    not now, a StartAttempt follows. ``saved`` is the digest of the state that an earlier attempt saved.
    """

    task_id: str
    attempt: int
    fence: int
    cluster: str
    ahead: Ahead = ""
    short: bool = False
    again: bool = False
    saved: str | None = None


@dataclass(frozen=True, slots=True)
class AdoptAttempt:
    """This attempt ran when the previous process ended: find it and report its end. It is never started again; if
    the cluster does not know it, it counts as lost as soon as it cannot be alive any more."""

    task_id: str
    attempt: int
    fence: int
    cluster: str


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """A prefetched attempt has a slot now: start it."""

    task_id: str
    attempt: int
    cluster: str


@dataclass(frozen=True, slots=True)
class RecallAttempt:
    """Take back an attempt unless it has begun; it then finishes as cancelled."""

    task_id: str
    attempt: int
    cluster: str


@dataclass(frozen=True, slots=True)
class CancelAttempt:
    """Cancel this attempt on its cluster; its AttemptFinished confirms the end."""

    task_id: str
    attempt: int
    cluster: str
    force: bool


@dataclass(frozen=True, slots=True)
class PreemptAttempt:
    """Let this attempt save its state within ``grace_s``, then end it; its AttemptFinished confirms the end."""

    task_id: str
    attempt: int
    cluster: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class RefreshSnapshot:
    """Request a snapshot of this cluster; answered exactly once by SnapshotTaken or SnapshotFailed."""

    cluster: str


@dataclass(frozen=True, slots=True)
class CheckDashboard:
    """Check whether the cluster's dashboard answers; answered exactly once by DashboardChecked."""

    cluster: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire TimerFired(key) at this time; replaces an earlier timer of the same key."""

    key: str
    at: float


@dataclass(frozen=True, slots=True)
class ClearTimer:
    """Cancel the timer."""

    key: str


@dataclass(frozen=True, slots=True)
class Complete:
    """The item has ended. ``error`` names a class of the error tree; None with FAILED means that the answer of the last
    attempt (the user's exception) is the error."""

    task_id: str
    state: TaskState
    attempt: int
    cluster: str | None
    error: str | None = None
    message: str = ""
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Continue:
    """Work is left: send Continued after other waiting events were handled."""


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
    | PreemptAttempt
    | RefreshSnapshot
    | CheckDashboard
    | SetTimer
    | ClearTimer
    | Complete
    | Continue
)


class InstructionBuffer:
    """The instructions of one call of the machine, what must be durable first; knows which timers are set."""

    def __init__(self) -> None:
        self._durable: list[Instruction] = []
        self._effects: list[Instruction] = []
        self._more = False
        self.timers: dict[str, float] = {}
        """When each timer that has not fired is due, by key."""

    def add_transition(self, step: Transition, decision: SchedulingDecision | None) -> None:
        """Persist and publish a transition."""
        self._durable.append(Persist(step, decision))
        self._effects.append(Publish(step))

    def add(self, instruction: Instruction) -> None:
        (self._durable if isinstance(instruction, (Remember, RememberFleet)) else self._effects).append(instruction)

    def request_continue(self) -> None:
        """Work is left: end the list with one Continue."""
        self._more = True

    def set_timer(self, key: str, at: float) -> None:
        """Set or move a timer; emits nothing if it is already set to that time."""
        if self.timers.get(key) != at:
            self.timers[key] = at
            self.add(SetTimer(key, at))

    def clear_timer(self, key: str) -> None:
        if self.timers.pop(key, None) is not None:
            self.add(ClearTimer(key))

    def consume_timer(self, key: str) -> bool:
        """Remove a timer that fired. False if it was cleared before it fired."""
        return self.timers.pop(key, None) is not None

    def drain(self) -> list[Instruction]:
        """Return all instructions of this call and start an empty list."""
        instructions = [*self._durable, *self._effects]
        if self._more:
            instructions.append(Continue())
        self._durable, self._effects, self._more = [], [], False
        return instructions
