"""needs(): every route says what its caller must be allowed to do. One without a rule is not served."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from typing import Any

from fastapi import Depends, Request
from fastapi.routing import APIRoute, APIWebSocketRoute
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute
from starlette.websockets import WebSocket

from ray_multicluster_scheduler.common.exception import NotAllowedError
from ray_multicluster_scheduler.control_plane.admin_api.access.roles import Caller, Role


class NotLetInError(NotAllowedError):
    """The token is not good any more: 401, where a role that is missing is 403."""


Socket = Callable[[WebSocket], Awaitable[None]]
RULE = "x-rule"
"""Where a route's rule stands in the OpenAPI document."""


class Rule(StrEnum):
    OPEN = "open"
    """Whoever reaches us, without a token."""
    KNOWN = "known"
    """Whoever has a token: of the fleet, not of anybody's work."""
    SEE = "see"
    """Whoever has a token; a submitter who is nothing else only with what is its user's own."""
    STEER = "steer"
    """Operators, and submitters with what is their user's own."""
    SUBMIT = "submit"
    """Submitters: what they send is run."""
    OPERATE = "operate"
    """Operators and admins."""
    ADMINISTER = "administer"
    """Admins."""

    @property
    def roles(self) -> frozenset[Role]:
        """Who may ask at all; handlers look whose item it is where that matters."""
        return _ROLES[self]


_ROLES = {
    Rule.OPEN: frozenset(Role),
    Rule.KNOWN: frozenset(Role),
    Rule.SEE: frozenset(Role),
    Rule.STEER: frozenset({Role.SUBMITTER, Role.OPERATOR, Role.ADMIN}),
    Rule.SUBMIT: frozenset({Role.SUBMITTER}),
    Rule.OPERATE: frozenset({Role.OPERATOR, Role.ADMIN}),
    Rule.ADMINISTER: frozenset({Role.ADMIN}),
}


def needs(rule: Rule) -> dict[str, Any]:
    """For the decorator of a route: ``@router.get("/clusters", **needs(Rule.KNOWN))``."""

    async def check(request: Request) -> None:
        enforce(rule, request)

    checks = [] if rule is Rule.OPEN else [Depends(check)]
    return {"dependencies": checks, "openapi_extra": {RULE: str(rule)}}


def enforce(rule: Rule, request: HTTPConnection) -> None:
    """Also for a web socket, which has no dependencies to say so. Raises NotAllowedError."""
    caller = caller_of(request)
    if not caller.roles & rule.roles:
        wanted = " or ".join(sorted(rule.roles))
        raise NotAllowedError(
            f"{request.scope.get('method', 'WebSocket')} {request.url.path} is for a token with the role {wanted}; "
            f"that of {caller.user} is {', '.join(sorted(caller.roles))}.",
            next_step=f"use a token with the role {wanted} (rmcs token create)",
        )


def only_owner_of(connection: HTTPConnection) -> str | None:
    """Whose work alone the caller may know of; None: everybody's."""
    caller = caller_of(connection)
    return None if caller.sees_all else caller.user


def caller_of(request: HTTPConnection) -> Caller:
    """Whoever asks, as the guard at the door found out."""
    caller: Caller = request.scope["caller"]
    return caller


def still_let_in(request: HTTPConnection) -> bool:
    """For what lasts longer than a question: is the caller's token neither revoked nor expired by now, and its
    session not over?"""
    lets_in: bool = request.app.state.access.lets_in(caller_of(request))
    return lets_in


def check_still_let_in(request: HTTPConnection) -> None:
    """Raises NotLetInError."""
    if not still_let_in(request):
        raise not_let_in()


def not_let_in() -> NotLetInError:
    return NotLetInError(
        "The token was revoked, or has expired, or the session is over.",
        next_step="use another one, or log in again",
    )


def check_seen(request: HTTPConnection, owner: str, what: str) -> None:
    """Raises NotAllowedError if the caller may not know of ``what``, which is this owner's."""
    caller = caller_of(request)
    if not caller.may_see(owner):
        raise _somebody_elses(caller, what)


def check_steered(request: HTTPConnection, owner: str, what: str) -> None:
    """Raises NotAllowedError if the caller may not change ``what``, or read its value."""
    caller = caller_of(request)
    if not caller.may_steer(owner):
        raise _somebody_elses(caller, what)


def _somebody_elses(caller: Caller, what: str) -> NotAllowedError:
    return NotAllowedError(
        f"{what} is not {caller.user}'s.",
        next_step="use a token of its owner, or one with the role operator",
    )


def without_rule(routes: Iterable[BaseRoute]) -> list[str]:
    """The paths of routes that do not say who may use them; what is no route of a kind that we know says nothing."""
    return [str(getattr(route, "path", route)) for route in routes if _rule_of(route) not in set(Rule)]


def _rule_of(route: BaseRoute) -> object:
    if isinstance(route, APIRoute):
        return (route.openapi_extra or {}).get(RULE)
    return getattr(route.endpoint, RULE, None) if isinstance(route, APIWebSocketRoute) else None


def needs_of_socket(rule: Rule) -> Callable[[Socket], Socket]:
    """The same for what answers a web socket, which is not in the OpenAPI document."""

    def ruled(handler: Socket) -> Socket:
        @functools.wraps(handler)
        async def checked(websocket: WebSocket) -> None:
            enforce(rule, websocket)
            await handler(websocket)

        setattr(checked, RULE, rule)
        return checked

    return ruled
