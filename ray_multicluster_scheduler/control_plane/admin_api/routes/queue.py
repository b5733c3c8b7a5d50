"""What waits, and whose it is."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from ray_multicluster_scheduler.common.exception import ConfigurationError, UnknownItemError
from ray_multicluster_scheduler.common.identifier_checks import check_word
from ray_multicluster_scheduler.control_plane.admin_api.access.audit import record_action
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import Rule, caller_of, check_seen
from ray_multicluster_scheduler.control_plane.admin_api.metrics import queue_counts
from ray_multicluster_scheduler.control_plane.admin_api.routes.paging import cursor_of, number_of, rows_at_most
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import Answer, json_of, runtime_of
from ray_multicluster_scheduler.control_plane.admin_api.schemas import queue as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import described
from ray_multicluster_scheduler.control_plane.config.owner_limits import owner_limits_from
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.control_plane.runtime.explanation import current_wait_reasons
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.control_plane.store import ItemQuery as Query
from ray_multicluster_scheduler.scheduler.lifecycle.events import OwnerLimitsChanged

router = APIRouter(prefix="/api/v1", tags=["queue"])
LONGEST_OWNER = 256


@router.get("/queue", **described(Rule.SEE, docs.QUEUE))
async def queue(request: Request, owner: str | None = None, after: str | None = None, limit: int = 100) -> Response:
    """How many wait, and what waits, longest first, with the reason and its position in the queue; in pages. A
    submitter sees what is its own."""
    runtime, caller = runtime_of(request), caller_of(request)
    if owner is not None:
        check_seen(request, owner, f"what {owner} waits for")
    elif not caller.sees_all:
        owner = caller.user
    query = Query(
        queue_counts.WAITING, owner=owner, after=number_of(after), limit=rows_at_most(limit), oldest_first=True
    )
    page = await asyncio.to_thread(runtime.store.items, query)
    counts = await asyncio.to_thread(runtime.store.count_unfinished)
    rows = queue_counts.waiting_rows(page.items, runtime, current_wait_reasons(runtime))
    return Answer({**queue_counts.depths(counts, runtime, owner), "waiting": rows, "after": cursor_of(page.after)})


@router.get("/owners", **described(Rule.SEE, docs.OWNERS))
async def owners(request: Request) -> Response:
    """Everybody who has something that is not over, or limits: how much, and how much they may have."""
    caller, rows = caller_of(request), await _owners(runtime_of(request))
    return Answer({"owners": [row for name, row in rows.items() if caller.may_see(name)]})


@router.get("/owners/{owner:path}", **described(Rule.SEE, docs.OWNER))
async def one_owner(request: Request, owner: str) -> Response:
    """One of them, or one who has had something that is remembered."""
    check_seen(request, owner, f"what {owner} has")
    runtime = runtime_of(request)
    row = (await _owners(runtime)).get(owner)
    if row is None and (await asyncio.to_thread(runtime.store.items, Query(owner=owner, limit=1))).items:
        row = (await _owners(runtime, owner))[owner]  # all that it had is over
    if row is None:
        raise UnknownItemError(
            f"{owner!r} has had nothing here that is remembered, and no limits.",
            next_step="see `rmcs owner list` (GET /api/v1/owners)",
        )
    return Answer(row)


@router.put("/owners/{owner:path}", **described(Rule.ADMINISTER, docs.SET_LIMITS))
async def set_limits(request: Request, owner: str) -> Response:
    """From now on these limits hold for an owner, also after a restart. They are all that it has: one that is not named
    is as it is by default. What runs goes on, whatever they are."""
    limits = owner_limits_from(await json_of(request))
    return await _limited(request, owner, limits)


@router.delete("/owners/{owner:path}", **described(Rule.ADMINISTER, docs.RESET_LIMITS))
async def reset_limits(request: Request, owner: str) -> Response:
    """The limits in the settings hold again."""
    return await _limited(request, owner, None)


async def _limited(request: Request, owner: str, limits: OwnerLimits | None) -> Response:
    runtime = runtime_of(request)
    if runtime.machine.limits().get(owner) is None:  # those that somebody has can be changed and reset
        check_word("owner", owner)
    if len(owner) > LONGEST_OWNER:
        raise ConfigurationError(
            f"The name {owner[:50]!r}… has {len(owner)} characters.",
            next_step=f"use the name of an owner, of at most {LONGEST_OWNER}",
        )
    runtime.tell(OwnerLimitsChanged(owner, limits))
    await runtime.until_durable()
    action = "reset limits" if limits is None else "set limits"
    await record_action(request, action, f"owner {owner}", None if limits is None else limits.model_dump())
    return Answer((await _owners(runtime, owner))[owner])


async def _owners(runtime: ServiceRuntime, *also: str) -> dict[str, dict[str, Any]]:
    counts = await asyncio.to_thread(runtime.store.count_unfinished)
    return queue_counts.owner_rows(counts, runtime, also)
