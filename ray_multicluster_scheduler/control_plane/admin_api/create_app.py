"""create_app(): the HTTP face of a service. Its handlers run on the control plane's own loop."""

from __future__ import annotations

from fastapi import FastAPI

from ray_multicluster_scheduler import __version__
from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.control_plane.admin_api import problems
from ray_multicluster_scheduler.control_plane.admin_api.mailboxes import Mailboxes
from ray_multicluster_scheduler.control_plane.admin_api.only_local import OnlyLocal
from ray_multicluster_scheduler.control_plane.admin_api.routes import blobs, fleet, items, probes
from ray_multicluster_scheduler.control_plane.admin_api.routes.asking import Answer
from ray_multicluster_scheduler.control_plane.admin_api.service_runtime import ServiceRuntime


def create_app(runtime: ServiceRuntime) -> FastAPI:
    """Every handler has ``request.app.state.runtime``."""
    app = FastAPI(
        title="ray_multicluster_scheduler",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        default_response_class=Answer,
    )
    app.add_middleware(OnlyLocal)
    app.state.runtime = runtime
    app.state.mailboxes = Mailboxes(runtime)
    app.add_exception_handler(SchedulerError, problems.answer)
    for router in (probes.router, fleet.router, items.router, blobs.router):
        app.include_router(router)
    return app
