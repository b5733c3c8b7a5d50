"""record_action(): what operators and admins did, and who they were, is an event like any other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Request

from ray_multicluster_scheduler.app.client_api.events.event import ACTION
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import caller_of
from ray_multicluster_scheduler.control_plane.admin_api.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.control_plane.store import Note

_log = get_logger(__name__)
_LONGEST = 256


async def record_action(request: Request, action: str, subject: str, details: Mapping[str, Any] | None = None) -> None:
    """After it was done; written when this returns. ``details`` has no secrets: it is for everybody who may look at the
    fleet. Raises ServiceUnavailableError if it cannot be written."""
    caller = caller_of(request)
    runtime: ServiceRuntime = request.app.state.runtime
    said = {name: value for name, value in (details or {}).items() if value not in ("", None)}
    words = "".join(f" {name}={value!r}" for name, value in said.items())
    what, token = subject[:_LONGEST], caller.token or "none"
    _log.info("action=%s subject=%r user=%r token=%s%s", action, what, caller.user, token, words)
    document = json.dumps({"action": action, "token": caller.token, "details": said}).encode()
    runtime.news.note(Note(ACTION, what, runtime.clock.now(), caller.user, document))
    await runtime.durable()


async def record_if_others(
    request: Request, owner: str, action: str, subject: str, details: Mapping[str, Any] | None = None
) -> None:
    """The same, unless it was the owner's own."""
    if caller_of(request).user != owner:
        await record_action(request, action, subject, {"owner": owner, **(details or {})})
