"""What waits, and whose it is."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from ray_multicluster_scheduler.common.exception import UnknownItemError
from ray_multicluster_scheduler.control_plane.admin_api import waiting
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import Rule, caller_of, check_seen
from ray_multicluster_scheduler.control_plane.admin_api.routes.asking import Answer, runtime_of
from ray_multicluster_scheduler.control_plane.admin_api.routes.paging import cursor_of, number_of, rows_at_most
from ray_multicluster_scheduler.control_plane.admin_api.schemas import queue as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.described import described
from ray_multicluster_scheduler.control_plane.admin_api.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.control_plane.store import Wanted as Query

router = APIRouter(prefix="/api/v1", tags=["queue"])


@router.get("/queue", **described(Rule.SEE, docs.QUEUE))
async def queue(request: Request, owner: str | None = None, after: str | None = None, limit: int = 100) -> Response:
    """How many wait, and what waits, newest first, with the reason; in pages. A submitter sees what is its own."""
    runtime, caller = runtime_of(request), caller_of(request)
    if owner is not None:
        check_seen(request, owner, f"what {owner} waits for")
    elif not caller.sees_all:
        owner = caller.user
    query = Query(waiting.WAITING, owner=owner, after=number_of(after), limit=rows_at_most(limit))
    page = await asyncio.to_thread(runtime.store.items, query)
    counts = await asyncio.to_thread(runtime.store.unfinished)
    rows = [waiting.waiting_row(one, runtime) for one in page.items]
    return Answer({**waiting.depths(counts, runtime, owner), "waiting": rows, "after": cursor_of(page.after)})


@router.get("/owners", **described(Rule.SEE, docs.OWNERS))
async def owners(request: Request) -> Response:
    """Everybody who has something that is not over, or limits: how much, and how much they may have."""
    caller = caller_of(request)
    return Answer({"owners": [row for row in await _owners(runtime_of(request)) if caller.may_see(row["owner"])]})


@router.get("/owners/{owner}", **described(Rule.SEE, docs.OWNER))
async def one_owner(request: Request, owner: str) -> Response:
    """One of them."""
    check_seen(request, owner, f"what {owner} has")
    row = next((row for row in await _owners(runtime_of(request)) if row["owner"] == owner), None)
    if row is None:
        raise UnknownItemError(
            f"{owner!r} has nothing here, and no limits.", next_step="GET /api/v1/owners names those who have"
        )
    return Answer(row)


async def _owners(runtime: ServiceRuntime) -> list[dict[str, Any]]:
    counts = await asyncio.to_thread(runtime.store.unfinished)
    paused = {row.name: row.paused for row in runtime.machine.owner_rows() if row.paused is not None}
    return waiting.owner_rows(counts, runtime.config.settings.owners, paused)
