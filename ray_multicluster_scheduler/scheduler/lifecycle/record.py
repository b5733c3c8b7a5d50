"""TaskRecord: the complete state of one item in the state machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from ray_multicluster_scheduler.common.model import (
    FailureClass,
    Resources,
    SchedulingDecision,
    TaskDescription,
    TaskState,
)
from ray_multicluster_scheduler.common.model.item_fields import MAX_PRIORITY
from ray_multicluster_scheduler.scheduler.lifecycle import transitions
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Transition
from ray_multicluster_scheduler.scheduler.queue.owner_account import Holding
from ray_multicluster_scheduler.scheduler.queue.shape_group import ShapeGroup

NO_FAILURES: Mapping[FailureClass, int] = MappingProxyType({})
"""The failure counts of most items: one shared object."""

EndingKind = Literal["cancel", "run_timeout", "ready_timeout", "recall", "take_back", "preempt"]


@dataclass(frozen=True, slots=True)
class Ending:
    """The reason for which we requested the end of the live attempt; decides what its answer means."""

    kind: EndingKind
    sentence: str
    force: bool
    newcomer: str | None = None
    """For whom it is preempted."""


@dataclass(frozen=True, slots=True)
class FreedRoom:
    """The room that is freed and kept for an item: what it will hold on each node of a cluster, once the items that
    ``leave`` for it have left."""

    cluster: str
    parts: Mapping[str, Resources]
    leave: tuple[str, ...]
    since: float


@dataclass(slots=True, eq=False)
class TaskRecord:
    """State of one item. Only the machine changes it; all others read.

    While it is queued, its reason is that of its group: items of one shape wait for the same thing. ``wanted`` is the
    description that placement uses: as submitted, but bound to one cluster if it was ``pinned`` there. ``restarts``
    counts restarts of an actor, ``load_bytes`` is the size of what must be transferred for it. ``held`` is the reason
    of a hold, ``holding`` its part of its owner's share. ``given_up`` are abandoned attempts, with their clusters, that
    are still to be cancelled there. ``restored``: it was loaded after a restart.

    ``room`` is freed for it by preemption. ``saved`` is the digest of the state that its code saved, at ``saved_at``;
    ``preempted_at`` is when it was last preempted; it ``resumes`` if its last attempt ended by that.
    """

    task: TaskDescription
    number: int
    state: TaskState = TaskState.PENDING
    attempt: int = 0
    cluster: str | None = None
    fence: int | None = None
    earlier_fences: tuple[int, ...] = ()
    history: list[Transition] = field(default_factory=list)
    queued_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    placed: SchedulingDecision | None = None
    group: ShapeGroup | None = None
    accepted: bool = False
    ending: Ending | None = None
    failures: Mapping[FailureClass, int] = field(default_factory=lambda: NO_FAILURES)
    restarts: int = 0
    load_bytes: int = 0
    pinned: str | None = None
    held: str | None = None
    holding: Holding | None = None
    given_up: tuple[tuple[int, str], ...] = ()
    restored: bool = False
    room: FreedRoom | None = None
    saved: str | None = None
    saved_at: float | None = None
    preempted_at: float | None = None
    resumes: bool = False
    wanted: TaskDescription = field(init=False)

    def __post_init__(self) -> None:
        self.wanted = self.task
        if abs(self.task.priority) > MAX_PRIORITY:
            self.prioritise(self.task.priority)

    def pin(self, cluster: str) -> None:
        """Bind the item to this cluster."""
        self.pinned = cluster
        self.wanted = replace(self.wanted, preferred_cluster=cluster, fallback="wait")

    def prioritise(self, priority: float) -> None:
        """Set the priority, limited to the allowed range."""
        self.wanted = replace(self.wanted, priority=max(-MAX_PRIORITY, min(priority, MAX_PRIORITY)))

    @property
    def decision(self) -> SchedulingDecision | None:
        """The last placement decision about it."""
        group = self.group
        decision = self.placed if group is None or group.decision is None else group.decision
        return None if decision is None else replace(decision, task_id=self.task.id)

    @property
    def code(self) -> str:
        """The reason code of its state."""
        if self.group is not None and self.group.decision is not None and self.room is None:
            return self.group.decision.code
        return self.history[-1].code

    @property
    def sentence(self) -> str:
        """The reason of its state as a sentence."""
        if self.group is not None and self.group.decision is not None and self.room is None:
            return self.group.decision.sentence
        return self.history[-1].sentence

    @property
    def fences(self) -> dict[int, int]:
        """The fence of each attempt."""
        known = self.earlier_fences if self.fence is None else (*self.earlier_fences, self.fence)
        return dict(enumerate(known, start=1))

    @property
    def retry(self) -> bool:
        """Was it placed before?"""
        return self.attempt > 0

    @property
    def live(self) -> bool:
        """May an attempt of it be alive on a cluster?"""
        return self.state in transitions.LIVE

    def step(self, state: TaskState, code: str, sentence: str, at: float) -> Transition:
        """Append a transition to its history. Raises IllegalTransitionError."""
        history, task_id = self.history, self.task.id
        if history:
            transitions.check(task_id, self.state, state)
        self.state = state
        transition = Transition(task_id, len(history) + 1, state, self.attempt, at, code, sentence, self.cluster)
        history.append(transition)
        return transition
