"""What there is to be asked, and by which settings the service goes."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ray_multicluster_scheduler.control_plane.admin_api.access.config_redaction import cluster_shown, settings_shown
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import Rule, only_owner_of
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import Answer, runtime_of
from ray_multicluster_scheduler.control_plane.admin_api.schemas import fleet as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import described

router = APIRouter(prefix="/api/v1", tags=["about"])


@router.get("/openapi.json", **described(Rule.OPEN, docs.OPENAPI))
async def openapi(request: Request) -> Response:
    """Every route, with schemas and examples."""
    return Answer(request.app.openapi())


@router.get("/settings", **described(Rule.KNOWN, docs.SETTINGS))
async def settings(request: Request) -> Response:
    """What holds now, from the file, the environment and by default; secrets are covered."""
    runtime = runtime_of(request)
    config = runtime.config
    return Answer(
        {
            "settings": settings_shown(runtime.settings_now(), only_owner_of(request)),
            "source": config.source,
            "clusters": [cluster_shown(one) for one in config.clusters],
        }
    )
