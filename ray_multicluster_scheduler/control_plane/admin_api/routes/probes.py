"""Is it alive, and can it be used?"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from ray_multicluster_scheduler.control_plane.admin_api.access.rules import Rule
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import runtime_of
from ray_multicluster_scheduler.control_plane.admin_api.schemas import fleet as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import described

router = APIRouter(tags=["probes"])


@router.get("/healthz", **described(Rule.OPEN, docs.HEALTH))
async def healthz() -> dict[str, Any]:
    """It answers."""
    return {"status": "ok"}


@router.get("/readyz", **described(Rule.OPEN, docs.READY))
async def readyz(request: Request, response: Response) -> dict[str, Any]:
    """It can accept work; 503 with the reason if not."""
    runtime = runtime_of(request)
    trouble = runtime.store.write_problem or runtime.refusal
    if trouble is not None:
        response.status_code = 503
        return {"status": "not ready", "reason": trouble}
    return {"status": "ready"}
