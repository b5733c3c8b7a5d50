"""From the words of the wire to the data that links speak of."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.common.model import FailureClass, NodeSnapshot, ResourceSnapshot
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult, LinkInfo
from ray_multicluster_scheduler.scheduler.connection.links.pending_calls import Key, PendingCall

RESTARTED = "the cluster was restarted and knows nothing of it"
"""What became of an agent of which the cluster's Jobs API has never heard."""
NOT_KNOWN = "the agent does not know this call any more"
ON_ITS_WAY = "it was on its way when the service was restarted; whether it ran is not known"
"""What became of a method's call of the process before ours that the agent does not know."""


def lost(key: Key, debt: PendingCall, sentence: str, *, restarted: bool = False) -> CallResult:
    """The answer to a call that died with its link; one whose end was asked for just ended."""
    return CallResult(
        task_id=key[0],
        attempt=key[1],
        status="cancelled" if debt.cancelled else "failed",
        failure=None if debt.cancelled else FailureClass.CLUSTER,
        error_type=None if debt.cancelled else "ClusterLostError",
        code="CLUSTER_RESTARTED" if restarted else "CLUSTER_LOST",
        message=sentence,
        actor_id=_actor_of(debt),
    )


def ended_before_it_left(key: Key, debt: PendingCall) -> CallResult:
    """The answer to a call whose end was asked for, or that was recalled, before it arrived anywhere."""
    code = "" if debt.cancelled else m.RECALLED
    return CallResult(key[0], key[1], "cancelled", code=code, actor_id=_actor_of(debt))


def of_older_agent(key: Key, debt: PendingCall, cluster: str, protocol: int) -> CallResult:
    """The answer to a call of a method that was made by an older version of us, and cannot be put in order there."""
    return CallResult(
        task_id=key[0],
        attempt=key[1],
        status="failed",
        failure=FailureClass.PERMANENT,
        error_type="TaskSubmissionError",
        code="OLDER_AGENT",
        message=f"the agent of cluster {cluster!r} is that of an older version (protocol {protocol}), which takes no "
        "calls from a service that was started again; make the actor anew",
        actor_id=_actor_of(debt),
    )


def not_sendable(key: Key, debt: PendingCall, error: Exception) -> CallResult:
    """The answer to a call that cannot be put into a message, on this or any other cluster."""
    return CallResult(
        task_id=key[0],
        attempt=key[1],
        status="failed",
        failure=FailureClass.PERMANENT,
        error_type=type(error).__name__,
        code=m.NOT_SENDABLE,
        message=m.not_sendable_text(error),
        actor_id=_actor_of(debt),
    )


def result_from(head: dict[str, Any], payload: Any, debt: PendingCall, agent: str = "") -> CallResult:
    """One entry of FINISHED, as ``agent`` sent it. Raises KeyError, ValueError for what is none."""
    failure = head.get("failure")
    starts = "at" in head and not debt.started and debt.actor is None
    return CallResult(
        task_id=head["id"],
        attempt=head["attempt"],
        status=head["status"],
        payload=bytes(payload) or None,
        failure=FailureClass(failure) if failure else None,
        error_type=head.get("error_type"),
        code=head.get("code", ""),
        message=head.get("message", ""),
        traceback=head.get("traceback", ""),
        took=head.get("took"),
        actor_id=_actor_of(debt),
        started_at=float(head["at"]) if starts else None,
        node_id=str(head["node"]) if starts else None,
        member=head.get("member"),
        kept=head.get("kept"),
        kept_by=agent if "kept" in head else None,
    )


def _actor_of(debt: PendingCall) -> str | None:
    return None if debt.actor is None else debt.actor[0]


def link_info(cluster: str, hello: dict[str, Any]) -> LinkInfo:
    """What an agent says of itself."""
    return LinkInfo(
        cluster=cluster,
        carrier=carrier if (carrier := hello.get("carrier")) in ("dial_in", "ray_client") else "agent",
        protocol=int(hello["protocol"]),
        ray_version=str(hello["ray_version"]),
        python_version=str(hello["python_version"]),
        session_id=str(hello["session_id"]),
        os=str(hello["os"]),
        arch=str(hello["arch"]),
        job_id=str(hello["job_id"]),
    )


def message_keys(head: dict[str, Any]) -> list[Key]:
    """The calls that a message is about."""
    return [(str(task_id), int(attempt)) for task_id, attempt in head["keys"]]


def resource_snapshot(info: LinkInfo, head: dict[str, Any], now: float) -> ResourceSnapshot:
    """What the agent saw, with what it said of itself."""
    return ResourceSnapshot(
        cluster=info.cluster,
        taken_at=now,
        nodes=tuple(NodeSnapshot.from_dict(node) for node in head["nodes"]),
        source="agent",
        session_id=info.session_id,
        ray_version=info.ray_version,
        python_version=info.python_version,
        os=info.os,
        arch=info.arch,
        observed=head.get("observed"),
    )
