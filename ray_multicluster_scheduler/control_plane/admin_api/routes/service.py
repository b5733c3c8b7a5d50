"""Routes of the service itself: probes, OpenAPI document, settings, log level, metrics and load over time."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

from fastapi import APIRouter, Request, Response

from ray_multicluster_scheduler import __version__
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.logging import LEVELS, level_now, set_level
from ray_multicluster_scheduler.control_plane.admin_api.access.audit import record_action
from ray_multicluster_scheduler.control_plane.admin_api.access.config_redaction import (
    cluster_shown,
    for_owner,
    pools_shown,
    settings_shown,
)
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Rule, caller_of, visible_owner
from ray_multicluster_scheduler.control_plane.admin_api.http.problems import JsonResponse
from ray_multicluster_scheduler.control_plane.admin_api.metrics.load_series import KEPT_HOURS, LoadSeries, table
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import json_of, runtime_of
from ray_multicluster_scheduler.control_plane.admin_api.schemas import service as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import JSON, described
from ray_multicluster_scheduler.control_plane.runtime.pools import definition_of

router = APIRouter()


@router.get("/healthz", tags=["probes"], **described(Rule.OPEN, docs.Health))
async def healthz() -> dict[str, Any]:
    """Check that the process answers."""
    return {"status": "ok"}


@router.get(
    "/readyz",
    tags=["probes"],
    **described(Rule.OPEN, docs.Health, others={503: ("It does not; the reason.", docs.NotReady)}),
)
async def readyz(request: Request, response: Response) -> dict[str, Any]:
    """Check that the service accepts work; 503 with the reason if not."""
    runtime = runtime_of(request)
    problem = runtime.store.write_problem or runtime.refusal
    if problem is not None:
        response.status_code = 503
        return {"status": "not ready", "reason": problem}
    return {"status": "ready"}


@router.get("/api/v1/openapi.json", tags=["about"], **described(Rule.OPEN, docs.OPENAPI_DOCUMENT))
async def openapi(request: Request) -> Response:
    """This document: every route, with schemas and examples."""
    return JsonResponse(request.app.openapi())


@router.get("/api/v1/settings", tags=["about"], **described(Rule.KNOWN, docs.SettingsInForce))
async def settings(request: Request) -> Response:
    """The settings in force, from the file, the environment and defaults; secrets are masked."""
    runtime = runtime_of(request)
    config = runtime.config
    return JsonResponse(
        {
            "settings": settings_shown(runtime.settings_now(), visible_owner(request)),
            "source": config.source,
            "clusters": [cluster_shown(one) for one in config.clusters],
            "pools": pools_shown(
                [definition_of(one) for one in runtime.machine.pools.ledger.pools.values()], caller_of(request)
            ),
        }
    )


@router.get("/api/v1/fleet", tags=["fleet"], **described(Rule.KNOWN, docs.Fleet))
async def fleet(request: Request) -> Response:
    """What a client needs to submit: settings, clusters, home directories."""
    runtime, caller = runtime_of(request), caller_of(request)
    settings = runtime.settings_now()
    return JsonResponse(
        {
            "version": __version__,
            "control_plane": runtime.control_plane,
            "you": {"user": caller.user, "roles": sorted(caller.roles)},
            "settings": for_owner(settings.model_dump(mode="json", exclude={"service_tls"}), visible_owner(request)),
            "clusters": [one.name for one in runtime.config.clusters],
            "homes": list(runtime.homes),
            "not_ready": runtime.store.write_problem or runtime.refusal,
        }
    )


@router.get("/api/v1/log-level", tags=["about"], **described(Rule.KNOWN, docs.LogLevel))
async def log_level() -> Response:
    """The minimum level of log lines."""
    return JsonResponse({"level": level_now()})


@router.put("/api/v1/log-level", tags=["about"], **described(Rule.OPERATE, docs.LogLevel, docs.LogLevel))
async def set_log_level(request: Request) -> Response:
    """Set the minimum level of log lines, until the next start of the service."""
    body = await json_of(request)
    level, others = body.get("level"), sorted(set(body) - {"level"})
    if others:
        raise ConfigurationError(f"A log level has no field {others[0][:100]!r}.", next_step="send level only")
    if not isinstance(level, str) or level not in LEVELS:
        raise ConfigurationError(
            f"level is {str(level)[:100]!r}." if "level" in body else "level is missing.",
            next_step=f"use one of {', '.join(LEVELS)}",
        )
    before = level_now()
    set_level(min(before, level, key=LEVELS.index))  # the lower level, so that the action is logged
    await record_action(request, "set log level", "log", {"level": level, "before": before})
    set_level(level)
    return JsonResponse({"level": level})


@router.get("/metrics", tags=["probes"], **described(Rule.KNOWN, docs.METRICS_TEXT))
async def metrics(request: Request) -> Response:
    """All metrics, in the text form of Prometheus. Clusters not checked for ``health_check_interval_s`` are checked in
    the background; the next answer shows the result."""
    from ray_multicluster_scheduler.control_plane.admin_api.metrics.fleet_metrics import metrics_text  # noqa: PLC0415
    from ray_multicluster_scheduler.scheduler.monitor.prometheus_client import CONTENT_TYPE  # noqa: PLC0415

    runtime = runtime_of(request)
    runtime.event_publisher.request_checks()
    room = await asyncio.to_thread(runtime.store.usage)  # a disk may be slow
    return Response(metrics_text(runtime, room, request.app.state.serving), media_type=CONTENT_TYPE)


@router.get("/api/v1/series", tags=["fleet"], **described(Rule.KNOWN, docs.Series))
async def series(request: Request, hours: float = 1.0) -> Response:
    """Load of every cluster and queue length, by minute for the last ``hours``. It survives restarts; times when no
    service ran are null."""
    if not (math.isfinite(hours) and 0 < hours <= KEPT_HOURS):
        raise ConfigurationError(f"hours is {hours}.", next_step=f"give more than 0, and at most {KEPT_HOURS}")
    kept: LoadSeries = request.app.state.series
    columns = kept.columns(hours)
    return Response(await asyncio.to_thread(lambda: json.dumps(table(*columns)).encode()), media_type=JSON)
