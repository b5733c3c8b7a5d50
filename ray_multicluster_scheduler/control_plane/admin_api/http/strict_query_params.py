"""A parameter that a route does not know is refused: what is misspelt must not look as if it had been heeded."""

from __future__ import annotations

from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection

from ray_multicluster_scheduler.common.exception import ConfigurationError


async def only_known_parameters(request: HTTPConnection) -> None:
    """A dependency of every route. Raises ConfigurationError."""
    route = request.scope["route"]
    if not request.url.query or not isinstance(route, APIRoute):  # a WebSocket looks at them by itself
        return
    known = [field.alias for field in route.dependant.query_params]
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        names = ", ".join(repr(name[:100]) for name in unknown[:5])
        raise ConfigurationError(
            f"{request.scope['method']} {request.url.path} knows no parameter {names}.",
            next_step=f"use {', '.join(known)}" if known else "ask without parameters",
        )
