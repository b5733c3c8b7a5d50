"""The ASGI middleware of the service, in the order in which a request passes it.

:class:`ErrorMiddleware` answers defects, :class:`OriginGuard` refuses requests of foreign web pages,
:class:`AuthMiddleware` finds the caller, :class:`FastPathMiddleware` serves the most frequent requests directly.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Caller, Rule, enforce
from ray_multicluster_scheduler.control_plane.admin_api.access.sessions import hash_of, session_cookie
from ray_multicluster_scheduler.control_plane.admin_api.access.tokens import PREFIX
from ray_multicluster_scheduler.control_plane.admin_api.http import problems

_log = get_logger(__name__)
Handler = Callable[[Request], Awaitable[Response]]
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_CONTENT_TYPE = (b"content-type", b"application/problem+json")


class ErrorMiddleware:
    """Answers an unexpected exception with a problem document that names its log entry. The exception itself is only
    in the log, since its text may hold a secret."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def logged(message: Message) -> None:
            nonlocal started
            if not started and _log.isEnabledFor(logging.DEBUG):
                _log.debug("%s %r: %s", scope["method"], scope["path"], message.get("status"))
            started = True
            await send(message)

        try:
            await self._app(scope, receive, logged)
        except ClientDisconnect:
            _log.debug("%s %s: the client disconnected", scope["method"], scope["path"])
        except RecursionError:
            if started:
                raise
            _log.warning("%s %s: nested too deeply, or a defect", scope["method"], scope["path"], exc_info=True)
            sentence = "The request is nested too deeply."
            document = problems.problem(422, "TOO_DEEP", "ConfigurationError", sentence, "send fewer levels")
            await _send_document(send, "http.response", document)
        except Exception:
            name = secrets.token_hex(4)
            _log.exception("defect %s: %s %s", name, scope["method"], scope["path"])
            if started:
                raise  # the connection must break: a partial answer must not look complete
            sentence = f"Internal error {name} of the service (a defect)."
            step = f"search the log of the service for {name}, and report it"
            document = problems.problem(500, "DEFECT", "SchedulerError", sentence, step)
            await _send_document(send, "http.response", {**document, "id": name})


async def _send_document(
    send: Send, kind: str, document: Mapping[str, Any], headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    body = json.dumps(document).encode()
    sent = [_CONTENT_TYPE, (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": f"{kind}.start", "status": document["status"], "headers": sent})
    await send({"type": f"{kind}.body", "body": body})


# ---- refusing a request before it reaches a route


class Denial(NamedTuple):
    status: int
    message: str
    next_step: str
    error: str = "NotAllowedError"


_DENIAL_CODES = {400: "BAD_REQUEST", 401: "NOT_LET_IN"}


async def deny(scope: Scope, send: Send, denial: Denial) -> None:
    """Send the denial as a problem document. A WebSocket is closed unopened, with the document if that is possible."""
    status, message, next_step, error = denial
    code = _DENIAL_CODES.get(status, "NOT_ALLOWED" if error == "NotAllowedError" else "CONFIGURATION")
    if scope["type"] == "http":
        kind = "http.response"
    elif "websocket.http.response" in scope.get("extensions", {}):
        kind = "websocket.http.response"
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": message[:100]})
        return
    headers = [(b"www-authenticate", b"Bearer")] if status == 401 else []
    await _send_document(send, kind, problems.problem(status, code, error, message, next_step), headers)


# ---- browsers

_BODIES = frozenset({"application/json", "application/octet-stream"})
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
_USE_OUR_NAME = "use a name of this service, with Content-Type: application/json; on its own machine 127.0.0.1"
_USE_JSON = "send JSON, with Content-Type: application/json (payloads: application/octet-stream)"
_PREFLIGHT = [
    (b"access-control-allow-methods", b"GET, POST, PUT, DELETE"),
    (b"access-control-allow-headers", b"Authorization, Content-Type, Idempotency-Key, Last-Event-ID"),
    (b"access-control-max-age", b"600"),
]


class _Guard(ABC):
    """Handles HTTP requests and WebSockets; passes on other scopes."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        await self._handle(scope, receive, send)

    @abstractmethod
    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class OriginGuard(_Guard):
    """Protects a service on this machine from web pages: refuses requests with a foreign Host (DNS rebinding) or a
    foreign Origin, and bodies of the types that a page may send without a preflight (CSRF). Origins listed in
    ``access`` are let through and get CORS headers."""

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        denial = self._denial(scope, headers)
        if denial is not None:
            await deny(scope, send, denial)
            return
        origin = headers.get(b"origin")
        if origin is None or scope["type"] != "http" or not self._is_listed(origin.decode("latin-1")):
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            await send({"type": "http.response.start", "status": 204, "headers": [*_cors(origin), *_PREFLIGHT]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self._app(scope, receive, _with_cors(send, origin))

    def _denial(self, scope: Scope, headers: dict[bytes, bytes]) -> Denial | None:
        message = self._origin_problem(scope, headers)
        content_type = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        if message is None and content_type and scope.get("method") in ("POST", "PUT") and content_type not in _BODIES:
            return Denial(415, f"A body of the type {content_type} is not accepted.", _USE_JSON, "ConfigurationError")
        has_body = scope.get("method", "GET") not in _WITHOUT_BODY
        if message is None and not content_type and b"origin" in headers and has_body:
            message = "A web page must send a Content-Type."
        return None if message is None else Denial(403, message, _USE_OUR_NAME, "ConfigurationError")

    def _origin_problem(self, scope: Scope, headers: dict[bytes, bytes]) -> str | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if host and not self._is_ours(_host_of(f"//{host}")):
            return f"{host} is not a name of this service."
        origin = headers.get(b"origin", b"").decode("latin-1")
        listed = bool(origin) and self._is_listed(origin)
        if origin and not listed and not self._is_ours(_host_of(origin)):
            return f"A page of {origin} may not use this service."
        changes = scope["type"] != "http" or scope["method"] not in SAFE
        if origin and not listed and changes and self._access.tokens is None and not same_origin(scope):
            return f"A page of {origin} may only read, because this service requires no tokens."
        return None

    def _is_ours(self, host: str | None) -> bool:
        return host is not None and (_is_local(host) or host in self._access.hosts)

    def _is_listed(self, origin: str) -> bool:
        return bool(self._access.origins) and origin.lower() in self._access.origins


def _cors(origin: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]


def _with_cors(send: Send, origin: bytes) -> Send:
    """Let the browser show the answer to that page; without cookies, since the page has a token of its own."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_cors(origin)]}
        await send(message)

    return sending


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).hostname
    except ValueError:
        return None


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def same_origin(scope: Scope) -> bool:
    """Does the browser state that the request comes from a page of this service? No statement counts as no."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if origin is None:
        return site == b"same-origin"
    if site is not None and site != b"same-origin":
        return False
    scheme = {"ws": "http", "wss": "https"}.get(scope["scheme"], scope["scheme"])
    return _origin_parts(origin.decode("latin-1")) == _origin_parts(
        f"{scheme}://{headers.get(b'host', b'').decode('latin-1')}"
    )


def _origin_parts(origin: str) -> tuple[Any, ...] | None:
    try:
        parts = urlsplit(origin)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname else (origin,)


# ---- authentication

ANONYMOUS = Caller("", frozenset())
_STREAM = "/api/v1/events"
_TOKEN_PARAMETERS = frozenset({"token", "access_token", "auth", "authorization", "api_key", "apikey"})
_NO_TOKEN = Denial(
    401,
    "This service requires a token.",
    "send Authorization: Bearer, with the token in the service's state folder or one of rmcs token create",
)
_UNKNOWN_TOKEN = Denial(401, "This token is unknown, was revoked, or has expired.", _NO_TOKEN.next_step)
_NOT_BEARER = Denial(401, "The Authorization header has no Bearer token.", "send Authorization: Bearer and the token")
_TOKEN_IN_URL = Denial(
    400,
    "The URL contains a token, which logs and browser histories keep.",
    "send Authorization: Bearer; for a WebSocket or a stream of events, a ticket of POST /api/v1/ticket. "
    "Revoke that token if others may have seen it",
)
_NO_TICKET_HERE = Denial(
    403, "A ticket is for WebSockets and streams of events.", "send Authorization: Bearer for everything else"
)
_OLD_TICKET = Denial(401, "This ticket was used, or has expired.", "request another one: POST /api/v1/ticket")
_SESSION_OVER = Denial(401, "This session has ended.", "log in again")
_OTHER_ORIGIN = Denial(
    403, "The request does not come from a page of this service.", "send Authorization: Bearer instead of the cookie"
)


class AuthMiddleware(_Guard):
    """Finds the caller by token, ticket or session cookie and puts it into ``scope["caller"]``, or denies the
    request. Open routes are reached without a caller."""

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self.caller(scope)
        if isinstance(found, Denial):
            if found.status != 401 or not self._access.is_open(scope["path"]):
                await deny(scope, send, found)
                return
            found = ANONYMOUS
        scope["caller"] = found
        await self._app(scope, receive, send)

    def caller(self, scope: Scope) -> Caller | Denial:
        query = scope["query_string"]
        parameters = parse_qsl(query.decode("latin-1"), keep_blank_values=True) if query else []
        if parameters and any(
            name.lower() in _TOKEN_PARAMETERS or value.startswith(f"{PREFIX}_") for name, value in parameters
        ):
            return _TOKEN_IN_URL
        access = self._access
        if access.tokens is None:
            return access.local_user
        authorization: bytes | None = None
        cookies: list[bytes] = []
        for name, value in scope["headers"]:
            if name == b"authorization":
                authorization = value
            elif name == b"cookie":
                cookies.append(value)
        if authorization is not None:
            scheme, _, token = authorization.decode("latin-1").partition(" ")
            if scheme.lower() != "bearer":
                return _NOT_BEARER
            found = access.tokens.check(token.strip())
            return found or _UNKNOWN_TOKEN
        tickets = [value for name, value in parameters if name == "ticket"]
        if tickets:
            if not is_stream(scope):
                return _NO_TICKET_HERE
            caller = access.tickets.use(tickets[0])
            return caller if caller is not None and access.is_valid(caller) else _OLD_TICKET
        session = session_cookie("; ".join(one.decode("latin-1") for one in cookies)) if cookies else None
        return self._of_session(scope, session) if session else _NO_TOKEN

    def _of_session(self, scope: Scope, session: str) -> Caller | Denial:
        found = self._access.sessions.check(session)
        if found is None:
            return _SESSION_OVER
        if (scope["type"] == "websocket" or scope["method"] not in SAFE) and not same_origin(scope):
            return _OTHER_ORIGIN
        return found._replace(session=hash_of(session))


def is_stream(scope: Scope) -> bool:
    """Is this a WebSocket or an event stream, which accept a ticket, since a page cannot send a header there?"""
    if scope["type"] == "websocket":
        return True
    return scope["method"] == "GET" and f"{scope['path']}/".startswith(f"{_STREAM}/")


# ---- routing


class FastPathMiddleware:
    """Calls ``handlers`` (by path, for POST) directly: submit, wait and call skip FastAPI's routing and validation.
    They validate their bodies themselves, and are also routes of the app, for the OpenAPI document."""

    def __init__(self, app: ASGIApp, handlers: Mapping[str, tuple[Rule, Handler]]) -> None:
        self._app, self._handlers = app, handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._handlers.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None or scope["query_string"]:  # the app refuses query parameters here
            await self._app(scope, receive, send)
            return
        rule, handler = found
        request = Request(scope, receive)
        try:
            enforce(rule, request)
            response = await handler(request)
        except SchedulerError as error:
            response = problems.problem_response(problems.problem_of(error))
        await response(scope, receive, send)


async def refuse_unknown_parameters(request: HTTPConnection) -> None:
    """A dependency of every route: a misspelt query parameter must not be ignored. Raises ConfigurationError."""
    route = request.scope["route"]
    if not request.url.query or not isinstance(route, APIRoute):  # a WebSocket checks its own parameters
        return
    known = [field.alias for field in route.dependant.query_params]
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        names = ", ".join(repr(name[:100]) for name in unknown[:5])
        raise ConfigurationError(
            f"{request.scope['method']} {request.url.path} has no parameter {names}.",
            next_step=f"use {', '.join(known)}" if known else "send no parameters",
        )
