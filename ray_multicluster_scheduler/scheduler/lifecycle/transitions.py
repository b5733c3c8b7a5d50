"""The state table: which state may follow which; and the attempts of an item, derived from its transitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import codes
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Transition

PENDING, QUEUED, DISPATCHING = TaskState.PENDING, TaskState.QUEUED, TaskState.DISPATCHING
RUNNING, PREEMPTING = TaskState.RUNNING, TaskState.PREEMPTING
RETRYING, LOST = TaskState.RETRYING, TaskState.LOST
SUCCEEDED, FAILED, CANCELLED = TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED

LEGAL: dict[TaskState, frozenset[TaskState]] = {
    # A state that follows itself is a new reason: why it waits now, or that its end was requested.
    PENDING: frozenset({PENDING, QUEUED, FAILED, CANCELLED}),
    QUEUED: frozenset({QUEUED, DISPATCHING, FAILED, CANCELLED}),
    # Back to QUEUED when it was recalled because it did not start in time.
    DISPATCHING: frozenset({DISPATCHING, RUNNING, QUEUED, RETRYING, LOST, FAILED, CANCELLED}),
    RUNNING: frozenset({RUNNING, PREEMPTING, RETRYING, LOST, SUCCEEDED, FAILED, CANCELLED}),
    PREEMPTING: frozenset({PREEMPTING, QUEUED, RETRYING, LOST, SUCCEEDED, FAILED, CANCELLED}),
    RETRYING: frozenset({QUEUED, FAILED, CANCELLED}),
    # Back to where it was when the cluster returns.
    LOST: frozenset({LOST, DISPATCHING, RUNNING, PREEMPTING, QUEUED, RETRYING, FAILED, CANCELLED}),
    SUCCEEDED: frozenset(),
    FAILED: frozenset(),
    CANCELLED: frozenset(),
}

LIVE = frozenset({DISPATCHING, RUNNING, PREEMPTING, LOST})
"""States with an attempt that may be alive on a cluster."""


_ENDED_AS = {
    RETRYING: "failed",
    QUEUED: "recalled",
    SUCCEEDED: "succeeded",
    FAILED: "failed",
    CANCELLED: "cancelled",
}


class IllegalTransitionError(AssertionError):
    """A defect of ours: the machine tried a transition that the table does not have."""


def check(task_id: str, before: TaskState, after: TaskState) -> None:
    """Raises IllegalTransitionError unless the table allows it."""
    if after not in LEGAL[before]:
        raise IllegalTransitionError(f"{task_id}: {before} → {after} is not in the state table")


@dataclass(slots=True)
class AttemptRow:
    """One attempt. ``ended_as`` is None while it may be alive; ``code`` and ``sentence`` are those of its newest
    transition."""

    attempt: int
    cluster: str | None
    fence: int | None
    sent_at: float
    started_at: float | None = None
    ended_at: float | None = None
    ended_as: str | None = None
    code: str = ""
    sentence: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def shown_history(history: Iterable[Transition]) -> list[Transition]:
    """The steps as an explanation shows them: a recall and its confirmation are one, with the cluster that had it."""
    shown: list[Transition] = []
    for step in history:
        if shown and step.state is QUEUED and shown[-1].state in LIVE:
            before = shown[-1]
            if before.code == step.code and before.state is not PREEMPTING:
                del shown[-1]
            step = step._replace(cluster=before.cluster)  # noqa: PLW2901 - the step as it is shown
        shown.append(step)
    return shown


def attempts_of(history: Iterable[Transition], fences: Mapping[int, int]) -> list[AttemptRow]:
    """The attempts of an item, oldest first. ``fences`` by attempt number, as far as they are known."""
    rows: dict[int, AttemptRow] = {}
    for step in history:
        row = rows.get(step.attempt)
        if row is None:
            if step.state is not TaskState.DISPATCHING:
                continue
            row = rows[step.attempt] = AttemptRow(step.attempt, step.cluster, fences.get(step.attempt), step.at)
        if row.ended_as is not None:
            continue
        if step.state is TaskState.RUNNING and row.started_at is None:
            row.started_at = step.at
        if step.state not in LIVE:
            preempted = step.state is QUEUED and step.code == codes.PREEMPTED
            row.ended_at, row.ended_as = step.at, "preempted" if preempted else _ENDED_AS[step.state]
        row.code, row.sentence = step.code, step.sentence
    return list(rows.values())
