"""Lately: which users did something, and with what: put a payload, called an actor."""

from __future__ import annotations

MOST = 20_000


class Lately:
    """In memory only: what has to be known later is in the store. On the loop. The oldest are forgotten first."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: dict[tuple[str, str], None] = {}

    def note(self, user: str, what: str) -> None:
        self._known.pop((user, what), None)
        self._known[user, what] = None
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]

    def has(self, user: str, what: str) -> bool:
        return (user, what) in self._known
