"""What there is to be asked, and by which settings the service goes."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ray_multicluster_scheduler.control_plane.admin_api.access.rules import Rule
from ray_multicluster_scheduler.control_plane.admin_api.routes.asking import Answer
from ray_multicluster_scheduler.control_plane.admin_api.schemas import fleet as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.described import described

router = APIRouter(prefix="/api/v1", tags=["about"])


@router.get("/openapi.json", **described(Rule.OPEN, docs.OPENAPI))
async def openapi(request: Request) -> Response:
    """Every route, with schemas and examples."""
    return Answer(request.app.openapi())
