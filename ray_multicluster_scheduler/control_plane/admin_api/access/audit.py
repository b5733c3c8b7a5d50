"""record_action(): what operators and admins did, and who they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request

from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import caller_of

_log = get_logger(__name__)


async def record_action(request: Request, action: str, subject: str, details: Mapping[str, Any] | None = None) -> None:
    """After it was done. ``details`` has no secrets: it is for everybody who may look at the fleet."""
    caller = caller_of(request)
    said = "".join(f" {name}={value!r}" for name, value in (details or {}).items() if value not in ("", None))
    _log.info(
        "action=%s subject=%r user=%r token=%s%s", action, subject[:256], caller.user, caller.token or "none", said
    )


async def record_if_others(
    request: Request, owner: str, action: str, subject: str, details: Mapping[str, Any] | None = None
) -> None:
    """The same, unless it was the owner's own."""
    if caller_of(request).user != owner:
        await record_action(request, action, subject, {"owner": owner, **(details or {})})
