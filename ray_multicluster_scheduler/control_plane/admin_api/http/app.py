"""create_app(): the FastAPI app of a service, with all routes and middleware."""

from __future__ import annotations

from fastapi import Depends
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from ray_multicluster_scheduler import __version__
from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Rule, routes_without_rule
from ray_multicluster_scheduler.control_plane.admin_api.events.long_poll import MailboxRegistry
from ray_multicluster_scheduler.control_plane.admin_api.http import middleware, problems
from ray_multicluster_scheduler.control_plane.admin_api.metrics.load_series import LoadSeries
from ray_multicluster_scheduler.control_plane.admin_api.routes import (
    actors,
    blobs,
    clusters,
    deployments,
    events,
    item_actions,
    items,
    pools,
    queue,
    service,
    simulation,
    tokens,
)
from ray_multicluster_scheduler.control_plane.admin_api.schemas.document import DocumentedApp
from ray_multicluster_scheduler.control_plane.admin_api.serving import add_serving
from ray_multicluster_scheduler.control_plane.admin_api.simulation_process import SimulationRunner
from ray_multicluster_scheduler.control_plane.runtime.service.fleet_changes import FleetChanges
from ray_multicluster_scheduler.control_plane.runtime.service.program_leases import ProgramLeases
from ray_multicluster_scheduler.control_plane.runtime.service.service_deployments import restore_deployments
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.control_plane.runtime.service.stored_arguments import RecentPairs
from ray_multicluster_scheduler.serving.deployment import Deployments

_RESOURCES = (
    service,
    tokens,
    clusters,
    items,
    item_actions,
    queue,
    pools,
    simulation,
    actors,
    blobs,
    events,
    deployments,
)
ROUTERS = tuple(one.router for one in _RESOURCES)


def create_app(runtime: ServiceRuntime, access: Access) -> DocumentedApp:
    """Handlers run on the loop of ``runtime``; they find it in ``request.app.state``, and the caller in the scope."""
    app = DocumentedApp(
        title="ray_multicluster_scheduler",
        version=__version__,
        openapi_url=None,  # routes.service serves it, with a rule
        docs_url=None,
        redoc_url=None,
        default_response_class=problems.JsonResponse,
        dependencies=[Depends(middleware.refuse_unknown_parameters)],
    )
    fast_path = {
        "/api/v1/items": (Rule.SUBMIT, items.submit),
        "/api/v1/items/batch": (Rule.SUBMIT, items.submit_batch),
        "/api/v1/wait": (Rule.SEE, items.wait),
        "/api/v1/calls": (Rule.SUBMIT, actors.call),
    }
    add_serving(app, runtime)
    app.state.deployments = Deployments(app.state.serving)
    runtime.spawn(restore_deployments(runtime, app.state.deployments))
    app.add_middleware(middleware.FastPathMiddleware, handlers=fast_path)
    app.add_middleware(middleware.AuthMiddleware, access=access)
    app.add_middleware(middleware.OriginGuard, access=access)
    app.add_middleware(middleware.ErrorMiddleware)  # added last, so the outermost one
    app.state.runtime, app.state.access = runtime, access
    app.state.mailboxes = mailboxes = MailboxRegistry(runtime, runtime.collector.delivered)
    app.state.leases = ProgramLeases(runtime, mailboxes.last_poll)
    app.state.called_actors = RecentPairs()
    app.state.fleet_changes = FleetChanges(runtime)
    app.state.simulated_runs = SimulationRunner()
    app.state.series = LoadSeries(runtime)
    runtime.call_soon(app.state.leases.begin)
    runtime.call_soon(app.state.series.begin)
    app.add_exception_handler(SchedulerError, problems.answer_scheduler_error)
    for kind in (HTTPException, RequestValidationError):
        app.add_exception_handler(kind, problems.answer_http_error)
    for router in ROUTERS:
        app.include_router(router)
    without_rule = routes_without_rule(app.own_routes)
    if without_rule:
        raise RuntimeError(f"these routes declare no rule: {', '.join(without_rule)}")
    access.set_open_routes(app.own_routes)
    return app
