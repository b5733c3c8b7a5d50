"""Parses responses of the dashboard for ``DashboardClient``: nodes to a ResourceSnapshot, and the list of actors. Pure
functions; values that the responses do not contain are None.

Ray camel-cases the keys of ``/api/cluster_status``, resource names included. The totals of ``/api/v0/nodes`` have the
real names, so each name is camel-cased and looked up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from ray_multicluster_scheduler.common.model import NodeSnapshot, Resources, ResourceSnapshot
from ray_multicluster_scheduler.common.model.actor_description import ACTOR_NAMESPACE
from ray_multicluster_scheduler.common.model.resources import requestable

NODES_ROUTE = "/api/v0/nodes?detail=1&limit=10000&filter_keys=state&filter_predicates=%3D&filter_values=ALIVE"
STATUS_ROUTE = "/api/cluster_status"
SUMMARY_ROUTE = "/nodes?view=summary"
VERSION_ROUTE = "/api/version"


@dataclass(frozen=True, slots=True)
class SnapshotResponses:
    """The JSON of the four routes. ``summary`` is None if this Ray does not have it."""

    version: Any
    nodes: Any
    status: Any
    summary: Any | None


def build_snapshot(cluster: str, now: float, responses: SnapshotResponses) -> ResourceSnapshot:
    """Build a snapshot. Raises ValueError, KeyError or TypeError if a response is malformed."""
    version = responses.version
    # Empty while the cluster starts and Ray's monitor has not reported yet.
    status = responses.status["data"].get("clusterStatus") or {}
    report = status.get("loadMetricsReport") or {}
    usage = report.get("usageByNode") or {}
    rows = [row for row in responses.nodes["data"]["result"]["result"] if row["state"] == "ALIVE"]
    nodes = tuple(_node(row, usage) for row in rows)
    return ResourceSnapshot(
        cluster=cluster,
        taken_at=now,
        nodes=nodes,
        source="http",
        session_id=version.get("session_name"),
        ray_version=version["ray_version"],
        observed=_observed(responses.summary, [node.node_id for node in nodes]),
        reported_at=None if status.get("time") is None else float(status["time"]),
    )


def camel_case(name: str) -> str:
    """Convert a key as Ray's dashboard does: ``my_res_two`` becomes ``myResTwo``."""
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def _node(row: Mapping[str, Any], usage: Mapping[str, Any]) -> NodeSnapshot:
    total = requestable(row["resources_total"])
    return NodeSnapshot(
        node_id=row["node_id"],
        total=total,
        free=_free(total, usage.get(row["node_id"])),
        is_head=bool(row.get("is_head_node", False)),
    )


def _free(total: Resources, used_by_camel_name: Mapping[str, Any] | None) -> dict[str, float] | None:
    """Total minus used; None if the status lacks the node, or if two names have the same camel case."""
    if used_by_camel_name is None:
        return None
    camel = {name: camel_case(name) for name in total}
    if len(set(camel.values())) < len(camel) or any(key not in used_by_camel_name for key in camel.values()):
        return None
    return {name: max(0.0, amount - float(used_by_camel_name[camel[name]][0])) for name, amount in total.items()}


def _observed(summary: Any | None, node_ids: Sequence[str]) -> dict[str, float] | None:
    """Physical utilization of all nodes; None unless every live node has reported."""
    if summary is None:
        return None
    rows = {row["raylet"]["nodeId"]: row for row in summary["data"]["summary"] if row.get("raylet", {}).get("nodeId")}
    live = [rows[node_id] for node_id in node_ids if node_id in rows]
    if not live or len(live) < len(node_ids):
        return None
    observed: dict[str, float] = {}
    if all("cpu" in row and row.get("cpus") for row in live):
        cores = sum(row["cpus"][0] for row in live)
        observed["cpu"] = _fraction(sum(row["cpu"] / 100 * row["cpus"][0] for row in live), cores)
    if all(row.get("mem") for row in live):
        observed["memory"] = _fraction(sum(row["mem"][3] for row in live), sum(row["mem"][0] for row in live))
    gpus = [gpu.get("utilizationGpu") for row in live for gpu in row.get("gpus") or ()]
    if gpus and all(use is not None for use in gpus):
        observed["gpu"] = _fraction(sum(gpus) / 100, len(gpus))
    return observed or None


def _fraction(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole else 0.0


def actors_route(name: str) -> str:
    """The route that lists the actors of this name in our namespace, dead ones included."""
    query = [("detail", "1"), ("limit", "1000")]
    for key, value in (("name", name), ("ray_namespace", ACTOR_NAMESPACE)):
        query += [("filter_keys", key), ("filter_predicates", "="), ("filter_values", value)]
    return f"/api/v0/actors?{urlencode(query)}"


def has_living_actor(response: Any, name: str) -> bool:
    """Whether one of them is detached and not dead. Raises KeyError, TypeError if the response is malformed."""
    rows = response["data"]["result"]["result"]
    return any(row["name"] == name and row["state"] != "DEAD" and row.get("is_detached", True) for row in rows)
