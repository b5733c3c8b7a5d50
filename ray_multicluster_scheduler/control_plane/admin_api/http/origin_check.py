"""OnlyLocal: what a page in somebody's browser sends is not obeyed, although it comes from this machine."""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access
from ray_multicluster_scheduler.control_plane.admin_api.access.guard import SAFE, same_origin
from ray_multicluster_scheduler.control_plane.admin_api.access.refusal import Refusal, refuse

_BODIES = frozenset({"application/json", "application/octet-stream"})


class OnlyLocal:
    """Refuses requests that name another host (a name that was bent to this machine), that come from a page of another
    place, or whose body is of a kind that any page may send without asking. Pages of the places that ``access`` lists
    are let through, and told so."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        problem = self._problem(scope, headers)
        kind = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        if problem is None and kind and scope.get("method") in ("POST", "PUT") and kind not in _BODIES:
            problem = f"A body of the kind {kind} is not taken."
            await refuse(scope, send, Refusal(415, problem, _KINDS, "ConfigurationError"))
            return
        if problem is None and not kind and b"origin" in headers and scope.get("method", "GET") not in _WITHOUT_BODY:
            problem = "A page has to say what it sends."
        if problem is not None:
            await refuse(scope, send, Refusal(403, problem, _NEXT, "ConfigurationError"))
            return
        origin = headers.get(b"origin")
        if origin is None or scope["type"] != "http" or not self._is_listed(origin.decode("latin-1")):
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            await send({"type": "http.response.start", "status": 204, "headers": [*_allowed(origin), *_PREFLIGHT]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self._app(scope, receive, _telling(send, origin))

    def _problem(self, scope: Scope, headers: dict[bytes, bytes]) -> str | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if host and not self._is_ours(_host_of(f"//{host}")):
            return f"This service is not {host}."
        origin = headers.get(b"origin", b"").decode("latin-1")
        listed = bool(origin) and self._is_listed(origin)
        if origin and not listed and not self._is_ours(_host_of(origin)):
            return f"A page of {origin} may not use this service."
        changes = scope["type"] != "http" or scope["method"] not in SAFE
        if origin and not listed and changes and self._access.book is None and not same_origin(scope):
            return f"A page of {origin} may only look, without a token."
        return None

    def _is_ours(self, host: str | None) -> bool:
        return host is not None and (_is_local(host) or host in self._access.hosts)

    def _is_listed(self, origin: str) -> bool:
        return bool(self._access.origins) and origin.lower() in self._access.origins


_NEXT = "ask under a name of this service, with Content-Type: application/json; on its own machine at 127.0.0.1"
_KINDS = "send JSON, with Content-Type: application/json (payloads: application/octet-stream)"
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
_PREFLIGHT = [
    (b"access-control-allow-methods", b"GET, POST, PUT, DELETE"),
    (b"access-control-allow-headers", b"Authorization, Content-Type, Idempotency-Key, Last-Event-ID"),
    (b"access-control-max-age", b"600"),
]


def _allowed(origin: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]


def _telling(send: Send, origin: bytes) -> Send:
    """The browser may show the answer to that page. No cookies: it has a token of its own."""

    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_allowed(origin)]}
        await send(message)

    return tell


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).hostname
    except ValueError:
        return None


def _is_local(host: Any) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(str(host)).is_loopback
    except ValueError:
        return False
