"""TokenBook: who may use a service. Of a token only a hash is kept; it is shown once, to whoever had it made."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    NotAllowedError,
    SchedulerError,
    ServiceUnavailableError,
    UnknownItemError,
)
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.admin_api.access.roles import Caller, Role
from ray_multicluster_scheduler.control_plane.store import Change, Store

_log = get_logger(__name__)
PREFIX = "rmcs"
_KEYS = "token/"
_VERSION = 1
_WRITE_PATIENCE_S = 30.0
_LOOK_AGAIN_S = 1.5
"""A little longer than it takes the store to try again."""
_MOST_TEXT = 256
_MOST_TOKENS = 10_000


class Token(NamedTuple):
    """What is known of one; not the secret itself. Times are seconds since 1970."""

    id: str
    caller: Caller
    note: str
    created_at: float
    expires_at: float | None
    digest: bytes

    def face(self, now: float) -> dict[str, Any]:
        """For whoever looks at all of them."""
        expired = self.expires_at is not None and self.expires_at <= now
        return {
            "id": self.id,
            "user": self.caller.user,
            "roles": sorted(self.caller.roles),
            "note": self.note,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "expired": expired,
        }


class Refused(NamedTuple):
    """Why nobody is let in with it, for him to read: it says nothing of what is in the book."""

    sentence: str


NOT_KNOWN = Refused("This token is not known here, was revoked, or has expired.")


class TokenBook:
    """Safe from any thread. :meth:`check` costs a hash of eighty bytes; everything else is rare and is written first
    where it lets somebody in, and held at once where it keeps somebody out, also if it cannot be written now."""

    def __init__(self, store: Store, now: Callable[[], float] = time.time) -> None:
        self._store, self._now = store, now
        self._tokens: dict[str, Token] = {}
        self._leaving: dict[str, tuple[Token, Future[int]]] = {}
        """Revoked, and not yet written."""
        self._change = threading.Lock()  # nobody writes who has it
        self._hear: list[Callable[[str], object]] = []
        for key, text in store.settings(_KEYS).items():
            token = _read(key.removeprefix(_KEYS), text)
            if token is not None:
                self._tokens[token.id] = token

    def check(self, text: str) -> Caller | Refused:
        """Whoever has this token."""
        prefix, _, rest = text.partition("_")
        token = self._tokens.get(rest.partition("_")[0]) if prefix == PREFIX else None
        digest = _digest(text)
        if token is None or not hmac.compare_digest(digest, token.digest):
            return NOT_KNOWN
        if token.expires_at is not None and token.expires_at <= self._now():
            return NOT_KNOWN
        return token.caller

    def holds(self, token_id: str | None) -> bool:
        """May whoever came in with this token stay? For what lasts longer than a request. None: none was needed."""
        if token_id is None:
            return True
        token = self._tokens.get(token_id)
        return token is not None and (token.expires_at is None or token.expires_at > self._now())

    def left_s(self, token_id: str | None) -> float | None:
        """So long it is good; 0 or less: it is not any more; None: for ever."""
        if token_id is None:
            return None
        token = self._tokens.get(token_id)
        if token is None:
            return 0.0
        return None if token.expires_at is None else token.expires_at - self._now()

    def on_revoked(self, hear: Callable[[str], object]) -> Callable[[], None]:
        """Tell the id of each token that is revoked from now on, from any thread. It must return at once. Returns what
        ends it. Of those that expire nobody is told: see :meth:`holds`."""
        self._hear.append(hear)
        return lambda: self._hear.remove(hear)

    def list(self) -> list[dict[str, Any]]:
        """Oldest first."""
        tokens = sorted(self._tokens.values(), key=lambda one: (one.created_at, one.id))
        return [one.face(self._now()) for one in tokens]

    def begin_create(
        self, user: str, roles: Iterable[Role], note: str = "", expires_at: float | None = None
    ) -> tuple[Token, str, Future[int]]:
        """What is known of it, the token itself, and when it is written: then, and not before, :meth:`let_in`. It never
        waits. Raises ConfigurationError, ServiceUnavailableError."""
        caller_roles = frozenset(roles)
        _check(user, caller_roles, note, expires_at, self._now())
        with self._change:
            if len(self._tokens) >= _MOST_TOKENS:
                raise ConfigurationError(f"There are {_MOST_TOKENS:,} tokens already.", next_step="revoke some")
            if self._store.write_problem is not None:
                raise ServiceUnavailableError(
                    f"Tokens cannot be written now. {self._store.write_problem}",
                    next_step="say it again when there is room",
                )
            token_id = secrets.token_hex(4)
            while token_id in self._tokens or token_id in self._leaving:
                token_id = secrets.token_hex(4)
            text = f"{PREFIX}_{token_id}_{secrets.token_hex(32)}"
            caller = Caller(user, caller_roles, token_id)
            token = Token(token_id, caller, note, self._now(), expires_at, _digest(text))
            return token, text, self._write(token_id, _text(token))

    def let_in(self, token: Token) -> dict[str, Any]:
        """Whoever has it, from now on."""
        with self._change:
            self._tokens[token.id] = token
        return token.face(self._now())

    def create(
        self, user: str, roles: Iterable[Role], note: str = "", expires_at: float | None = None
    ) -> tuple[dict[str, Any], str]:
        """What is known of it, and the token itself. Durable when this returns: not on the loop.

        Raises ConfigurationError, ServiceUnavailableError.
        """
        token, text, written = self.begin_create(user, roles, note, expires_at)
        self._wait(written)
        return self.let_in(token), text

    def begin_revoke(self, token_id: str, *, force: bool = False) -> tuple[dict[str, Any], Future[int]]:
        """From now on nobody gets in with it, whatever becomes of the disk; and when that is written, so that the next
        start knows it, too. Until then it can be said again. It never waits.

        Raises UnknownItemError, NotAllowedError for the last one of an admin.
        """
        with self._change:
            leaving = self._leaving.get(token_id)
            if leaving is not None:
                token, written = leaving
                if written.done():  # it failed, or it would not be here
                    written = self._erase(token)
                return token.face(self._now()), written
            token = self._there(token_id)
            others = (one for one in self._tokens.values() if one.id != token_id and self.holds(one.id))
            if not force and Role.ADMIN in token.caller.roles and not any(Role.ADMIN in o.caller.roles for o in others):
                raise NotAllowedError(
                    f"{token_id} is the last token of an admin: nobody could make another one.",
                    next_step="make another one first, or give force; the next start of the service then makes one",
                )
            del self._tokens[token_id]
            written = self._erase(token)
        for hear in list(self._hear):
            hear(token_id)
        return token.face(self._now()), written

    def revoke(self, token_id: str, *, force: bool = False) -> dict[str, Any]:
        """The same, and written when this returns. Not on the loop. Raises ServiceUnavailableError, too."""
        about, written = self.begin_revoke(token_id, force=force)
        self._wait(written)
        return about

    async def written(self, writing: Future[int]) -> None:
        """On a loop. Raises ServiceUnavailableError if it is not so soon; it may be later."""
        waiting = asyncio.wrap_future(writing)
        for _ in range(int(_WRITE_PATIENCE_S / _LOOK_AGAIN_S)):
            await asyncio.wait([waiting], timeout=_LOOK_AGAIN_S)
            if waiting.done():
                break
            self._check_trouble()
        self._check_written(writing)

    def _there(self, token_id: str) -> Token:
        token = self._tokens.get(token_id)
        if token is None:
            raise UnknownItemError(
                f"There is no token {token_id!r}: it was revoked already, or never was.",
                next_step="see `rmcs token list`",
            )
        return token

    def _erase(self, token: Token) -> Future[int]:
        """It is in no list any more, and not forgotten before it is written."""
        written = self._write(token.id, None)
        self._leaving[token.id] = (token, written)
        written.add_done_callback(lambda done: done.exception() or self._leaving.pop(token.id, None))
        return written

    def _write(self, token_id: str, text: bytes | None) -> Future[int]:
        return self._store.write(Change(settings={f"{_KEYS}{token_id}": text}))

    def _wait(self, writing: Future[int]) -> None:
        for _ in range(int(_WRITE_PATIENCE_S / _LOOK_AGAIN_S)):
            wait([writing], _LOOK_AGAIN_S)
            if writing.done():
                break
            self._check_trouble()
        self._check_written(writing)

    def _check_trouble(self) -> None:
        if self._store.write_problem is not None:
            raise ServiceUnavailableError(
                f"It was heard, and cannot be written now. {self._store.write_problem}",
                next_step="say it again when there is room",
            )

    def _check_written(self, writing: Future[int]) -> None:
        error = writing.exception() if writing.done() else None
        if error is not None or not writing.done():
            why = f" {error}" if error is not None else ""
            raise ServiceUnavailableError(
                f"It was heard, and cannot be written now.{why}", next_step="say it again when the disk is well"
            )


def roles_of(words: Iterable[object]) -> frozenset[Role]:
    """Raises ConfigurationError."""
    try:
        return frozenset(Role(str(one)) for one in words)
    except (ValueError, TypeError):
        raise ConfigurationError(
            f"{', '.join(map(str, words))[:100]!r} are no roles.", next_step=f"use {', '.join(Role)}"
        ) from None


def _check(user: str, roles: frozenset[Role], note: str, expires_at: float | None, now: float) -> None:
    if not user or len(user) > _MOST_TEXT or not user.isprintable():
        raise ConfigurationError(f"user is {user[:100]!r}.", next_step="give the name of whoever will use the token")
    if not roles:
        raise ConfigurationError("The token has no role.", next_step=f"give one or more of {', '.join(Role)}")
    if len(note) > _MOST_TEXT or (note and not note.isprintable()):
        raise ConfigurationError(
            "note is no short text.", next_step=f"give one line of at most {_MOST_TEXT} characters"
        )
    if expires_at is not None and not (math.isfinite(expires_at) and expires_at > now):
        raise ConfigurationError(f"expires_at is {expires_at}, which is over.", next_step="give a time to come")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _text(token: Token) -> bytes:
    document = {
        "v": _VERSION,
        "user": token.caller.user,
        "roles": sorted(token.caller.roles),
        "note": token.note,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "sha256": token.digest.hex(),
    }
    return json.dumps(document).encode()


def _read(token_id: str, text: bytes) -> Token | None:
    """None for one of another version: whoever has it is not let in, and the others are."""
    try:
        said = json.loads(text)
        caller = Caller(str(said["user"]), roles_of(said["roles"]), token_id)
        return Token(
            token_id, caller, said["note"], said["created_at"], said["expires_at"], bytes.fromhex(said["sha256"])
        )
    except (ValueError, LookupError, TypeError, SchedulerError) as error:
        _log.warning("the token %s cannot be read and is not used: %s", token_id, error)
        return None
