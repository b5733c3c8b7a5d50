"""Access: who may use a service: its tokens, sessions, tickets, host names and origins. Middleware and routes use
it."""

from __future__ import annotations

import getpass
import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import RULE, Caller, Role, Rule
from ray_multicluster_scheduler.control_plane.admin_api.access.sessions import SESSION_S, TICKET_S, SessionStore
from ray_multicluster_scheduler.control_plane.admin_api.access.tokens import TokenStore


@dataclass(slots=True)
class Access:
    """``tokens`` None: no token is required (``auth: none``, on loopback only). ``hosts`` are names of this service
    besides those of this machine, ``origins`` those of web pages that may use it. ``secure``: it is reached over
    TLS."""

    tokens: TokenStore | None
    hosts: Collection[str] = ()
    origins: Collection[str] = ()
    secure: bool = False
    local_user: Caller = field(init=False)
    """The caller of every request if no token is required."""
    sessions: SessionStore = field(init=False)
    tickets: SessionStore = field(init=False)
    event_readers: Counter[str] = field(init=False, default_factory=Counter)
    """Number of open event streams by token id."""
    _open: list[re.Pattern[str]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.local_user = Caller(getpass.getuser(), frozenset(Role))
        self.sessions = SessionStore(SESSION_S, self._is_valid_token)
        self.tickets = SessionStore(TICKET_S, self._is_valid_token)
        self.hosts = frozenset(one.lower() for one in self.hosts)
        self.origins = frozenset(one.lower().rstrip("/") for one in self.origins)

    def _is_valid_token(self, token_id: str | None) -> bool:
        return token_id is None or (self.tokens is not None and self.tokens.is_valid(token_id))

    def is_valid(self, caller: Caller) -> bool:
        """Are the caller's token and session still valid? For streams, which outlast the check of their request."""
        return self._is_valid_token(caller.token) and self.sessions.is_valid(caller.session)

    def seconds_left(self, caller: Caller) -> float | None:
        """Until the caller's token or session expires; None: never."""
        token = None if self.tokens is None else self.tokens.seconds_left(caller.token)
        known = [one for one in (token, self.sessions.seconds_left(caller.session)) if one is not None]
        return min(known, default=None)

    def set_open_routes(self, routes: Iterable[BaseRoute]) -> None:
        """Remember the routes with the rule OPEN; without a caller only these are reached."""
        self._open = [
            one.path_regex
            for one in routes
            if isinstance(one, APIRoute) and (one.openapi_extra or {}).get(RULE) == Rule.OPEN
        ]

    def is_open(self, path: str) -> bool:
        return any(one.match(path) for one in self._open)
