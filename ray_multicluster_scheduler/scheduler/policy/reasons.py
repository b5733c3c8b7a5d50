"""Reason codes of items that are not placed, and what would unblock each.

Programs use the codes, which never change their meaning; the sentences are for people.
"""

from __future__ import annotations

CLUSTER_UNKNOWN = "CLUSTER_UNKNOWN"
STALE_SNAPSHOT = "STALE_SNAPSHOT"
CLUSTER_SUSPECT = "CLUSTER_SUSPECT"
CLUSTER_LOST = "CLUSTER_LOST"
CLUSTER_DEAD = "CLUSTER_DEAD"
CLUSTER_UNREACHABLE = "CLUSTER_UNREACHABLE"
CLUSTER_MISCONFIGURED = "CLUSTER_MISCONFIGURED"
BREAKER_OPEN = "BREAKER_OPEN"
BREAKER_HALF_OPEN = "BREAKER_HALF_OPEN"
HEAD_SILENT = "HEAD_SILENT"
LINK_FAILED = "LINK_FAILED"
DASHBOARD_SILENT = "DASHBOARD_SILENT"
CORDONED = "CORDONED"
QUEUE_PAUSED = "QUEUE_PAUSED"
NO_CARRIER = "NO_CARRIER"
REQUIRED_TAGS = "REQUIRED_TAGS"
NOT_ALLOWED = "NOT_ALLOWED"
PREFERRED_ONLY = "PREFERRED_ONLY"
PYTHON_MISMATCH = "PYTHON_MISMATCH"
TOO_BIG = "TOO_BIG"
NO_CAPACITY = "NO_CAPACITY"
CAPACITY_UNKNOWN = "CAPACITY_UNKNOWN"
ABOVE_THRESHOLD = "ABOVE_THRESHOLD"
SUBMISSION_INTERVAL = "SUBMISSION_INTERVAL"
SERIAL = "SERIAL"
MAX_RUNNING_JOBS = "MAX_RUNNING_JOBS"
MAX_IN_FLIGHT = "MAX_IN_FLIGHT"

BETTER_IS_ASKED = "BETTER_IS_ASKED"
OWNER_PAUSED = "OWNER_PAUSED"
OWNER_LIMIT = "OWNER_LIMIT"

POOL_FULL = "POOL_FULL"
POOL_NOT_HERE = "POOL_NOT_HERE"
POOL_TOO_SMALL = "POOL_TOO_SMALL"
POOL_UNKNOWN = "POOL_UNKNOWN"
BORROW_LIMIT = "BORROW_LIMIT"
POOL_FORBIDDEN = "POOL_FORBIDDEN"

PLACED = "PLACED"
POLICY_FAILED = "POLICY_FAILED"
NO_CLUSTERS = "NO_CLUSTERS"

HEALTH_CODES = frozenset(
    {
        CLUSTER_UNKNOWN,
        STALE_SNAPSHOT,
        CLUSTER_SUSPECT,
        CLUSTER_LOST,
        CLUSTER_DEAD,
        CLUSTER_UNREACHABLE,
        CLUSTER_MISCONFIGURED,
        BREAKER_OPEN,
        BREAKER_HALF_OPEN,
        HEAD_SILENT,
        LINK_FAILED,
        DASHBOARD_SILENT,
    }
)
"""Reasons that lie in the health of the cluster, not in the needs of the item."""

UNBLOCKED_BY: dict[str, str] = {
    CLUSTER_UNKNOWN: "{cluster} answers with its free resources",
    STALE_SNAPSHOT: "{cluster} answers again",
    CLUSTER_SUSPECT: "the link to {cluster} comes back",
    CLUSTER_LOST: "{cluster} comes back",
    CLUSTER_DEAD: "{cluster} answers again",
    CLUSTER_UNREACHABLE: "{cluster} is started, or its `dashboard` address is corrected",
    CLUSTER_MISCONFIGURED: "an operator corrects the entry of {cluster} in clusters.yaml",
    BREAKER_OPEN: "a probe of {cluster} is answered",
    BREAKER_HALF_OPEN: "the probe of {cluster} is answered",
    HEAD_SILENT: "the head of {cluster} answers again",
    LINK_FAILED: "a link to {cluster} can be made",
    DASHBOARD_SILENT: "the dashboard of {cluster} answers again",
    CORDONED: "an operator uncordons {cluster}",
    QUEUE_PAUSED: "an operator resumes the queue of {cluster}",
    NO_CARRIER: "{cluster} gets a `dashboard` in clusters.yaml",
    REQUIRED_TAGS: "{cluster} gets the tags that are required",
    NOT_ALLOWED: "the item allows {cluster}",
    PREFERRED_ONLY: 'the item is submitted with fallback="any"',
    PYTHON_MISMATCH: "{cluster} runs the same minor version of Python as the submitting program",
    TOO_BIG: "{cluster} gets a node that is large enough",
    NO_CAPACITY: "enough is freed on one node of {cluster}",
    CAPACITY_UNKNOWN: "{cluster} reports what is free on its nodes",
    ABOVE_THRESHOLD: "use of {cluster} falls to `resource_threshold`",
    SUBMISSION_INTERVAL: "`submission_interval_s` has passed since the last submission to {cluster}",
    SERIAL: "what runs on {cluster} ends (execution_mode is serial)",
    MAX_RUNNING_JOBS: "a job on {cluster} ends",
    MAX_IN_FLIGHT: "an item on {cluster} ends",
    POLICY_FAILED: "the failing policy is repaired or removed from the configuration",
    OWNER_PAUSED: "an operator resumes the owner's queue",
    OWNER_LIMIT: "another item of the same owner ends, or its limit is raised",
    POOL_FULL: "an item of its pool ends, or of a pool that borrows from it; or the quota of its pool is raised",
    BORROW_LIMIT: "an item of its pool ends, or the borrow_limit of its pool is raised",
    POOL_TOO_SMALL: "the quota of its pool is raised",
    POOL_NOT_HERE: "its pool gets a quota for {cluster}",
    POOL_UNKNOWN: "a pool of this name is created",
    POOL_FORBIDDEN: "an administrator adds its owner to the pool",
    BETTER_IS_ASKED: "the snapshot request to {cluster} is answered or fails",
}


def unblocked_by(code: str, cluster: str) -> str | None:
    """The condition for an item with this reason to go to this cluster; None for a code of a user's policy."""
    phrase = UNBLOCKED_BY.get(code)
    return phrase.format(cluster=cluster) if phrase else None
