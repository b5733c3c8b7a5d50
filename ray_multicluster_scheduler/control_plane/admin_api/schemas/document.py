"""The OpenAPI document of a service: what FastAPI knows of the routes, and our schemas and words."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import RULE, Rule
from ray_multicluster_scheduler.control_plane.admin_api.access.sessions import COOKIE
from ray_multicluster_scheduler.control_plane.admin_api.schemas.api_model import components
from ray_multicluster_scheduler.control_plane.admin_api.schemas.parameters import PARAMETERS

_ABOUT = """One control plane above many Ray clusters. Submit tasks, actors, jobs and gangs; see where they are and why.

Whoever may ask for a route stands there as `x-rule`. Every refusal is an RFC 9457 problem document with `code`,
`message` and `next_step`. Times are seconds since 1970. Values are pickled by the program that made them; the service
never looks inside: functions and arguments are pickled by the Python library, and jobs are what other programs submit.

`/api/v1/ws` is a WebSocket with the same events and parameters as `/api/v1/events`, which this document cannot show;
docs/events.md does. A page that can send no header opens both with a `ticket` of `POST /api/v1/ticket`."""
_SCHEMES: dict[str, dict[str, str]] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of `rmcs token create`. A service with auth: none wants none.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "What a browser has after `POST /api/v1/login`, for pages of this service itself.",
    },
}


class DocumentedApp(FastAPI):
    """Its document is made when it is first asked for.

    ``own_routes`` are those of the routers that it was given, themselves: FastAPI keeps routers, and does not say what
    is in them.
    """

    @functools.cached_property
    def own_routes(self) -> list[BaseRoute]:
        return []

    @property
    def documented_routes(self) -> list[APIRoute]:
        """All but web sockets, of which OpenAPI knows nothing."""
        return [route for route in self.own_routes if isinstance(route, APIRoute)]

    def include_router(self, router: APIRouter, **options: Any) -> None:
        super().include_router(router, **options)
        self.own_routes.extend(router.routes)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            made = get_openapi(title=self.title, version=self.version, description=_ABOUT, routes=self.routes)
            parts = made.setdefault("components", {})
            parts.setdefault("schemas", {}).update(components())
            parts["securitySchemes"] = _SCHEMES
            for route in self.documented_routes:
                _put_back(made, route)
            for path, operation in _operations(made):
                operation["description"] = _plain(operation.get("description", ""))
                operation["security"] = [] if operation.get(RULE) == Rule.OPEN else [{name: []} for name in _SCHEMES]
                for parameter in operation.get("parameters", ()):
                    _explain(path, parameter)
            self.openapi_schema = made
        return self.openapi_schema


def _put_back(document: dict[str, Any], route: APIRoute) -> None:
    """FastAPI leaves out all that is null, also from examples, where it says something."""
    extra = route.openapi_extra or {}
    for method in route.methods or ():
        operation = document["paths"][route.path_format][method.lower()]
        operation["responses"].update(extra.get("responses", {}))
        operation.update({key: extra[key] for key in ("requestBody",) if key in extra})


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, verbs in document["paths"].items():
        for operation in verbs.values():
            yield path, operation


def _explain(path: str, parameter: dict[str, Any]) -> None:
    known = PARAMETERS.get(f"{path} {parameter['name']}") or PARAMETERS.get(parameter["name"])
    if known is not None and "description" not in parameter:
        parameter["description"], parameter["example"] = known


def _plain(docstring: str) -> str:
    """Docstrings are reStructuredText, the document is Markdown."""
    return docstring.replace("``", "`")
