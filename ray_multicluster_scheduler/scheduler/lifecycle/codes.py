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
RECALLED = "RECALLED"
"""In an agent's answer: the attempt was recalled before it began."""
KILLED = "KILLED"
"""In an agent's answer: the attempt's process had to be killed, so the attempt may have begun."""
BEGUN = "BEGUN"
"""In the answer for a gang: some of its members were seen to run, but not all."""
READY = "READY"
READY_TIMEOUT = "READY_TIMEOUT"
QUEUE_FULL = "QUEUE_FULL"
POOL_DRAINING = "POOL_DRAINING"
UNKNOWN_CLUSTER = "UNKNOWN_CLUSTER"
CLUSTER_REMOVED = "CLUSTER_REMOVED"
NO_FEASIBLE_CLUSTER = "NO_FEASIBLE_CLUSTER"
NO_HEALTHY_CLUSTER = "NO_HEALTHY_CLUSTER"
POLICY_FAILED = "POLICY_FAILED"
PREEMPTED = "PREEMPTED"
"""It was asked to save its state and stop, or has done so; in an agent's answer: it was stopped for that."""
FREES_ROOM = "FREES_ROOM"
"""It waits until the items that were preempted for it have left."""
STARTED = "STARTED"
RESUMED = "RESUMED"
"""It has started again after it was preempted."""
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
CLUSTER_RESTARTED = "CLUSTER_RESTARTED"
"""In an answer: the cluster is reachable, but its Ray session is new and does not have the attempt."""
PROCESSES_DEAD = "PROCESSES_DEAD"
"""In an answer: the agent and all its workers are known to be dead, although the cluster does not answer."""

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
    PROCESSES_DEAD: "its processes died",
}


def failure_text(code: str) -> str:
    """The failure of a cluster, as a part of a sentence."""
    return f"{_IN_WORDS.get(code, 'it failed')} ({code})"
