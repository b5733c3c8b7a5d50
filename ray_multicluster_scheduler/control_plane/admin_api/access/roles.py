"""Roles, and whoever has them."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Role(StrEnum):
    """What a token is for. One may have several; none contains the right to submit but ``submitter`` itself."""

    VIEWER = "viewer"
    """Looks at everything but code, arguments and values."""
    SUBMITTER = "submitter"
    """Runs code, and sees and steers what is its user's own."""
    OPERATOR = "operator"
    """Sees everything, and steers everybody's work and the clusters."""
    ADMIN = "admin"
    """What an operator does, and tokens and settings."""


class Caller(NamedTuple):
    """Who asks. ``token`` is the id of the token that said so; None where none is needed. ``session`` is that of a page
    which came with a cookie, or with a ticket that it got so."""

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
        """What happens to an item of this owner, and what it printed."""
        return self.sees_all or (self.submits and owner == self.user)

    def may_steer(self, owner: str) -> bool:
        """Cancel it, hold it, read its value."""
        return self.steers_all or (self.submits and owner == self.user)


def anybody(user: str) -> Caller:
    """Who asks a service that wants no token: it can only be reached from its own machine."""
    return Caller(user, frozenset(Role))
