"""Routes of the queue and of owners: what waits, limits of an owner, pause and resume."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter, Request, Response

from ray_multicluster_scheduler.common.control_characters import check_identifier
from ray_multicluster_scheduler.common.exception import ConfigurationError, UnknownItemError
from ray_multicluster_scheduler.control_plane.admin_api.access.audit import record_action
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Rule, caller_of, check_seen
from ray_multicluster_scheduler.control_plane.admin_api.http.problems import JsonResponse
from ray_multicluster_scheduler.control_plane.admin_api.metrics import queue_counts
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import (
    MAX_ROWS,
    check_cluster,
    cursor_of,
    json_of,
    number_of,
    rows_at_most,
    runtime_of,
)
from ray_multicluster_scheduler.control_plane.admin_api.schemas import fleet as fleet_docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas import items as items_docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import described
from ray_multicluster_scheduler.control_plane.config.owner_limits import owner_limits_from
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.control_plane.runtime.explanation import current_wait_reasons
from ray_multicluster_scheduler.control_plane.runtime.input_checks import checked_reason
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.control_plane.store import ItemQuery as Query
from ray_multicluster_scheduler.scheduler.lifecycle.events import OwnerLimitsChanged, QueuePaused, QueueResumed

router = APIRouter(prefix="/api/v1")
MAX_OWNER_LENGTH = 256


@router.get("/queue", tags=["queue"], **described(Rule.SEE, items_docs.Queue))
async def queue(
    request: Request,
    owner: str | None = None,
    after: str | None = None,
    limit: int = 100,
    order: Literal["age", "position"] = "age",
) -> Response:
    """Numbers of waiting items, and the items with reason and position in the queue: longest wait first, in pages; or
    with ``order=position`` the next ``limit`` to start, then those that have no position. A submitter sees its own."""
    runtime, caller = runtime_of(request), caller_of(request)
    if owner is not None:
        check_seen(request, owner, f"what {owner} waits for")
    elif not caller.sees_all:
        owner = caller.user
    most, reasons = rows_at_most(limit), current_wait_reasons(runtime)
    query = Query(queue_counts.WAITING, owner=owner, after=number_of(after), limit=most, oldest_first=True)
    counts = await asyncio.to_thread(runtime.store.count_unfinished)
    if order == "age":
        page = await asyncio.to_thread(runtime.store.items, query)
        rows, next_page = queue_counts.waiting_rows(page.items, runtime, reasons), cursor_of(page.after)
    else:
        if after is not None:
            raise ConfigurationError("order=position has no pages.", next_step="leave after out, and raise limit")
        rows, next_page = queue_counts.first_rows(runtime, reasons, most, owner), None
        if len(rows) < most:
            page = await asyncio.to_thread(runtime.store.items, replace(query, limit=MAX_ROWS))
            others = queue_counts.waiting_rows(page.items, runtime, reasons)
            rows += [one for one in others if one["position"] is None][: most - len(rows)]
    return JsonResponse({**queue_counts.depths(counts, runtime, owner), "waiting": rows, "after": next_page})


@router.get("/owners", tags=["queue"], **described(Rule.SEE, items_docs.Owners))
async def owners(request: Request) -> Response:
    """Owners with unfinished items or limits: their numbers of items, and their limits."""
    caller, rows = caller_of(request), await _owners(runtime_of(request))
    return JsonResponse({"owners": [row for name, row in rows.items() if caller.may_see(name)]})


@router.get("/owners/{owner:path}", tags=["queue"], **described(Rule.SEE, items_docs.Owner))
async def one_owner(request: Request, owner: str) -> Response:
    """One owner, even if all its items are over."""
    check_seen(request, owner, f"what {owner} has")
    runtime = runtime_of(request)
    row = (await _owners(runtime)).get(owner)
    if row is None and (await asyncio.to_thread(runtime.store.items, Query(owner=owner, limit=1))).items:
        row = (await _owners(runtime, owner))[owner]
    if row is None:
        raise UnknownItemError(
            f"The owner {owner!r} is unknown: it has no stored items and no limits.",
            next_step="see `rmcs owner list` (GET /api/v1/owners)",
        )
    return JsonResponse(row)


@router.put("/owners/{owner:path}", tags=["queue"], **described(Rule.ADMINISTER, items_docs.Owner, items_docs.Limits))
async def set_limits(request: Request, owner: str) -> Response:
    """Set all limits of an owner, durably; limits that are not given get their defaults. Running items continue."""
    limits = owner_limits_from(await json_of(request))
    return await _limited(request, owner, limits)


@router.delete("/owners/{owner:path}", tags=["queue"], **described(Rule.ADMINISTER, items_docs.Owner))
async def reset_limits(request: Request, owner: str) -> Response:
    """Reset the limits of an owner to the settings."""
    return await _limited(request, owner, None)


async def _limited(request: Request, owner: str, limits: OwnerLimits | None) -> Response:
    runtime = runtime_of(request)
    if runtime.machine.limits().get(owner) is None:  # limits of an existing odd name can still be changed
        check_identifier("owner", owner)
    if len(owner) > MAX_OWNER_LENGTH:
        raise ConfigurationError(
            f"The name {owner[:50]!r}… has {len(owner)} characters.",
            next_step=f"use the name of an owner, of at most {MAX_OWNER_LENGTH}",
        )
    runtime.post_user_event(OwnerLimitsChanged(owner, limits))
    await runtime.until_durable()
    action = "reset limits" if limits is None else "set limits"
    await record_action(request, action, f"owner {owner}", None if limits is None else limits.model_dump())
    return JsonResponse((await _owners(runtime, owner))[owner])


async def _owners(runtime: ServiceRuntime, *also: str) -> dict[str, dict[str, Any]]:
    counts = await asyncio.to_thread(runtime.store.count_unfinished)
    return queue_counts.owner_rows(counts, runtime, also)


@router.post(
    "/queue/{what}/{name:path}/pause", tags=["fleet"], **described(Rule.OPERATE, fleet_docs.Paused, items_docs.Reason)
)
async def pause(request: Request, what: str, name: str) -> dict[str, Any]:
    """Pause a queue: start no new items on a ``cluster``, or of an ``owner``."""
    body, runtime = await json_of(request), runtime_of(request)
    reason = checked_reason(body.get("reason", ""))
    before = _paused(request, what, name)
    runtime.post_user_event(QueuePaused("cluster" if what == "cluster" else "owner", name, reason))
    await runtime.until_durable()
    await record_action(request, "pause", f"{what} {name}", {"reason": reason})
    return {what: name, "changed": before != reason}


@router.post("/queue/{what}/{name:path}/resume", tags=["fleet"], **described(Rule.OPERATE, fleet_docs.Paused))
async def resume(request: Request, what: str, name: str) -> dict[str, Any]:
    """Resume a paused queue."""
    runtime, before = runtime_of(request), _paused(request, what, name)
    runtime.post_user_event(QueueResumed("cluster" if what == "cluster" else "owner", name))
    await runtime.until_durable()
    await record_action(request, "resume", f"{what} {name}")
    return {what: name, "changed": before is not None}


def _paused(request: Request, what: str, name: str) -> str | None:
    """The reason of the pause of a cluster or owner; None: not paused. Raises ConfigurationError, NoSuchCluster."""
    machine = runtime_of(request).machine
    match what:
        case "cluster":
            check_cluster(request, name)
            return machine.registry.state(name).paused
        case "owner":
            paused = next((one.paused for one in machine.owner_rows() if one.name == name), None)
            if paused is None:  # a paused odd name can still be resumed
                check_identifier("owner", name)
            return paused
    raise ConfigurationError(f"There is no queue of {what!r}.", next_step="name a cluster or an owner")
