"""How a page in a browser is let in: a session for what it asks, a ticket for each stream."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ray_multicluster_scheduler.common.exception import NotAllowedError
from ray_multicluster_scheduler.control_plane.admin_api.access import sessions
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import Rule, caller_of
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import Answer, access_of
from ray_multicluster_scheduler.control_plane.admin_api.schemas import tokens as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import described

router = APIRouter(prefix="/api/v1", tags=["login"])


@router.post("/session", **described(Rule.KNOWN, docs.LOG_IN))
async def log_in(request: Request) -> Response:
    """Begin a session: asked with ``Authorization: Bearer``, answered with a cookie that only the browser itself can
    read. It ends after twelve hours, with its token, with ``DELETE``, or with the service."""
    access = access_of(request)
    if access.book is not None and "authorization" not in request.headers:
        raise NotAllowedError(
            "A session begins with a token.", next_step="send Authorization: Bearer, with the token to log in with"
        )
    caller = caller_of(request)
    lasts_s = _lasts_s(request, access.sessions.lasts_s)
    answer = Answer({"user": caller.user, "roles": sorted(caller.roles), "expires_in": lasts_s})
    secret = access.sessions.make(caller)
    answer.headers["set-cookie"] = sessions.cookie(secret, lasts_s, secure=_secure(request))
    answer.headers["cache-control"] = "no-store"
    return answer


@router.delete("/session", **described(Rule.KNOWN, docs.LOG_OUT))
async def log_out(request: Request) -> Response:
    """The end of the session, whoever has its cookie."""
    access = access_of(request)
    secret = sessions.cookie_in(request.headers.get("cookie", ""))
    if secret:
        access.sessions.end(secret)
    answer = Answer({"ended": bool(secret)})
    answer.headers["set-cookie"] = sessions.cookie("", 0, secure=_secure(request))
    return answer


@router.post("/ticket", **described(Rule.KNOWN, docs.TICKET))
async def ticket(request: Request) -> Response:
    """A ticket for one web socket, or one stream of events, where a page cannot send a header: ``?ticket=…``. It is
    good for 30 seconds, once."""
    access = access_of(request)
    said: dict[str, Any] = {
        "ticket": access.tickets.make(caller_of(request)),
        "expires_in": _lasts_s(request, access.tickets.lasts_s),
    }
    return Answer(said, headers={"cache-control": "no-store"})


def _lasts_s(request: Request, at_most: float) -> float:
    """Nothing that a token has opened lasts longer than itself."""
    left = access_of(request).left_s(caller_of(request))
    return at_most if left is None else round(min(at_most, max(left, 0.0)), 3)


def _secure(request: Request) -> bool:
    """Is it reached over TLS, its own or that of a proxy on this machine?"""
    return access_of(request).secure or request.url.scheme == "https"
