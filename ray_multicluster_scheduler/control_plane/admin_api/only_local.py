"""OnlyLocal: what a page in somebody's browser sends is not obeyed, although it comes from this machine."""

from __future__ import annotations

import ipaddress
import json
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

_BODIES = frozenset({"application/json", "application/octet-stream"})


class OnlyLocal:
    """Refuses requests that name another host (a name that was bent to this machine), that come from a page of another
    place, or whose body is of a kind that any page may send without asking."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = _problem(scope) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
            return
        said = {
            "type": "about:blank",
            "title": "Forbidden",
            "status": 403,
            "error": "ConfigurationError",
            "code": "FORBIDDEN",
        }
        body = json.dumps({**said, "detail": problem, "message": problem, "next_step": _NEXT}).encode()
        headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": body})


_NEXT = "ask from a program on this machine, at 127.0.0.1, with Content-Type: application/json"


def _problem(scope: Scope) -> str | None:
    headers: dict[bytes, bytes] = dict(scope["headers"])
    host = headers.get(b"host", b"").decode("latin-1")
    if host and not _is_local(urlsplit(f"//{host}").hostname):
        return f"This service is not {host}."
    origin = headers.get(b"origin", b"").decode("latin-1")
    if origin and not _is_local(_host_of(origin)):
        return f"A page of {origin} may not use this service."
    kind = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    if kind and scope["method"] in ("POST", "PUT") and kind not in _BODIES:
        return f"A body of the kind {kind} is not taken."
    if not kind and origin:
        return "A page has to say what it sends."
    return None


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
