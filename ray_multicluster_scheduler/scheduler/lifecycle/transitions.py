"""The state table: which state may follow which. Every state change of an item is checked against it."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskState

PENDING, QUEUED, DISPATCHING = TaskState.PENDING, TaskState.QUEUED, TaskState.DISPATCHING
RUNNING, RETRYING, LOST = TaskState.RUNNING, TaskState.RETRYING, TaskState.LOST
SUCCEEDED, FAILED, CANCELLED = TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED

LEGAL: dict[TaskState, frozenset[TaskState]] = {
    # A state that follows itself is a new reason: why it waits now, or that its end was asked for.
    PENDING: frozenset({PENDING, QUEUED, FAILED, CANCELLED}),
    QUEUED: frozenset({QUEUED, DISPATCHING, FAILED, CANCELLED}),
    # Back to QUEUED when it was recalled because it did not start in time.
    DISPATCHING: frozenset({DISPATCHING, RUNNING, QUEUED, RETRYING, LOST, FAILED, CANCELLED}),
    RUNNING: frozenset({RUNNING, RETRYING, LOST, SUCCEEDED, FAILED, CANCELLED}),
    RETRYING: frozenset({QUEUED, FAILED, CANCELLED}),
    # Back to where it was when the cluster returns.
    LOST: frozenset({LOST, DISPATCHING, RUNNING, QUEUED, RETRYING, FAILED, CANCELLED}),
    SUCCEEDED: frozenset(),
    FAILED: frozenset(),
    CANCELLED: frozenset(),
}

LIVE = frozenset({DISPATCHING, RUNNING, LOST})
"""States with an attempt that may be alive on a cluster."""


class IllegalTransitionError(AssertionError):
    """A defect of ours: the machine tried a transition that the table does not have."""


def check(task_id: str, before: TaskState, after: TaskState) -> None:
    """Raises IllegalTransitionError unless the table allows it."""
    if after not in LEGAL[before]:
        raise IllegalTransitionError(f"{task_id}: {before} → {after} is not in the state table")
