"""From a dashboard's JSON to a snapshot. Pure: what the answers do not say stays None.

Ray camel-cases the keys of ``/api/cluster_status``, resource names included; the totals of
``/api/v0/nodes`` carry the real names, so a name is translated forward and looked up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray_multicluster_scheduler.common.model import NodeSnapshot, Resources, ResourceSnapshot

NODES_ROUTE = "/api/v0/nodes?detail=1&limit=10000&filter_keys=state&filter_predicates=%3D&filter_values=ALIVE"
STATUS_ROUTE = "/api/cluster_status"
SUMMARY_ROUTE = "/nodes?view=summary"
VERSION_ROUTE = "/api/version"


@dataclass(frozen=True, slots=True)
class Answers:
    """The JSON of the four routes. ``summary`` is None where a Ray does not offer it."""

    version: Any
    nodes: Any
    status: Any
    summary: Any | None


def build_snapshot(cluster: str, now: float, answers: Answers) -> ResourceSnapshot:
    """Put the answers together. Raises ValueError, KeyError or TypeError if they have another shape than Ray's."""
    version = answers.version
    usage = _usage_by_node(answers.status)
    rows = [row for row in answers.nodes["data"]["result"]["result"] if row["state"] == "ALIVE"]
    nodes = tuple(_node(row, usage) for row in rows)
    return ResourceSnapshot(
        cluster=cluster,
        taken_at=now,
        nodes=nodes,
        source="http",
        session_id=version.get("session_name"),
        ray_version=version["ray_version"],
        observed=_observed(answers.summary, [node.node_id for node in nodes]),
    )


def camel_case(name: str) -> str:
    """As Ray's dashboard writes keys: ``my_res_two`` becomes ``myResTwo``."""
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def _node(row: Mapping[str, Any], usage: Mapping[str, Any]) -> NodeSnapshot:
    total = {name: float(amount) for name, amount in row["resources_total"].items()}
    return NodeSnapshot(
        node_id=row["node_id"],
        total=total,
        free=_free(total, usage.get(row["node_id"])),
        is_head=bool(row.get("is_head_node", False)),
    )


def _free(total: Resources, used_by_camel_name: Mapping[str, Any] | None) -> dict[str, float] | None:
    """Total minus used, or None if the status does not know the node, or two names became one."""
    if used_by_camel_name is None:
        return None
    camel = {name: camel_case(name) for name in total}
    if len(set(camel.values())) < len(camel) or any(key not in used_by_camel_name for key in camel.values()):
        return None
    return {name: max(0.0, amount - float(used_by_camel_name[camel[name]][0])) for name, amount in total.items()}


def _usage_by_node(status: Any) -> Mapping[str, Any]:
    """Empty while the cluster is starting: Ray's monitor has not reported yet."""
    report = (status["data"].get("clusterStatus") or {}).get("loadMetricsReport") or {}
    usage = report.get("usageByNode") or {}
    return dict(usage)


def _observed(summary: Any | None, node_ids: Sequence[str]) -> dict[str, float] | None:
    """Physical use over all nodes; None unless every live node has reported."""
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
