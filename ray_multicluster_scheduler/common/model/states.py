"""The states of an item, and the classes of its failures."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

CANCEL_GRACE_S = 2.0
"""How long a cancelled task may handle the KeyboardInterrupt before its worker is killed."""


class TaskState(StrEnum):
    """One at a time. RUNNING means that the work was seen to start, not that it was sent; PREEMPTING that it was asked
    to save its state and stop."""

    PENDING = "PENDING"
    QUEUED = "QUEUED"
    DISPATCHING = "DISPATCHING"
    RUNNING = "RUNNING"
    PREEMPTING = "PREEMPTING"
    RETRYING = "RETRYING"
    LOST = "LOST"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def terminal(self) -> bool:
        return self in _TERMINAL


_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError"})
_TERMINAL = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED})


class FailureClass(StrEnum):
    """Cause of the failure of an attempt; decides which retry budget it uses."""

    USER = "user"  # an exception of user code, a job's non-zero exit: `retries`
    CRASH = "crash"  # a worker or node died in a reachable cluster: `crash_retries`
    CLUSTER = "cluster"  # the cluster was lost or refused us: `lost_retries`, counts for the breaker
    PERMANENT = "permanent"  # cannot succeed however often it is tried (bad pickle, broken runtime_env)


def allows_retry(error_type: str | None, retry_on: Sequence[str] | None, no_retry_on: Sequence[str]) -> bool:
    """Whether an exception of user code may be retried. A failed import fails again, so ``retry_on`` must name it."""
    if error_type in no_retry_on:
        return False
    if retry_on is None:
        return error_type not in _IMPORT_ERRORS
    return error_type in retry_on
