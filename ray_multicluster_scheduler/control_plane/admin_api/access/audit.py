"""Audit: records what operators and admins did as log lines and events, with user and token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import Request

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import caller_of
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.control_plane.runtime.service.stored_arguments import RecentPairs


async def record_action(request: Request, action: str, subject: str, details: Mapping[str, Any] | None = None) -> None:
    """Record an action of the caller after it was done; durable when this returns. ``details`` are visible to all who
    may see the fleet, with secrets masked. Raises ServiceUnavailableError if it cannot be written."""
    caller = caller_of(request)
    runtime: ServiceRuntime = request.app.state.runtime
    runtime.audit(caller.user, caller.token, action, subject, details)
    await runtime.until_durable()


async def record_if_others(
    request: Request, owner: str, action: str, subject: str, details: Mapping[str, Any] | None = None
) -> None:
    """Record an action on an item of another user; the owner's own actions are not recorded."""
    if caller_of(request).user != owner:
        await record_action(request, action, subject, {"owner": owner, **(details or {})})


async def record_submitted(request: Request, items: Iterable[Item | SchedulerError]) -> None:
    """Record submissions on behalf of other owners: one action per owner, with its first item and their number."""
    user = caller_of(request).user
    others: dict[str, list[str]] = {}
    for one in items:
        if isinstance(one, Item) and one.task.owner != user:
            others.setdefault(one.task.owner, []).append(one.id)
    for owner, ids in others.items():
        await record_action(request, "submit", ids[0], {"owner": owner, "items": len(ids)})


async def record_called(request: Request, actor: Item) -> None:
    """Record the first call of another user's actor by each caller."""
    user = caller_of(request).user
    if actor.task.owner != user:
        called: RecentPairs = request.app.state.called_actors
        if not called.has(user, actor.id):
            called.note(user, actor.id)
            await record_action(request, "call", actor.id, {"owner": actor.task.owner})
