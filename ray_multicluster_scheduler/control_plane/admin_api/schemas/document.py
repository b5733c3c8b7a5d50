"""DocumentedApp: a FastAPI app whose OpenAPI document has our schemas, examples and descriptions of parameters."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import RULE, Rule
from ray_multicluster_scheduler.control_plane.admin_api.access.sessions import COOKIE
from ray_multicluster_scheduler.control_plane.admin_api.schemas.api_model import PAYLOAD, components

_ABOUT = """One control plane above many Ray clusters. Submit tasks, actors, jobs and gangs; see where they are and why.

`x-rule` of each route names the callers who may use it. Every error is an RFC 9457 problem document with `code`,
`message` and `next_step`. Times are seconds since 1970. The service never unpickles values: the Python library pickles
functions and arguments; programs in other languages submit jobs.

`/api/v1/ws` is a WebSocket with the same events and parameters as `/api/v1/events`. OpenAPI cannot describe it; see
docs/events.md, and docs/serving.md for the WebSockets `/ws/result_submit` and `/ws/task_events` of serving.
A page that cannot send a header opens both with a `ticket` from `POST /api/v1/ticket`."""
_TYPES = (
    "With commas: transition, decision, cluster, action, pool_changed (these five by default), telemetry, serving; "
    "preempted and resumed are the transitions of items that give way, and that run again."
)
_SCHEMES: dict[str, dict[str, str]] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of `rmcs token create`. A service with auth: none requires none.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "The session cookie of `POST /api/v1/session`, for pages of this service itself.",
    },
}

PARAMETERS: Mapping[str, tuple[str, Any]] = {
    "item_id": ("The id of an item.", "nightly-2026-11-15"),
    "job_id": ("The id of a job.", "nightly-2026-11-15"),
    "call_id": ("The id of a call of an actor's method.", "call-1"),
    "digest": ("The BLAKE2b hash (16 bytes, as hexadecimal digits) of a payload.", digest_of(PAYLOAD)),
    "name": ("The name of the cluster, actor, owner or item.", "mac"),
    "what": ("cluster or owner: the kind of queue.", "cluster"),
    "state": ("Only items in one of these states, separated by commas.", "QUEUED,RUNNING"),
    "kind": ("Only items of this kind: task, actor, job or gang.", "job"),
    "owner": ("Only items of this owner.", "ann"),
    "begins": ("Only items with ids that begin with this text.", "nightly"),
    "since": ("Only items submitted at this time or later, in seconds since 1970.", 0.0),
    "until": ("Only items submitted before this time, in seconds since 1970.", 4000000000.0),
    "hours": ("The number of hours up to now, at most 24.", 1),
    "cluster": ("Only what is on this cluster, or was on it last.", "mac"),
    "after": ("The cursor from the previous page.", "9"),
    "order": ("`age`: the longest wait first; `position`: the next to start first.", "position"),
    "limit": ("The number of rows, at most 1,000.", 100),
    "refresh": ("Check the clusters first.", False),
    "attempt": ("The number of the attempt; by default the newest.", 1),
    "stream": ("Only stdout, or only stderr.", "stdout"),
    "follow": ("Stream new output until the item has ended; with `attempt` until that attempt has ended.", False),
    "dry_run": ("Return a preview, without changes.", False),
    "token_id": ("The id of a token, which is not secret.", "k3v9x2ab"),
    "drain": ("Accept nothing new, and delete it when its unfinished items have ended.", False),
    "/api/v1/pools/{name} name": ("The name of the pool.", "train"),
    "force": ("Revoke even the last token of an admin.", False),
    "types": (_TYPES, "transition,decision"),
    "id": ("Only events of these items, separated by commas.", "nightly-2026-11-15"),
    "snapshot": ("Begin with a snapshot of the present state.", False),
    "ticket": ("A ticket of POST /api/v1/ticket, for a page that cannot send a header.", ""),
    "/api/v1/owners/{owner} owner": ("The name of the owner.", "ann"),
    "/api/v1/serving/deployments/{name} name": ("The name of the deployment.", "ocr"),
    "/api/v1/events since": ("Begin with the events after this number.", 0),
    "client": ("The name of the client of the mailbox.", "me"),
    "task_id": ("The id of a task of serving.", "page-1"),
    "model_name": ("Only instances of this model.", "ocr"),
    "model": ("Only events of serving, of this model.", "ocr"),
    "model_id": ("The name of a model of `/v1/models`.", "small-llm"),
    "path": ("The rest of a path of OpenAI's API.", "chat/completions"),
}
"""Description and example of each parameter, by its name, or by path and name where that means something else."""


class DocumentedApp(FastAPI):
    """Its OpenAPI document is made at the first request for it."""

    @functools.cached_property
    def own_routes(self) -> list[BaseRoute]:
        """The routes of all included routers; FastAPI itself may keep only the routers."""
        return []

    @property
    def documented_routes(self) -> list[APIRoute]:
        """All but WebSockets, which OpenAPI cannot describe."""
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
                _restore_nulls(made, route)
            for path, operation in _operations(made):
                # Docstrings are reStructuredText, the document is Markdown.
                operation["description"] = operation.get("description", "").replace("``", "`")
                operation["summary"] = " ".join(re.split(r"[.:;]\s", operation["description"] + " ")[0].split())
                operation["security"] = [] if operation.get(RULE) == Rule.OPEN else [{name: []} for name in _SCHEMES]
                for parameter in operation.get("parameters", ()):
                    _explain(path, parameter)
            self.openapi_schema = made
        return self.openapi_schema


def _restore_nulls(document: dict[str, Any], route: APIRoute) -> None:
    """FastAPI drops every null from the document, also from examples, where it is data."""
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
