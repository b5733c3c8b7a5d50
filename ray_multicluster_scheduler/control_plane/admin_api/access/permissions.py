"""Roles of tokens, callers of requests, and the rule that each route declares: who may use it."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from typing import Any, NamedTuple

from fastapi import Depends, Request
from fastapi.routing import APIRoute, APIWebSocketRoute
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute
from starlette.websockets import WebSocket

from ray_multicluster_scheduler.common.exception import NotAllowedError

WebSocketHandler = Callable[[WebSocket], Awaitable[None]]
RULE = "x-rule"
"""Key of a route's rule in the OpenAPI document."""


class NotLetInError(NotAllowedError):
    """The token or session is no longer valid: 401, while a missing role is 403."""


class Role(StrEnum):
    """What a token permits. A token may have several; only ``submitter`` includes the right to submit."""

    VIEWER = "viewer"
    """Reads all but code, arguments and values."""
    SUBMITTER = "submitter"
    """Runs code, and sees and steers its user's own items."""
    OPERATOR = "operator"
    """Sees everything, and steers all items and clusters."""
    ADMIN = "admin"
    """As an operator, and changes tokens and settings."""


class Caller(NamedTuple):
    """The sender of a request. ``token`` is the id of the token used, None if the service requires none. ``session`` is
    the hash of the session of a web page, if the request came with its cookie or a ticket made in it."""

    user: str
    roles: frozenset[Role]
    token: str | None = None
    session: bytes | None = None

    @property
    def sees_all(self) -> bool:
        return bool(self.roles & {Role.VIEWER, Role.OPERATOR, Role.ADMIN})

    @property
    def steers_all(self) -> bool:
        return bool(self.roles & {Role.OPERATOR, Role.ADMIN})

    @property
    def submits(self) -> bool:
        return Role.SUBMITTER in self.roles

    def may_see(self, owner: str) -> bool:
        """May see the state and output of an item of this owner."""
        return self.sees_all or (self.submits and owner == self.user)

    def may_steer(self, owner: str) -> bool:
        """May cancel or hold an item of this owner, and read its value."""
        return self.steers_all or (self.submits and owner == self.user)


class Rule(StrEnum):
    """The permission that a route requires. Rules about items admit a role; the handler then checks the owner of the
    item."""

    OPEN = "open"
    """All callers, without a token."""
    KNOWN = "known"
    """Every token: information about the fleet, not about items."""
    SEE = "see"
    """Every token; one with the role submitter alone sees its user's own items."""
    STEER = "steer"
    """Operators, and submitters for their user's own items."""
    SUBMIT = "submit"
    """Submitters: the service runs what they send."""
    OPERATE = "operate"
    """Operators and admins."""
    ADMINISTER = "administer"
    """Admins."""

    @property
    def roles(self) -> frozenset[Role]:
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


def needs_of_socket(rule: Rule) -> Callable[[WebSocketHandler], WebSocketHandler]:
    """The same as a decorator for the handler of a WebSocket, which is not in the OpenAPI document."""

    def ruled(handler: WebSocketHandler) -> WebSocketHandler:
        @functools.wraps(handler)
        async def checked(websocket: WebSocket) -> None:
            enforce(rule, websocket)
            await handler(websocket)

        setattr(checked, RULE, rule)
        return checked

    return ruled


def routes_without_rule(routes: Iterable[BaseRoute]) -> list[str]:
    """The paths of routes that declare no rule; a route of an unknown kind declares none."""
    return [str(getattr(route, "path", route)) for route in routes if _rule_of(route) not in set(Rule)]


def _rule_of(route: BaseRoute) -> object:
    if isinstance(route, APIRoute):
        return (route.openapi_extra or {}).get(RULE)
    return getattr(route.endpoint, RULE, None) if isinstance(route, APIWebSocketRoute) else None


def enforce(rule: Rule, request: HTTPConnection) -> None:
    """Raises NotAllowedError if the caller has none of the rule's roles."""
    caller = caller_of(request)
    if not caller.roles & rule.roles:
        wanted = " or ".join(sorted(rule.roles))
        raise NotAllowedError(
            f"{request.scope.get('method', 'WebSocket')} {request.url.path} requires a token with the role {wanted}; "
            f"the token of {caller.user} has {', '.join(sorted(caller.roles))}.",
            next_step=f"use a token with the role {wanted} (rmcs token create)",
        )


def caller_of(request: HTTPConnection) -> Caller:
    """The caller that AuthMiddleware found."""
    caller: Caller = request.scope["caller"]
    return caller


def visible_owner(connection: HTTPConnection) -> str | None:
    """The only owner whose items the caller may see; None: all owners."""
    caller = caller_of(connection)
    return None if caller.sees_all else caller.user


def is_still_valid(request: HTTPConnection) -> bool:
    """For long-lived answers: are the caller's token and session still valid?"""
    valid: bool = request.app.state.access.is_valid(caller_of(request))
    return valid


def no_longer_valid() -> NotLetInError:
    return NotLetInError(
        "The token was revoked, or has expired, or the session has ended.", next_step="use another one, or log in again"
    )


def check_seen(request: HTTPConnection, owner: str, what: str) -> None:
    """Raises NotAllowedError if the caller may not see ``what``, which belongs to this owner."""
    if not caller_of(request).may_see(owner):
        raise _not_yours(caller_of(request), what)


def check_steered(request: HTTPConnection, owner: str, what: str) -> None:
    """Raises NotAllowedError if the caller may not change ``what`` or read its value."""
    if not caller_of(request).may_steer(owner):
        raise _not_yours(caller_of(request), what)


def _not_yours(caller: Caller, what: str) -> NotAllowedError:
    return NotAllowedError(
        f"{what} does not belong to {caller.user}.", next_step="use a token of its owner, or one with the role operator"
    )
