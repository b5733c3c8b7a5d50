"""create_app(): the HTTP face of a service. Its handlers run on the control plane's own loop."""

from __future__ import annotations

from fastapi import Depends
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from ray_multicluster_scheduler import __version__
from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access
from ray_multicluster_scheduler.control_plane.admin_api.access.guard import Guard
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import Rule, without_rule
from ray_multicluster_scheduler.control_plane.admin_api.events.long_poll import Mailboxes
from ray_multicluster_scheduler.control_plane.admin_api.http import problems
from ray_multicluster_scheduler.control_plane.admin_api.http.error_middleware import Unexpected
from ray_multicluster_scheduler.control_plane.admin_api.http.fast_path import ShortWay
from ray_multicluster_scheduler.control_plane.admin_api.http.origin_check import OnlyLocal
from ray_multicluster_scheduler.control_plane.admin_api.http.strict_query_params import only_known_parameters
from ray_multicluster_scheduler.control_plane.admin_api.metrics.load_series import LoadSeries
from ray_multicluster_scheduler.control_plane.admin_api.routes import (
    actors,
    blobs,
    clusters,
    events,
    item_actions,
    items,
    queue,
    service,
    simulation,
    tokens,
)
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import Answer
from ray_multicluster_scheduler.control_plane.admin_api.schemas.document import DocumentedApp
from ray_multicluster_scheduler.control_plane.admin_api.simulation_process import SimulatedRuns
from ray_multicluster_scheduler.control_plane.runtime.service.fleet_changes import FleetChanges
from ray_multicluster_scheduler.control_plane.runtime.service.payload_ownership import RecentPairs
from ray_multicluster_scheduler.control_plane.runtime.service.program_leases import ProgramLeases
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime

_RESOURCES = (service, tokens, clusters, items, item_actions, queue, simulation, actors, blobs, events)
ROUTERS = tuple(one.router for one in _RESOURCES)


def create_app(runtime: ServiceRuntime, access: Access) -> DocumentedApp:
    """Every handler has ``request.app.state.runtime``, and a ``caller`` that ``access`` let in."""
    app = DocumentedApp(
        title="ray_multicluster_scheduler",
        version=__version__,
        openapi_url=None,  # it is a route like others, with a rule: /api/v1/openapi.json
        docs_url=None,
        redoc_url=None,
        default_response_class=Answer,
        dependencies=[Depends(only_known_parameters)],
    )
    often = {
        "/api/v1/items": (Rule.SUBMIT, items.submit),
        "/api/v1/items/batch": (Rule.SUBMIT, items.submit_batch),
        "/api/v1/wait": (Rule.SEE, items.wait),
        "/api/v1/calls": (Rule.SUBMIT, actors.call),
    }
    app.add_middleware(ShortWay, handlers=often)
    app.add_middleware(Guard, access=access)
    app.add_middleware(OnlyLocal, access=access)
    app.add_middleware(Unexpected)  # the last one is asked first
    app.state.runtime, app.state.access = runtime, access
    app.state.mailboxes = mailboxes = Mailboxes(runtime, runtime.calls.acknowledge)
    app.state.leases = ProgramLeases(runtime, mailboxes.last_heard)
    app.state.called_actors = RecentPairs()
    app.state.fleet_changes = FleetChanges(runtime)
    app.state.simulated_runs = SimulatedRuns()
    app.state.series = LoadSeries(runtime)
    runtime.soon(app.state.leases.begin)
    runtime.soon(app.state.series.begin)
    app.add_exception_handler(SchedulerError, problems.answer)
    for kind in (HTTPException, RequestValidationError):
        app.add_exception_handler(kind, problems.of_http)
    for router in ROUTERS:
        app.include_router(router)
    forgotten = without_rule(app.own_routes)
    if forgotten:
        raise RuntimeError(f"nobody said who may use {', '.join(forgotten)}")
    access.let_in_to(app.own_routes)
    return app
