"""What is done with an item that is there: its end, its place in the queue."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.model.checks import priority_of
from ray_multicluster_scheduler.control_plane.admin_api.access import own_work
from ray_multicluster_scheduler.control_plane.admin_api.access.audit import record_if_others
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import Rule, caller_of
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import json_of, runtime_of
from ray_multicluster_scheduler.control_plane.admin_api.schemas import items as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import described
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.submission_checks import checked_reason
from ray_multicluster_scheduler.scheduler.lifecycle.events import HoldRequested, PriorityChanged, ReleaseRequested

router = APIRouter(prefix="/api/v1/items/{item_id}", tags=["items"])
EXPIRED = "EXPIRED"


@router.post("/cancel", **described(Rule.STEER, docs.CANCEL))
async def cancel(request: Request, item_id: str) -> dict[str, Any]:
    """Ask for its end: ``{"reason": "…", "force": false}``. Nothing happens to what is over, whose state is told."""
    said, runtime = await json_of(request), runtime_of(request)
    item = await there(request, item_id)
    changed = item is not None and not item.done()
    if item is not None and changed:
        reason = checked_reason(said.get("reason", "")) or "cancelled by the caller"
        runtime.kill(item, reason, force=said.get("force") is True)
        await runtime.until_durable()
        await record_if_others(request, item.task.owner, "cancel", item_id, {"reason": reason})
    return {"id": item_id, "state": EXPIRED if item is None else str(item.state), "changed": changed}


@router.post("/hold", **described(Rule.STEER, docs.HOLD))
async def hold(request: Request, item_id: str) -> dict[str, Any]:
    """Let it not start before it is released. What was sent to a cluster already goes on; its next attempt is held."""
    said, runtime = await json_of(request), runtime_of(request)
    item = await _waiting(request, item_id)
    reason, before = checked_reason(said.get("reason", "")), _held(request, item)
    runtime.tell(HoldRequested(item_id, reason))
    await runtime.until_durable()
    await record_if_others(request, item.task.owner, "hold", item_id, {"reason": reason})
    return {**_now(request, item), "changed": before != reason}


@router.post("/release", **described(Rule.STEER, docs.RELEASE))
async def release(request: Request, item_id: str) -> dict[str, Any]:
    """The end of hold."""
    runtime = runtime_of(request)
    item = await _waiting(request, item_id)
    before = _held(request, item)
    runtime.tell(ReleaseRequested(item_id))
    await runtime.until_durable()
    await record_if_others(request, item.task.owner, "release", item_id)
    return {**_now(request, item), "changed": before is not None}


@router.post("/priority", **described(Rule.STEER, docs.PRIORITY))
async def set_priority(request: Request, item_id: str) -> dict[str, Any]:
    """``{"priority": 5}``: from now on it waits with this."""
    said, runtime = await json_of(request), runtime_of(request)
    priority = priority_of(said.get("priority"))
    item = await _waiting(request, item_id)
    if not caller_of(request).steers_all:
        limits = runtime.machine.limits_of(item.task.owner)
        own_work.check_priority(limits, item.task.owner, priority, item_id)
    record = runtime.record(item_id)
    before = None if record is None else record.wanted.priority
    runtime.tell(PriorityChanged(item_id, priority))
    await runtime.until_durable()
    await record_if_others(request, item.task.owner, "priority", item_id, {"priority": priority})
    return {**_now(request, item), "priority": priority, "changed": before != priority}


async def there(request: Request, item_id: str) -> Item | None:
    """For whoever may steer it; None: EXPIRED. Raises UnknownItemError, NotAllowedError."""
    item = await runtime_of(request).find_item(item_id)
    if item is not None:
        own_work.check_item_steered(request, item.task.owner, item_id)
    return item


async def _waiting(request: Request, item_id: str) -> Item:
    """One that is not over. Raises SchedulerError if it is, and as :func:`there` does."""
    item = await there(request, item_id)
    if item is None or item.done():
        state = EXPIRED if item is None else str(item.state)
        anyway = " --anyway" if state == TaskState.SUCCEEDED else ""  # else it is refused
        raise SchedulerError(
            f"{item_id} is over: {state}.",
            task_id=item_id,
            next_step=f"`rmcs task retry {item_id}{anyway}` (POST /api/v1/items/{{id}}/retry), if it is to run again",
        )
    return item


def _now(request: Request, item: Item) -> dict[str, Any]:
    return {"id": item.id, "state": str(item.state), "held": _held(request, item) is not None}


def _held(request: Request, item: Item) -> str | None:
    """Why it is kept from starting; None: it is not."""
    record = runtime_of(request).record(item.id)
    return None if record is None else record.held
