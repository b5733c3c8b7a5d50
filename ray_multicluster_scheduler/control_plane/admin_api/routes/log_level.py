"""How much the service says in its log, while it runs."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.logging import LEVELS, level_now, set_level
from ray_multicluster_scheduler.control_plane.admin_api.access.audit import record_action
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import Rule
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import Answer, json_of
from ray_multicluster_scheduler.control_plane.admin_api.schemas import log_level as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import described

router = APIRouter(prefix="/api/v1", tags=["about"])


@router.get("/log-level", **described(Rule.KNOWN, docs.LOG_LEVEL))
async def log_level() -> Response:
    """The least that a line must be worth to be written."""
    return Answer({"level": level_now()})


@router.put("/log-level", **described(Rule.OPERATE, docs.SET_LOG_LEVEL))
async def set_log_level(request: Request) -> Response:
    """From now on, until the service is started again."""
    said = await json_of(request)
    level, others = said.get("level"), sorted(set(said) - {"level"})
    if others:
        raise ConfigurationError(f"{others[0][:100]!r} is not known here.", next_step="send level, and nothing else")
    if not isinstance(level, str) or level not in LEVELS:
        raise ConfigurationError(
            f"level is {str(level)[:100]!r}." if "level" in said else "level is missing.",
            next_step=f"use one of {', '.join(LEVELS)}",
        )
    before = level_now()
    set_level(min(before, level, key=LEVELS.index))  # that of both by which it is told in the log
    await record_action(request, "set log level", "log", {"level": level, "before": before})
    set_level(level)
    return Answer({"level": level})
