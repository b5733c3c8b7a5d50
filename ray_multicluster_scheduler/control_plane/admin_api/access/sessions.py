"""Sessions and tickets: how a page in a browser is let in, without a token where others could find it."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

from ray_multicluster_scheduler.common.exception import ServiceUnavailableError
from ray_multicluster_scheduler.control_plane.admin_api.access.roles import Caller

COOKIE = "rmcs_session"
SESSION_S = 12 * 3600.0
TICKET_S = 30.0
MOST_PER_TOKEN = 100
_MOST = 10_000


class _Pass(NamedTuple):
    caller: Caller
    until: float


class Passes:
    """Secrets that stand for a caller for a while, in memory only: a restart ends them all. On the loop.

    ``holds`` says whether the token that a pass was made with is still good.
    """

    def __init__(
        self, lasts_s: float, holds: Callable[[str | None], bool], now: Callable[[], float] = time.monotonic
    ) -> None:
        self.lasts_s, self._holds, self._now = lasts_s, holds, now
        self._passes: dict[bytes, _Pass] = {}
        self._hear: list[Callable[[bytes], object]] = []

    def make(self, caller: Caller) -> str:
        """If its token has too many already, the oldest of them is over. Raises ServiceUnavailableError if all tokens
        together have."""
        self._sweep()
        of_token = [name for name, one in self._passes.items() if one.caller.token == caller.token]
        for name in of_token[: 1 - MOST_PER_TOKEN]:
            self._drop(name)
        if len(self._passes) >= _MOST:
            raise ServiceUnavailableError("Too many pages are logged in.", next_step="try again in a while")
        secret = secrets.token_urlsafe(32)
        self._passes[name_of(secret)] = _Pass(caller, self._now() + self.lasts_s)
        return secret

    def check(self, secret: str) -> Caller | None:
        """Whose it is, if it is still good."""
        digest = name_of(secret)
        found = self._passes.get(digest)
        if found is None:
            return None
        if found.until <= self._now() or not self._holds(found.caller.token):
            self._drop(digest)
            return None
        return found.caller

    def lasts(self, name: bytes | None) -> bool:
        """Is this one, by its :func:`name_of`, still good? For what lasts longer than a question. None: none was
        needed."""
        if name is None:
            return True
        found = self._passes.get(name)
        return found is not None and found.until > self._now()

    def left_s(self, name: bytes | None) -> float | None:
        """So long this one is good; None: none was needed."""
        if name is None:
            return None
        found = self._passes.get(name)
        return 0.0 if found is None else found.until - self._now()

    def on_ended(self, hear: Callable[[bytes], object]) -> Callable[[], None]:
        """Tell the name of each that is ended from now on, on the loop. Returns what ends it. Of those that grow too
        old nobody is told: see :meth:`lasts`."""
        self._hear.append(hear)
        return lambda: self._hear.remove(hear)

    def use(self, secret: str) -> Caller | None:
        """The same, once."""
        caller = self.check(secret)
        self.end(secret)
        return caller

    def end(self, secret: str) -> None:
        self._drop(name_of(secret))

    def _sweep(self) -> None:
        now = self._now()
        gone = [key for key, one in self._passes.items() if one.until <= now or not self._holds(one.caller.token)]
        for key in gone:
            self._drop(key)

    def _drop(self, name: bytes) -> None:
        if self._passes.pop(name, None) is not None:
            for hear in list(self._hear):
                hear(name)


def name_of(secret: str) -> bytes:
    """What is looked up is a hash, so that how long that takes says nothing of the secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def cookie_in(header: str) -> str | None:
    """Our cookie, in what a browser sends."""
    for pair in header.split(";"):
        name, _, value = pair.strip().partition("=")
        if name == COOKIE:
            return value
    return None


def cookie(secret: str, lasts_s: float, *, secure: bool) -> str:
    """For a browser to keep: no script can read it, and no other place has it sent along."""
    text = f"{COOKIE}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={int(lasts_s)}"
    return f"{text}; Secure" if secure else text
