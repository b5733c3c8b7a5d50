"""Guard: finds out who asks, before anything else does."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access
from ray_multicluster_scheduler.control_plane.admin_api.access.refusal import Refusal, refuse
from ray_multicluster_scheduler.control_plane.admin_api.access.roles import Caller
from ray_multicluster_scheduler.control_plane.admin_api.access.sessions import cookie_in, name_of
from ray_multicluster_scheduler.control_plane.admin_api.access.tokens import PREFIX, Refused

NOBODY = Caller("", frozenset())
STREAMS = ("/api/v1/events",)
"""Where a page cannot send a header, beside web sockets: a ticket is taken there, and below."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_TOKEN_WORDS = frozenset({"token", "access_token", "auth", "authorization", "api_key", "apikey"})
_NO_TOKEN = Refusal(
    401,
    "This service wants a token.",
    "send Authorization: Bearer, with the token in the service's state folder or one of rmcs token create",
)
_NOT_BEARER = Refusal(401, "The Authorization header is no Bearer token.", "send Authorization: Bearer and the token")
_IN_ADDRESS = Refusal(
    400,
    "There is a token in the address, where logs and histories keep it.",
    "send Authorization: Bearer; for a web socket or a stream of events, a ticket of POST /api/v1/ticket. "
    "Revoke that token if others may have seen it",
)
_NO_TICKET_HERE = Refusal(
    403, "A ticket is for web sockets and streams of events.", "send Authorization: Bearer for everything else"
)
_OLD_TICKET = Refusal(401, "This ticket was used, or is too old.", "get another one from POST /api/v1/ticket")
_SESSION_OVER = Refusal(401, "This session is over.", "log in again")
_OTHER_ORIGIN = Refusal(
    403, "This does not come from a page of this service.", "send Authorization: Bearer instead of the cookie"
)


class Guard:
    """Every request that passes it has a ``caller`` in its scope."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        found = self.caller(scope)
        if isinstance(found, Refusal):
            if found.status != 401 or not self._access.is_open(scope["path"]):
                await refuse(scope, send, found)
                return
            found = NOBODY
        scope["caller"] = found
        await self._app(scope, receive, send)

    def caller(self, scope: Scope) -> Caller | Refusal:
        """Whoever asks."""
        query = scope["query_string"]
        said = parse_qsl(query.decode("latin-1"), keep_blank_values=True) if query else []
        if said and any(name.lower() in _TOKEN_WORDS or value.startswith(f"{PREFIX}_") for name, value in said):
            return _IN_ADDRESS
        access = self._access
        if access.book is None:
            return access.anybody
        authorization: bytes | None = None
        cookies: list[bytes] = []
        for name, value in scope["headers"]:
            if name == b"authorization":
                authorization = value
            elif name == b"cookie":
                cookies.append(value)
        if authorization is not None:
            kind, _, token = authorization.decode("latin-1").partition(" ")
            if kind.lower() != "bearer":
                return _NOT_BEARER
            found = access.book.check(token.strip())
            return Refusal(401, found.sentence, _NO_TOKEN.next_step) if isinstance(found, Refused) else found
        tickets = [value for name, value in said if name == "ticket"]
        if tickets:
            if not is_stream(scope):
                return _NO_TICKET_HERE
            caller = access.tickets.use(tickets[0])
            return caller if caller is not None and access.lets_in(caller) else _OLD_TICKET
        session = cookie_in("; ".join(one.decode("latin-1") for one in cookies)) if cookies else None
        return self._of_session(scope, session) if session else _NO_TOKEN

    def _of_session(self, scope: Scope, session: str) -> Caller | Refusal:
        found = self._access.sessions.check(session)
        if found is None:
            return _SESSION_OVER
        if (scope["type"] == "websocket" or scope["method"] not in SAFE) and not same_origin(scope):
            return _OTHER_ORIGIN
        return found._replace(session=name_of(session))


def is_stream(scope: Scope) -> bool:
    """Is this where a page has no other way than a ticket?"""
    if scope["type"] == "websocket":
        return True
    path: str = scope["path"]
    return scope["method"] == "GET" and any(path == one or path.startswith(f"{one}/") for one in STREAMS)


def same_origin(scope: Scope) -> bool:
    """Does the browser say that this comes from one of our own pages? One that says nothing does not count."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if origin is None:
        return site == b"same-origin"
    if site is not None and site != b"same-origin":
        return False
    scheme = {"ws": "http", "wss": "https"}.get(scope["scheme"], scope["scheme"])
    return _place(origin.decode("latin-1")) == _place(f"{scheme}://{headers.get(b'host', b'').decode('latin-1')}")


def _place(origin: str) -> tuple[Any, ...] | None:
    try:
        parts = urlsplit(origin)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname else (origin,)
