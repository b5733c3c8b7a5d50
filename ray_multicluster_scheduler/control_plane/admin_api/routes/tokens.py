"""Routes of access: tokens (list, create, revoke), browser sessions and stream tickets."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ray_multicluster_scheduler.common.exception import ConfigurationError, NotAllowedError
from ray_multicluster_scheduler.control_plane.admin_api.access import sessions
from ray_multicluster_scheduler.control_plane.admin_api.access.audit import record_action
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Rule, caller_of
from ray_multicluster_scheduler.control_plane.admin_api.access.tokens import TokenStore, roles_of
from ray_multicluster_scheduler.control_plane.admin_api.http.problems import JsonResponse
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import access_of, is_text, json_of, texts
from ray_multicluster_scheduler.control_plane.admin_api.schemas import service as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import described

router = APIRouter(prefix="/api/v1")


@router.post("/session", tags=["login"], **described(Rule.KNOWN, docs.Session))
async def log_in(request: Request) -> Response:
    """Begin a browser session: send ``Authorization: Bearer``; the answer sets a cookie that scripts cannot read. The
    session ends after twelve hours, when its token becomes invalid, with ``DELETE``, or when the service stops."""
    access = access_of(request)
    if access.tokens is not None and "authorization" not in request.headers:
        raise NotAllowedError(
            "A session requires a token.", next_step="send Authorization: Bearer, with the token to log in with"
        )
    caller = caller_of(request)
    lasts_s = _lasts_s(request, access.sessions.lasts_s)
    answer = JsonResponse({"user": caller.user, "roles": sorted(caller.roles), "expires_in": lasts_s})
    secret = access.sessions.make(caller)
    answer.headers["set-cookie"] = sessions.set_cookie(secret, lasts_s, secure=_secure(request))
    answer.headers["cache-control"] = "no-store"
    return answer


@router.delete("/session", tags=["login"], **described(Rule.KNOWN, docs.Ended))
async def log_out(request: Request) -> Response:
    """End the session of the cookie."""
    access = access_of(request)
    secret = sessions.session_cookie(request.headers.get("cookie", ""))
    if secret:
        access.sessions.end(secret)
    answer = JsonResponse({"ended": bool(secret)})
    answer.headers["set-cookie"] = sessions.set_cookie("", 0, secure=_secure(request))
    return answer


@router.post("/ticket", tags=["login"], **described(Rule.KNOWN, docs.Ticket))
async def ticket(request: Request) -> Response:
    """Make a ticket for one WebSocket or one event stream, for pages that cannot send a header: ``?ticket=…``. It is
    valid once, for 30 seconds."""
    access = access_of(request)
    ticket: dict[str, Any] = {
        "ticket": access.tickets.make(caller_of(request)),
        "expires_in": _lasts_s(request, access.tickets.lasts_s),
    }
    return JsonResponse(ticket, headers={"cache-control": "no-store"})


def _lasts_s(request: Request, at_most: float) -> float:
    """A session or ticket does not outlast its token."""
    left = access_of(request).seconds_left(caller_of(request))
    return at_most if left is None else round(min(at_most, max(left, 0.0)), 3)


def _secure(request: Request) -> bool:
    """Was the request sent over TLS, ours or that of a local proxy?"""
    return access_of(request).secure or request.url.scheme == "https"


@router.get("/tokens", tags=["tokens"], **described(Rule.ADMINISTER, docs.Tokens))
async def list_tokens(request: Request) -> dict[str, Any]:
    """All tokens, oldest first, including expired ones; without their secret texts."""
    return {"tokens": _store(request).list()}


@router.post("/tokens", tags=["tokens"], **described(Rule.ADMINISTER, docs.NewToken, docs.CreateToken))
async def create(request: Request) -> dict[str, Any]:
    """Create a token: ``{"user": "alice", "roles": ["submitter"], "note": "", "expires_at": seconds since 1970, or
    null}``. The answer has its secret text, this once: only a hash is stored."""
    store, body = _store(request), await json_of(request)
    for key in body:
        if key not in ("user", "roles", "note", "expires_at"):
            raise ConfigurationError(f"A token has no {key!r}.", next_step="give user, roles, note and expires_at")
    user, note, expires_at = body.get("user"), body.get("note", ""), body.get("expires_at")
    if not isinstance(user, str) or not is_text(user):
        raise ConfigurationError(f"user is {str(user)[:100]!r}.", next_step="give the name of the user of the token")
    if "/" in user or user in (".", ".."):
        raise ConfigurationError(
            f"user is {user[:100]!r}, which cannot be part of a URL.",
            next_step="use a name without /, other than . and ..",
        )
    if not isinstance(note, str) or not is_text(note):
        raise ConfigurationError(f"note is {str(note)[:100]!r}.", next_step="give a text")
    if isinstance(expires_at, bool) or not isinstance(expires_at, (int, float, type(None))):
        raise ConfigurationError(
            f"expires_at is {str(expires_at)[:100]!r}.", next_step="give seconds since 1970, or null for never"
        )
    # Not in a thread: all of them may be busy reading, and a revocation must not wait for them.
    token, text, writing = store.begin_create(user, roles_of(texts(body, "roles")), note, expires_at)
    await store.written(writing)
    about = store.activate(token)
    await record_action(request, "token create", about["id"], {"user": user, "roles": ",".join(about["roles"])})
    return {**about, "token": text}


@router.delete("/tokens/{token_id}", tags=["tokens"], **described(Rule.ADMINISTER, docs.Token))
async def revoke(request: Request, token_id: str, force: bool = False) -> dict[str, Any]:
    """Make a token invalid at once, and end its streams. The last token of an admin needs ``force``. Answered when it
    is durable; if it cannot be written now, the token is invalid all the same, and the request can be repeated."""
    store = _store(request)
    about, writing = store.begin_revoke(token_id, force=force)
    await record_action(request, "token revoke", token_id, {"of": about["user"]})
    await store.written(writing)
    return about


def _store(request: Request) -> TokenStore:
    store = access_of(request).tokens
    if store is None:
        raise ConfigurationError(
            "This service requires no tokens (auth: none).", next_step="start it with --auth token"
        )
    return store
