"""Figures for whoever watches over a service."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from ray_multicluster_scheduler.control_plane.admin_api.access.rules import Rule
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import runtime_of
from ray_multicluster_scheduler.control_plane.admin_api.schemas import series as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import described

router = APIRouter(tags=["probes"])


@router.get("/metrics", **described(Rule.KNOWN, docs.METRICS))
async def metrics(request: Request) -> Response:
    """All figures, in the text form of Prometheus. Whoever asks looks at the clusters, too: those that nobody asked for
    ``health_check_interval_s`` are asked, and the next answer tells of it."""
    from ray_multicluster_scheduler.control_plane.admin_api.metrics.metrics_text import metrics_text  # noqa: PLC0415
    from ray_multicluster_scheduler.scheduler.monitor.prometheus_client import CONTENT_TYPE  # noqa: PLC0415

    runtime = runtime_of(request)
    runtime.event_publisher.request_checks()
    room = await asyncio.to_thread(runtime.store.usage)  # a disk may be slow
    return Response(metrics_text(runtime, room), media_type=CONTENT_TYPE)
