"""Names of the status of a job: Ray's, and a few of ours."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskState

JOB_STATUS = {
    TaskState.PENDING: "QUEUED",
    TaskState.QUEUED: "QUEUED",
    TaskState.DISPATCHING: "PENDING",
    TaskState.RUNNING: "RUNNING",
    TaskState.RETRYING: "RETRYING",
    TaskState.LOST: "LOST",
    TaskState.PREEMPTING: "RUNNING",
    TaskState.SUCCEEDED: "SUCCEEDED",
    TaskState.FAILED: "FAILED",
    TaskState.CANCELLED: "STOPPED",
}
EXPIRED = "EXPIRED"
ENDED = frozenset({EXPIRED, *(word for state, word in JOB_STATUS.items() if state.terminal)})
