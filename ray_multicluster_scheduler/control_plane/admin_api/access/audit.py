"""record_action(): what operators and admins did, and who they were, is an event like any other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import Request

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.redaction.patterns import masked_line
from ray_multicluster_scheduler.control_plane.admin_api.access.recent_activity import Lately
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import caller_of
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.control_plane.store import OperationRecord
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import ACTION

_log = get_logger(__name__)
_LONGEST = 256


async def record_action(request: Request, action: str, subject: str, details: Mapping[str, Any] | None = None) -> None:
    """After it was done; written when this returns. ``details`` is for everybody who may look at the fleet: what
    looks like a secret in its texts is masked. Raises ServiceUnavailableError if it cannot be written."""
    caller = caller_of(request)
    runtime: ServiceRuntime = request.app.state.runtime
    note_action(runtime, caller.user, caller.token, action, subject, details)
    await runtime.durable()


def note_action(
    runtime: ServiceRuntime,
    user: str,
    token: str | None,
    action: str,
    subject: str,
    details: Mapping[str, Any] | None = None,
) -> None:
    """The same for what nobody asked for over HTTP, on the loop; written soon."""
    said = {name: _told(value) for name, value in (details or {}).items() if value not in ("", None)}
    words = "".join(f" {name}={value!r}" for name, value in said.items())
    what = subject[:_LONGEST]
    extra = {"action": action, "subject": what, "user": user, "token": token, "details": said}
    done = repr(action) if " " in action else action
    _log.info("action=%s subject=%r user=%r token=%s%s", done, what, user, token or "none", words, extra=extra)
    document = json.dumps({"action": action, "token": token, "details": said}).encode()
    runtime.news.note(OperationRecord(ACTION, what, runtime.clock.now(), user, document))


def _told(value: Any) -> Any:
    return masked_line(value) if isinstance(value, str) else value


async def record_if_others(
    request: Request, owner: str, action: str, subject: str, details: Mapping[str, Any] | None = None
) -> None:
    """The same, unless it was the owner's own."""
    if caller_of(request).user != owner:
        await record_action(request, action, subject, {"owner": owner, **(details or {})})


async def record_submitted(request: Request, items: Iterable[Item | SchedulerError]) -> None:
    """What somebody has had run as another one's: one action for each owner, with its first item and their number."""
    user = caller_of(request).user
    others: dict[str, list[str]] = {}
    for one in items:
        if isinstance(one, Item) and one.task.owner != user:
            others.setdefault(one.task.owner, []).append(one.id)
    for owner, ids in others.items():
        await record_action(request, "submit", ids[0], {"owner": owner, "items": len(ids)})


async def record_called(request: Request, actor: Item) -> None:
    """A call of somebody else's actor, the first one of each user."""
    user = caller_of(request).user
    if actor.task.owner != user:
        called: Lately = request.app.state.called_actors
        if not called.has(user, actor.id):
            called.note(user, actor.id)
            await record_action(request, "call", actor.id, {"owner": actor.task.owner})
