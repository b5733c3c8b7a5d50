"""Clusters, jobs, actors, owners, and what a client needs to know of the control plane."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from ray_multicluster_scheduler import __version__
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.identifier_checks import check_word
from ray_multicluster_scheduler.control_plane.admin_api.access import own_work
from ray_multicluster_scheduler.control_plane.admin_api.access.audit import record_action
from ray_multicluster_scheduler.control_plane.admin_api.access.config_redaction import of_owner
from ray_multicluster_scheduler.control_plane.admin_api.access.own_work import seen_by
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import (
    Rule,
    caller_of,
    only_owner_of,
    still_let_in,
)
from ray_multicluster_scheduler.control_plane.admin_api.metrics.history_trace import history_trace
from ray_multicluster_scheduler.control_plane.admin_api.routes.new_items import no_task, with_id
from ray_multicluster_scheduler.control_plane.admin_api.routes.paging import cursor_of, number_of, rows_at_most
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import (
    Answer,
    check_cluster,
    json_of,
    runtime_of,
)
from ray_multicluster_scheduler.control_plane.admin_api.schemas import fleet as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import described
from ray_multicluster_scheduler.control_plane.config.item_models import item_from
from ray_multicluster_scheduler.control_plane.runtime import explanation, fleet_control
from ray_multicluster_scheduler.control_plane.runtime.explanation import current_wait_reasons
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import SubmitRequest
from ray_multicluster_scheduler.control_plane.runtime.submission_checks import checked_reason
from ray_multicluster_scheduler.control_plane.store import ItemQuery
from ray_multicluster_scheduler.scheduler.lifecycle.events import QueuePaused, QueueResumed
from ray_multicluster_scheduler.simulation.workloads.trace import trace_text
from ray_multicluster_scheduler.simulation.workloads.workload import Item

_ROWS_AT_ONCE = 50
router = APIRouter(prefix="/api/v1", tags=["fleet"])


@router.get("/fleet", **described(Rule.KNOWN, docs.FLEET))
async def fleet(request: Request) -> Response:
    """What a client has to know to submit: settings, clusters, home directories."""
    runtime, caller = runtime_of(request), caller_of(request)
    settings = runtime.settings_now()
    return Answer(
        {
            "version": __version__,
            "control_plane": runtime.control_plane,
            "you": {"user": caller.user, "roles": sorted(caller.roles)},
            "settings": of_owner(settings.model_dump(mode="json", exclude={"service_tls"}), only_owner_of(request)),
            "clusters": [one.name for one in runtime.config.clusters],
            "homes": list(runtime.homes),
            "not_ready": runtime.store.write_problem or runtime.refusal,
        }
    )


@router.get("/clusters", **described(Rule.KNOWN, docs.CLUSTERS))
async def clusters(request: Request, refresh: bool = False) -> Response:
    """One row per cluster; ``refresh`` asks every one of them first. Without it, too, those that nobody asked for
    ``health_check_interval_s`` are asked, and the next answer tells of it."""
    runtime = runtime_of(request)
    if refresh:
        await runtime.health.check_all()
    else:
        runtime.event_publisher.request_checks()
    return Answer({"clusters": explanation.cluster_rows(runtime)})


@router.get("/nodes", **described(Rule.KNOWN, docs.NODES))
async def nodes(request: Request) -> Response:
    """The nodes of all clusters as they were last seen, in Ray's words."""
    runtime = runtime_of(request)
    return Answer({"nodes": explanation.node_rows(runtime, runtime.machine.registry.names())})


@router.get("/clusters/{name}/drained", **described(Rule.KNOWN, docs.DRAINED))
async def drained(request: Request, name: str) -> dict[str, Any]:
    """Is nothing of ours there any more? None if it is open for new work."""
    check_cluster(request, name)
    return {"drained": fleet_control.is_drained(runtime_of(request), name)}


@router.post("/clusters/{name}/cordon", **described(Rule.OPERATE, docs.CORDON))
async def cordon(request: Request, name: str) -> dict[str, Any]:
    """Close it for new work."""
    return await _cordoned(request, name, cordoned=True)


@router.post("/clusters/{name}/uncordon", **described(Rule.OPERATE, docs.UNCORDON))
async def uncordon(request: Request, name: str) -> dict[str, Any]:
    """Open it again."""
    return await _cordoned(request, name, cordoned=False)


async def _cordoned(request: Request, name: str, *, cordoned: bool) -> dict[str, Any]:
    runtime = runtime_of(request)
    check_cluster(request, name)
    changed = fleet_control.is_cordoned(runtime, name) != cordoned
    items = fleet_control.cordon(runtime, name, cordoned=cordoned)
    await runtime.until_durable()
    await record_action(request, "cordon" if cordoned else "uncordon", name)
    return {"items": items, "changed": changed}


@router.post("/clusters/{name}/declare-dead", **described(Rule.OPERATE, docs.DECLARE_DEAD))
async def declare_dead(request: Request, name: str) -> dict[str, Any]:
    """Settle all that was there now: ``{"reason": "…", "force": false}``."""
    said, runtime = await json_of(request), runtime_of(request)
    reason = checked_reason(said.get("reason", ""))
    check_cluster(request, name)
    items = await fleet_control.declare_dead(runtime, name, reason, force=said.get("force") is True)
    await runtime.until_durable()
    await record_action(request, "declare dead", name, {"reason": reason, "force": said.get("force") is True})
    return {"items": items}


@router.post("/queue/{what}/{name:path}/pause", **described(Rule.OPERATE, docs.PAUSE))
async def pause(request: Request, what: str, name: str) -> dict[str, Any]:
    """Start nothing new on a ``cluster``, or nothing new of an ``owner``."""
    said, runtime = await json_of(request), runtime_of(request)
    reason = checked_reason(said.get("reason", ""))
    before = _paused(request, what, name)
    runtime.tell(QueuePaused("cluster" if what == "cluster" else "owner", name, reason))
    await runtime.until_durable()
    await record_action(request, "pause", f"{what} {name}", {"reason": reason})
    return {what: name, "changed": before != reason}


@router.post("/queue/{what}/{name:path}/resume", **described(Rule.OPERATE, docs.RESUME))
async def resume(request: Request, what: str, name: str) -> dict[str, Any]:
    """The end of pause."""
    runtime, before = runtime_of(request), _paused(request, what, name)
    runtime.tell(QueueResumed("cluster" if what == "cluster" else "owner", name))
    await runtime.until_durable()
    await record_action(request, "resume", f"{what} {name}")
    return {what: name, "changed": before is not None}


def _paused(request: Request, what: str, name: str) -> str | None:
    """Why the queue of a cluster or an owner is paused; None: it is not. Raises ConfigurationError, NoSuchCluster."""
    machine = runtime_of(request).machine
    match what:
        case "cluster":
            check_cluster(request, name)
            return machine.registry.state(name).paused
        case "owner":
            paused = next((one.paused for one in machine.owner_rows() if one.name == name), None)
            if paused is None:  # one that is can be resumed
                check_word("owner", name)
            return paused
    raise ConfigurationError(f"{what!r} has no queue.", next_step="name a cluster or an owner")


@router.post("/plan", **described(Rule.KNOWN, docs.PLAN))
async def plan(request: Request) -> Response:
    """Where an item would go now, and why: ``{"task": {…}}``. Every cluster is asked first; nothing is submitted. What
    would be refused as somebody else's, or for its priority, is refused here, too."""
    said, runtime, caller = await json_of(request), runtime_of(request), caller_of(request)
    if not isinstance(said.get("task"), Mapping):
        raise no_task()
    wanted = own_work.admitted(caller, runtime.machine.limits_of, SubmitRequest(item_from(with_id(said["task"]))))
    await runtime.health.check_all()
    return Answer(runtime.machine.plan(wanted.task, runtime.clock.now()).to_dict())


@router.get("/trace", **described(Rule.SEE, docs.TRACE))
async def trace(request: Request) -> Response:
    """What has run, as a CSV trace for `rmcs simulate`."""
    pages = history_trace(runtime_of(request).store, only_owner_of(request))
    return StreamingResponse(_lines(pages, partial(still_let_in, request)), media_type="text/csv")


async def _lines(pages: Iterator[list[Item]], still: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Page by page, as fast as they are read; only the first one has the names of the columns."""
    head = True
    while still() and (page := await asyncio.to_thread(next, pages, None)) is not None:
        text = trace_text(page)
        yield (text if head else text.partition("\n")[2]).encode(errors="backslashreplace")
        head = False


@router.get("/jobs", **described(Rule.SEE, docs.JOBS))
async def jobs(request: Request, after: str | None = None, limit: int = 100) -> Response:
    """The jobs that are remembered, newest first, in pages: ask again with the ``after`` of the answer for more."""
    runtime, only = runtime_of(request), only_owner_of(request)
    query = ItemQuery(kind="job", owner=only, after=number_of(after), limit=rows_at_most(limit))
    page = await asyncio.to_thread(runtime.store.items, query)
    rows, reasons = [], current_wait_reasons(runtime)  # once for all of them: each costs a decision
    for number, one in enumerate(page.items, 1):
        rows.append(await runtime.job(one.new.id, reasons=reasons))
        if number % _ROWS_AT_ONCE == 0:
            await asyncio.sleep(0)  # others have their turn
    return Answer({"jobs": rows, "after": cursor_of(page.after)})


@router.get("/jobs/{job_id}", **described(Rule.SEE, docs.JOB))
async def job(request: Request, job_id: str) -> Response:
    """A job in Ray's words."""
    return Answer(await runtime_of(request).job(job_id, seen_by(caller_of(request))))
