"""Access: all that decides who gets in, for one service."""

from __future__ import annotations

import getpass
import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from ray_multicluster_scheduler.control_plane.admin_api.access.roles import Caller, anybody
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import RULE, Rule
from ray_multicluster_scheduler.control_plane.admin_api.access.sessions import SESSION_S, TICKET_S, Passes
from ray_multicluster_scheduler.control_plane.admin_api.access.tokens import TokenBook


@dataclass(slots=True)
class Access:
    """``book`` None: nobody is asked for a token (``auth: none``, on loopback only). ``hosts`` are names of ours beside
    those of this machine, ``origins`` those whose pages may use us. ``secure``: we are reached over TLS."""

    book: TokenBook | None
    hosts: Collection[str] = ()
    origins: Collection[str] = ()
    secure: bool = False
    anybody: Caller = field(init=False)
    sessions: Passes = field(init=False)
    tickets: Passes = field(init=False)
    readers: Counter[str] = field(init=False, default_factory=Counter)
    """Of events, by the ids of their tokens."""
    _open: list[re.Pattern[str]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.anybody = anybody(getpass.getuser())
        self.sessions, self.tickets = Passes(SESSION_S, self.holds), Passes(TICKET_S, self.holds)
        self.hosts = frozenset(one.lower() for one in self.hosts)
        self.origins = frozenset(one.lower().rstrip("/") for one in self.origins)

    def holds(self, token_id: str | None) -> bool:
        """Is the token that somebody came in with still good? For streams, which outlast the question at the door."""
        return token_id is None or (self.book is not None and self.book.holds(token_id))

    def left_s(self, caller: Caller) -> float | None:
        """So long the caller's token, and its session, are good if nobody ends them; None: for ever."""
        token = None if self.book is None else self.book.left_s(caller.token)
        known = [one for one in (token, self.sessions.left_s(caller.session)) if one is not None]
        return min(known, default=None)

    def lets_in(self, caller: Caller) -> bool:
        """Still, with its token and its session? For the same."""
        return self.holds(caller.token) and self.sessions.lasts(caller.session)

    def let_in_to(self, routes: Iterable[BaseRoute]) -> None:
        """Those of these that are for everybody are open; without a caller, nothing else is reached."""
        self._open = [
            one.path_regex
            for one in routes
            if isinstance(one, APIRoute) and (one.openapi_extra or {}).get(RULE) == Rule.OPEN
        ]

    def is_open(self, path: str) -> bool:
        return any(one.match(path) for one in self._open)
