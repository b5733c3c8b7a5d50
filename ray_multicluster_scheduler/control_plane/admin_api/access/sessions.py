"""Browser sessions and stream tickets: short-lived secrets, so that a web page need not keep the token itself."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

from ray_multicluster_scheduler.common.exception import ServiceUnavailableError
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Caller

COOKIE = "rmcs_session"
SESSION_S = 12 * 3600.0
TICKET_S = 30.0
MAX_PER_TOKEN = 100
_MAX_SESSIONS = 10_000


class _Session(NamedTuple):
    caller: Caller
    until: float


class SessionStore:
    """Secrets that stand for a caller for ``lasts_s``, in memory only: a restart ends them all. Used on the loop only.
    ``is_valid_token``: whether the token that a session was made with is still valid."""

    def __init__(
        self, lasts_s: float, is_valid_token: Callable[[str | None], bool], now: Callable[[], float] = time.monotonic
    ) -> None:
        self.lasts_s, self._is_valid_token, self._now = lasts_s, is_valid_token, now
        self._sessions: dict[bytes, _Session] = {}
        self._listeners: list[Callable[[bytes], object]] = []

    def make(self, caller: Caller) -> str:
        """A new secret; ends the oldest of a token with too many. Raises ServiceUnavailableError at the total limit."""
        self._sweep()
        of_token = [key for key, one in self._sessions.items() if one.caller.token == caller.token]
        for key in of_token[: 1 - MAX_PER_TOKEN]:
            self._drop(key)
        if len(self._sessions) >= _MAX_SESSIONS:
            raise ServiceUnavailableError("Too many browser sessions are open.", next_step="try again later")
        secret = secrets.token_urlsafe(32)
        self._sessions[hash_of(secret)] = _Session(caller, self._now() + self.lasts_s)
        return secret

    def check(self, secret: str) -> Caller | None:
        """The caller, if the secret is valid."""
        key = hash_of(secret)
        found = self._sessions.get(key)
        if found is None:
            return None
        if found.until <= self._now() or not self._is_valid_token(found.caller.token):
            self._drop(key)
            return None
        return found.caller

    def use(self, secret: str) -> Caller | None:
        """As :meth:`check`; the secret ends with it."""
        caller = self.check(secret)
        self.end(secret)
        return caller

    def is_valid(self, key: bytes | None) -> bool:
        """Is the session with this :func:`hash_of` still valid? None: no session was needed."""
        left = self.seconds_left(key)
        return left is None or left > 0

    def seconds_left(self, key: bytes | None) -> float | None:
        """Until the session with this :func:`hash_of` expires; None: no session was needed."""
        if key is None:
            return None
        found = self._sessions.get(key)
        return 0.0 if found is None else found.until - self._now()

    def on_ended(self, listener: Callable[[bytes], object]) -> Callable[[], None]:
        """Call ``listener`` on the loop with the hash of each session that is ended, but not of those that expire.
        Returns a function that removes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def end(self, secret: str) -> None:
        self._drop(hash_of(secret))

    def _sweep(self) -> None:
        now = self._now()
        for key, one in list(self._sessions.items()):
            if one.until <= now or not self._is_valid_token(one.caller.token):
                self._drop(key)

    def _drop(self, key: bytes) -> None:
        if self._sessions.pop(key, None) is not None:
            for listener in list(self._listeners):
                listener(key)


def hash_of(secret: str) -> bytes:
    """The key of a secret: looking up a hash takes a time that reveals nothing about the secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def session_cookie(header: str) -> str | None:
    """The secret in a Cookie header."""
    for pair in header.split(";"):
        name, _, value = pair.strip().partition("=")
        if name == COOKIE:
            return value
    return None


def set_cookie(secret: str, lasts_s: float, *, secure: bool) -> str:
    """A Set-Cookie header that no script can read, and that is not sent along with requests of other sites."""
    text = f"{COOKIE}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={int(lasts_s)}"
    return f"{text}; Secure" if secure else text
