"""A parameter that a route does not know is refused: what is misspelt must not look as if it had been heeded."""

from __future__ import annotations

from fastapi import Request
from fastapi.routing import APIRoute

from ray_multicluster_scheduler.common.exception import ConfigurationError


async def only_known_parameters(request: Request) -> None:
    """A dependency of every route. Raises ConfigurationError."""
    if not request.url.query:
        return
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    known = [field.alias for field in route.dependant.query_params]
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        names = ", ".join(repr(name[:100]) for name in unknown[:5])
        raise ConfigurationError(
            f"{request.method} {request.url.path} knows no parameter {names}.",
            next_step=f"use {', '.join(known)}" if known else "ask without parameters",
        )
