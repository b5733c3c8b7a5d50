"""Queries about the cluster that this code runs on, in the format of the fleet queries outside."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from typing import Any

from ray_multicluster_scheduler.app.client_api.in_cluster import runtime_context
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model.decision import CandidateReport, Rejection, SchedulingDecision
from ray_multicluster_scheduler.common.model.resources import describe, fits, requestable


def row(cluster: str) -> dict[str, Any]:
    """Return the row of this cluster; None for values that are unknown inside."""
    ray = runtime_context.connected_ray()
    total, free = requestable(ray.cluster_resources()), ray.available_resources()
    return {
        "name": cluster,
        "state": "UP",
        "sentence": "",
        "cordoned": None,
        "cordon_reason": None,
        "items": None,
        "carrier": "native",
        "tasks_by": None,
        "other_control_planes": None,
        "tags": None,
        "prefer": None,
        "weight": None,
        "dashboard": None,
        "head_address": None,
        "nodes": len(_living_nodes(ray)),
        "total": total,
        "free": {name: float(free.get(name, 0.0)) for name in total},  # Ray leaves out what is used up
        "ray_version": ray.__version__,
        "python_version": platform.python_version(),
        "os": platform.system().lower(),
        "arch": platform.machine(),
    }


def nodes(cluster: str) -> list[dict[str, Any]]:
    """Return every living node as Ray reports it, with its cluster."""
    return [{**node, "Cluster": cluster} for node in _living_nodes(runtime_context.connected_ray())]


def check_name(name: str, cluster: str) -> None:
    """Refuse other clusters, which are unknown here. Raises ConfigurationError."""
    if name != cluster:
        raise ConfigurationError(
            f"Cluster {name!r} is unknown here: this code runs inside cluster {cluster!r}.",
            cluster=cluster,
            next_step="query other clusters from outside",
        )


def plan(needs: Mapping[str, float], cluster: str) -> SchedulingDecision:
    """Decide whether one of the nodes has room for this now."""
    from ray._private.state import available_resources_per_node  # noqa: PLC0415 - inside a cluster only

    ray = runtime_context.connected_ray()
    nodes = _living_nodes(ray)
    free = {str(node): requestable(amounts) for node, amounts in available_resources_per_node().items()}
    rejection = None
    if not any(fits(needs, requestable(node["Resources"])) for node in nodes):
        rejection = Rejection("TOO_BIG", f"no node of {cluster} has {describe(needs)} in all", permanent=False)
    elif not any(fits(needs, free.get(node["NodeID"], {})) for node in nodes):
        rejection = Rejection("NO_CAPACITY", f"no node of {cluster} has {describe(needs)} free now")
    return SchedulingDecision(
        task_id="plan",
        at=time.time(),
        cluster=None if rejection else cluster,
        code=rejection.code if rejection else "PLACED",
        sentence=rejection.sentence if rejection else f"it runs on {cluster}, the cluster of this code",
        candidates=(CandidateReport(cluster, (rejection,) if rejection else ()),),
        unblocked_by="a node of that size becomes free or is added" if rejection else None,
    )


def _living_nodes(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node.get("Alive")]
