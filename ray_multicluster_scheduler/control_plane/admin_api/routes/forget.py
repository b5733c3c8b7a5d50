"""Forget: what is over goes before its time."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.control_plane.admin_api.access import own_work
from ray_multicluster_scheduler.control_plane.admin_api.access.audit import record_if_others
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import Rule, caller_of
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import Answer, runtime_of
from ray_multicluster_scheduler.control_plane.admin_api.schemas import items as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import described
from ray_multicluster_scheduler.control_plane.runtime.job_status import EXPIRED

router = APIRouter(prefix="/api/v1", tags=["items"])


@router.delete("/items/{item_id}", **described(Rule.STEER, docs.FORGET))
async def forget(request: Request, item_id: str) -> Response:
    """Forget what is over: its history, output and values. From then on its id answers EXPIRED, and stays taken. What
    Ray keeps of a job is not touched."""
    runtime = runtime_of(request)
    await own_work.check_steered_by(caller_of(request), runtime, item_id)
    item = await runtime.find_item(item_id)
    if item is not None:
        needed = runtime.stored_arguments.needed()
        if not item.done():
            raise _not_now(item_id, f"it is {item.state}", "cancel it first")
        if item_id in needed:
            raise _not_now(item_id, "others that are not over need its value", "ask again when they are")
        if not await asyncio.to_thread(runtime.store.forget, item_id, needed):
            raise _not_now(item_id, "something of it is still to be done", "ask again in a moment")
        runtime.forget_ended(item_id)
        await record_if_others(request, item.task.owner, "forget", item_id)
    return Answer({"id": item_id, "state": EXPIRED})


def _not_now(item_id: str, why: str, next_step: str) -> SchedulerError:
    return SchedulerError(f"{item_id} cannot be forgotten now: {why}.", task_id=item_id, next_step=next_step)
