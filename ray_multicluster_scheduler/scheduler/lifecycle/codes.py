"""Reason codes of transitions that do not come from a placement policy."""

from __future__ import annotations

SUBMITTED = "SUBMITTED"
QUEUED = "QUEUED"
HELD = "HELD"
PRIORITY_CHANGED = "PRIORITY_CHANGED"
WAITS_FOR_ARGUMENTS = "WAITS_FOR_ARGUMENTS"
ARGUMENT_FAILED = "ARGUMENT_FAILED"
WAITS_FOR_DEPENDENCIES = "WAITS_FOR_DEPENDENCIES"
DEPENDENCY_FAILED = "DEPENDENCY_FAILED"
UNKNOWN_DEPENDENCY = "UNKNOWN_DEPENDENCY"
STARTS_LATER = "STARTS_LATER"
SENT_AHEAD = "SENT_AHEAD"
TAKEN_BACK = "TAKEN_BACK"
KILLED = "KILLED"
"""Of an answer: its process had to be killed to end it, so it may have begun."""
BEGUN = "BEGUN"
"""Of a gang's answer: not all of its members were seen to run, but some were."""
READY = "READY"
READY_TIMEOUT = "READY_TIMEOUT"
QUEUE_FULL = "QUEUE_FULL"
UNKNOWN_CLUSTER = "UNKNOWN_CLUSTER"
CLUSTER_REMOVED = "CLUSTER_REMOVED"
NO_FEASIBLE_CLUSTER = "NO_FEASIBLE_CLUSTER"
NO_HEALTHY_CLUSTER = "NO_HEALTHY_CLUSTER"
POLICY_FAILED = "POLICY_FAILED"
STARTED = "STARTED"
FINISHED = "FINISHED"
CANCEL_REQUESTED = "CANCEL_REQUESTED"
CANCELLED = "CANCELLED"
CANCELLED_THERE = "CANCELLED_THERE"
RUN_TIMEOUT = "RUN_TIMEOUT"
QUEUE_TIMEOUT = "QUEUE_TIMEOUT"
NOT_STARTED = "NOT_STARTED"
RETRY = "RETRY"
CONTACT_LOST = "CONTACT_LOST"
CONTACT_AGAIN = "CONTACT_AGAIN"
DECLARED_DEAD = "DECLARED_DEAD"
DISPATCH_REFUSED = "DISPATCH_REFUSED"
CLUSTER_RESTARTED = "CLUSTER_RESTARTED"
"""Of an answer: the cluster is there, as another session that knows nothing of the attempt."""

FAILED = {
    "user": "USER_ERROR",
    "crash": "WORKER_CRASHED",
    "cluster": "CLUSTER_LOST",
    "permanent": "CANNOT_SUCCEED",
}
"""By the class of the last attempt's failure."""

_IN_WORDS = {
    FAILED["cluster"]: "contact with it was lost",
    "CLUSTER_UNREACHABLE": "it could not be reached",
    "LINK_CLOSED": "its link was closed",
    CLUSTER_RESTARTED: "it was restarted",
}


def failure_text(code: str) -> str:
    """How a cluster failed, as a part of a sentence."""
    return f"{_IN_WORDS.get(code, 'it failed')} ({code})"
