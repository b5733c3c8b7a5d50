"""Clusters, jobs, actors, owners, and what a client needs to know of the control plane."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ray_multicluster_scheduler import __version__
from ray_multicluster_scheduler.app.client_api.embedded import explanation, fleet_control
from ray_multicluster_scheduler.app.client_api.options import explained_by
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.admin_api.access.audit import record_action
from ray_multicluster_scheduler.control_plane.admin_api.access.own_work import check_item_seen
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import Rule, caller_of, needs
from ray_multicluster_scheduler.control_plane.admin_api.history_trace import history_trace
from ray_multicluster_scheduler.control_plane.admin_api.routes.asking import Answer, json_of, runtime_of
from ray_multicluster_scheduler.control_plane.admin_api.routes.task_fields import task_from
from ray_multicluster_scheduler.scheduler.lifecycle.events import QueuePaused, QueueResumed
from ray_multicluster_scheduler.simulation.trace import trace_text

router = APIRouter(prefix="/api/v1", tags=["fleet"])


@router.get("/fleet", **needs(Rule.KNOWN))
async def fleet(request: Request) -> Response:
    """What a client has to know to submit: settings, clusters, home directories."""
    runtime, caller = runtime_of(request), caller_of(request)
    return Answer(
        {
            "version": __version__,
            "control_plane": runtime.control_plane,
            "you": {"user": caller.user, "roles": sorted(caller.roles)},
            "settings": runtime.config.settings.model_dump(mode="json", exclude={"service_tls"}),
            "clusters": [one.name for one in runtime.config.clusters],
            "homes": list(runtime.homes),
        }
    )


@router.get("/clusters", **needs(Rule.KNOWN))
async def clusters(request: Request, refresh: bool = False) -> Response:
    """One row per cluster; ``refresh`` asks every one of them first."""
    runtime = runtime_of(request)
    if refresh:
        await runtime.health.check_all()
    return Answer({"clusters": explanation.cluster_rows(runtime)})


@router.get("/nodes", **needs(Rule.KNOWN))
async def nodes(request: Request) -> Response:
    """The nodes of all clusters as they were last seen, in Ray's words."""
    runtime = runtime_of(request)
    return Answer({"nodes": explanation.node_rows(runtime, runtime.machine.registry.names())})


@router.get("/clusters/{name}", **needs(Rule.KNOWN))
async def cluster(request: Request, name: str) -> Response:
    """One cluster, asked now."""
    runtime = runtime_of(request)
    runtime.check_cluster(name)
    await runtime.health.check(name)
    rows = explanation.cluster_rows(runtime)
    row = next(row for row in rows if row["name"] == name)
    return Answer({**row, "drained": fleet_control.is_drained(runtime, name)})


@router.get("/clusters/{name}/drained", **needs(Rule.KNOWN))
async def drained(request: Request, name: str) -> dict[str, Any]:
    """Is nothing of ours there any more? None if it is open for new work."""
    return {"drained": fleet_control.is_drained(runtime_of(request), name)}


@router.post("/clusters/{name}/cordon", **needs(Rule.OPERATE))
async def cordon(request: Request, name: str) -> dict[str, Any]:
    """Close it for new work."""
    return await _cordoned(request, name, cordoned=True)


@router.post("/clusters/{name}/uncordon", **needs(Rule.OPERATE))
async def uncordon(request: Request, name: str) -> dict[str, Any]:
    """Open it again."""
    return await _cordoned(request, name, cordoned=False)


async def _cordoned(request: Request, name: str, *, cordoned: bool) -> dict[str, Any]:
    runtime = runtime_of(request)
    items = fleet_control.cordon(runtime, name, cordoned=cordoned)
    await runtime.durable()
    await record_action(request, "cordon" if cordoned else "uncordon", name)
    return {"items": items}


@router.post("/clusters/{name}/declare-dead", **needs(Rule.OPERATE))
async def declare_dead(request: Request, name: str) -> dict[str, Any]:
    """Settle all that was there now: ``{"reason": "…", "force": false}``."""
    said, runtime = await json_of(request), runtime_of(request)
    reason = explained_by(said.get("reason", ""))
    items = await fleet_control.declare_dead(runtime, name, reason, force=said.get("force") is True)
    await runtime.durable()
    await record_action(request, "declare dead", name, {"reason": reason, "force": said.get("force") is True})
    return {"items": items}


@router.post("/queue/{what}/{name}/pause", **needs(Rule.OPERATE))
async def pause(request: Request, what: str, name: str) -> dict[str, Any]:
    """Start nothing new on a ``cluster``, or nothing new of an ``owner``."""
    said, runtime = await json_of(request), runtime_of(request)
    reason = explained_by(said.get("reason", ""))
    match what:
        case "cluster":
            runtime.check_cluster(name)
            runtime.tell(QueuePaused("cluster", name, reason))
        case "owner":
            runtime.tell(QueuePaused("owner", name, reason))
        case _:
            raise ConfigurationError(f"{what!r} has no queue.", next_step="name a cluster or an owner")
    await runtime.durable()
    await record_action(request, "pause", f"{what} {name}", {"reason": reason})
    return {what: name}


@router.post("/queue/{what}/{name}/resume", **needs(Rule.OPERATE))
async def resume(request: Request, what: str, name: str) -> dict[str, Any]:
    """The end of pause."""
    runtime = runtime_of(request)
    match what:
        case "cluster":
            runtime.check_cluster(name)
            runtime.tell(QueueResumed("cluster", name))
        case "owner":
            runtime.tell(QueueResumed("owner", name))
        case _:
            raise ConfigurationError(f"{what!r} has no queue.", next_step="name a cluster or an owner")
    await runtime.durable()
    await record_action(request, "resume", f"{what} {name}")
    return {what: name}


@router.post("/plan", **needs(Rule.KNOWN))
async def plan(request: Request) -> Response:
    """Where an item would go now, and why: ``{"task": {…}}``. Every cluster is asked first; nothing is submitted."""
    said, runtime = await json_of(request), runtime_of(request)
    task = task_from(said.get("task"))
    await runtime.health.check_all()
    return Answer(runtime.machine.plan(task, runtime.clock.now()).to_dict())


@router.get("/trace", **needs(Rule.SEE))
async def trace(request: Request) -> Response:
    """What has run, as a CSV trace for `rmcs simulate`."""
    items = await asyncio.to_thread(history_trace, runtime_of(request).store, _seen_by(request))
    return Response(trace_text(items), media_type="text/csv")


@router.get("/jobs", **needs(Rule.SEE))
async def jobs(request: Request) -> Response:
    """Every job that is remembered, oldest first."""
    return Answer({"jobs": await runtime_of(request).all_jobs(_seen_by(request))})


@router.get("/jobs/{job_id}", **needs(Rule.SEE))
async def job(request: Request, job_id: str) -> Response:
    """A job in Ray's words."""
    await check_item_seen(request, runtime_of(request), job_id)
    return Answer(await runtime_of(request).job(job_id))


def _seen_by(request: Request) -> str | None:
    """Whose items the caller sees; None: everybody's."""
    caller = caller_of(request)
    return None if caller.sees_all else caller.user
