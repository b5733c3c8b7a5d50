"""add_serving(): the scheduler of inference requests in the service, and the routes of ``serving.api`` with rules."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute, APIWebSocketRoute
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect

from ray_multicluster_scheduler.common.exception import ConfigurationError, NotAllowedError, SchedulerError
from ray_multicluster_scheduler.control_plane.admin_api.access.audit import record_action
from ray_multicluster_scheduler.control_plane.admin_api.access.expiry import close_on_expiry, run_while_valid
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import (
    NotLetInError,
    Rule,
    WebSocketHandler,
    caller_of,
    enforce,
    needs_of_socket,
    visible_owner,
)
from ray_multicluster_scheduler.control_plane.admin_api.http import problems
from ray_multicluster_scheduler.control_plane.admin_api.schemas.document import DocumentedApp
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import JSON, Raw, described
from ray_multicluster_scheduler.control_plane.config.home import expanded
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event_hub import Subscription
from ray_multicluster_scheduler.serving import SwarmPilotScheduler, api
from ray_multicluster_scheduler.serving.config import ServingConfig, apply_settings, read_config
from ray_multicluster_scheduler.serving.events import TaskEvents
from ray_multicluster_scheduler.serving.journal import TaskJournal

PREFIX = "/api/v1/serving"
_RESOLVE_S = 5.0
_POLICY_VIOLATION = 1008
_RULES = {
    "/ti/register": Rule.OPERATE,
    "/ti/remove": Rule.OPERATE,
    "/scheduler/set": Rule.OPERATE,
    "/task/clear": Rule.OPERATE,
    "/ws/result_submit": Rule.OPERATE,  # who connects as an instance receives the tasks of all users
    "/result/submit": Rule.STEER,
    "/notify/task_complete": Rule.STEER,
    "/queue/submit": Rule.SUBMIT,
    "/queue/submit_batch": Rule.SUBMIT,
    "/v1/{path:path}": Rule.SUBMIT,
    "/task/query": Rule.SEE,
    "/task/explain": Rule.SEE,
    "/task/all_tasks": Rule.SEE,
    "/ws/task_events": Rule.SEE,
    "/queue/info": Rule.KNOWN,
    "/models": Rule.KNOWN,
    "/v1/models": Rule.KNOWN,
    "/v1/models/{model_id:path}": Rule.KNOWN,
    "/health": Rule.KNOWN,
}
_CHAT = {"model": "small-llm", "messages": [{"role": "user", "content": "hello"}]}


def add_serving(app: DocumentedApp, runtime: ServiceRuntime) -> None:
    """Create the scheduler on the runtime's loop (``app.state.serving``), and add its routes. Raises
    ConfigurationError."""
    settings = runtime.config.settings.serving
    app.state.serving = scheduler = SwarmPilotScheduler(loop=runtime.loop, journal=TaskJournal(runtime.store))
    scheduler.restore()
    app.state.serving_events = TaskEvents(scheduler, runtime.event_publisher.hub)
    app.state.serving_access = ServiceAccess(settings.allow)
    prefixes = (PREFIX, "") if settings.legacy_routes else (PREFIX,)
    for prefix in prefixes:
        app.include_router(_with_rules(api.router, prefix))
    app.add_middleware(api.HotPath, state=app.state, prefixes=prefixes)
    file = None if settings.config is None else expanded(settings.config, "serving.config")
    config = ServingConfig.model_validate({}) if file is None else read_config(file)
    apply_settings(config, scheduler)
    for one in config.instances:
        runtime.spawn(scheduler.register_async(one))


class ServiceAccess(api.Access):
    """Roles and owners of the service. The token of a caller is never passed on to an instance."""

    private_headers = (b"authorization", b"cookie")

    def __init__(self, allow: Sequence[str]) -> None:
        self._allow = [ipaddress.ip_network(one) for one in allow]

    def check_submit(self, connection: HTTPConnection) -> None:
        enforce(Rule.SUBMIT, connection)

    def owner(self, connection: HTTPConnection) -> str:
        return caller_of(connection).user

    def visible_owner(self, connection: HTTPConnection) -> str | None:
        return visible_owner(connection)

    def reported_owner(self, connection: HTTPConnection) -> str | None:
        caller = caller_of(connection)
        return None if caller.steers_all else caller.user

    def watch(self, connection: HTTPConnection, reader: Subscription) -> Callable[[], None]:
        return close_on_expiry(connection, reader)

    async def record(self, request: Request, action: str, subject: str) -> None:
        await record_action(request, action, subject)

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        try:
            async with asyncio.timeout(_RESOLVE_S):
                found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:  # UnicodeError is a ValueError
            raise ConfigurationError(
                f"The host {host[:100]!r} of the instance cannot be resolved: {error}.", next_step="correct its name"
            ) from None
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        for address in addresses:
            parsed = ipaddress.ip_address(address)
            plain = getattr(parsed, "ipv4_mapped", None) or parsed
            if not any(plain in network for network in self._allow):
                raise NotAllowedError(
                    f"The service does not call instances at {address} ({host}).",
                    next_step="add its network to the setting serving.allow",
                )
        return addresses

    def problem(self, error: SchedulerError, *, openai: bool) -> Mapping[str, Any]:
        found = problems.problem_of(error)
        if not openai or isinstance(error, NotAllowedError):
            return found
        return {**found, **super().problem(error, openai=True)}


def _with_rules(router: APIRouter, prefix: str) -> APIRouter:
    made = APIRouter(prefix=prefix, tags=["serving"])
    for route in router.routes:
        assert isinstance(route, (APIRoute, APIWebSocketRoute))
        rule = _RULES[route.path]
        if isinstance(route, APIWebSocketRoute):
            made.add_api_websocket_route(route.path, needs_of_socket(rule)(_while_valid(route.endpoint)))
            continue
        body = route.dependant.body_params[0].field_info.annotation if route.dependant.body_params else None
        made.add_api_route(route.path, route.endpoint, methods=list(route.methods or ()), **_options(route, rule, body))
    return made


def _options(route: APIRoute, rule: Rule, body: Any) -> dict[str, Any]:
    if route.response_model is not None:
        return {**described(rule, route.response_model, body), "response_model": route.response_model}
    anything = {"type": "object"}
    example = api.problem(404, "UNKNOWN_ITEM", "No instance of the model small-llm is registered.")
    problem = Raw(example, problems.PROBLEM_JSON, anything)
    return described(rule, Raw({}, JSON, anything), Raw(_CHAT, JSON, anything), problem=problem)


def _while_valid(handler: Callable[[WebSocket], Coroutine[Any, Any, None]]) -> WebSocketHandler:
    """Close the socket when the token of its caller ends."""

    async def checked(websocket: WebSocket) -> None:
        try:
            await run_while_valid(websocket, handler(websocket))
        except NotLetInError as error:
            with suppress(RuntimeError, WebSocketDisconnect):  # it is closed already
                await websocket.close(_POLICY_VIOLATION, error.message)

    return checked
