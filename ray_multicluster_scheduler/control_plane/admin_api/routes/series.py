"""Load over time."""

from __future__ import annotations

import asyncio
import json
import math

from fastapi import APIRouter, Request, Response

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import Rule
from ray_multicluster_scheduler.control_plane.admin_api.metrics.load_series import KEPT_HOURS, LoadSeries, table
from ray_multicluster_scheduler.control_plane.admin_api.schemas import series as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import JSON, described

router = APIRouter(prefix="/api/v1", tags=["fleet"])


@router.get("/series", **described(Rule.KNOWN, docs.SERIES))
async def series(request: Request, hours: float = 1.0) -> Response:
    """The load of every cluster, and how much waited, minute by minute for the last ``hours``. A restart keeps it; of
    the time when no service ran, and of what did not change any more before, nothing is known."""
    if not (math.isfinite(hours) and 0 < hours <= KEPT_HOURS):
        raise ConfigurationError(f"hours is {hours}.", next_step=f"give more than 0, and {KEPT_HOURS} at the most")
    kept: LoadSeries = request.app.state.series
    columns = kept.columns(hours)
    return Response(await asyncio.to_thread(lambda: json.dumps(table(*columns)).encode()), media_type=JSON)
