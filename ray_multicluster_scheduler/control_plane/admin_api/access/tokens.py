"""TokenStore: the tokens of a service, kept as hashes; and the first token, in a file of the state folder."""

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
from pathlib import Path
from typing import Any, NamedTuple

from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    NotAllowedError,
    SchedulerError,
    ServiceUnavailableError,
    UnknownItemError,
)
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Caller, Role
from ray_multicluster_scheduler.control_plane.store import Change, Store
from ray_multicluster_scheduler.control_plane.store.private_file import TOKEN_FILE, read_private, write_private

_log = get_logger(__name__)
PREFIX = "rmcs"
_KEYS = "token/"
_VERSION = 1
_WRITE_TIMEOUT_S = 30.0
_WRITE_POLL_S = 1.5
"""A little longer than the store's interval between retries."""
_MAX_TEXT = 256
_MAX_TOKENS = 10_000


class Token(NamedTuple):
    """A token without its secret. Times are seconds since 1970."""

    id: str
    caller: Caller
    note: str
    created_at: float
    expires_at: float | None
    digest: bytes

    def summary(self, now: float) -> dict[str, Any]:
        """As listed by the API."""
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


class TokenStore:
    """Safe from any thread. A new token is valid once it is durable; a revoked one is invalid at once, even if that
    cannot be written now. :meth:`check` costs one hash."""

    def __init__(self, store: Store, now: Callable[[], float] = time.time) -> None:
        self._store, self._now = store, now
        self._tokens: dict[str, Token] = {}
        self._revoking: dict[str, tuple[Token, Future[int]]] = {}
        """Revoked, but not yet durably."""
        self._lock = threading.Lock()  # never held while waiting for the disk
        self._listeners: list[Callable[[str], object]] = []
        for key, text in store.settings(_KEYS).items():
            token = _read(key.removeprefix(_KEYS), text)
            if token is not None:
                self._tokens[token.id] = token

    def check(self, text: str) -> Caller | None:
        """The caller with this token; None if it is unknown, revoked or expired."""
        prefix, _, rest = text.partition("_")
        token = self._tokens.get(rest.partition("_")[0]) if prefix == PREFIX else None
        digest = _digest(text)
        if token is None or not hmac.compare_digest(digest, token.digest) or not self.is_valid(token.id):
            return None
        return token.caller

    def is_valid(self, token_id: str) -> bool:
        """For answers that last longer than the check of their request."""
        token = self._tokens.get(token_id)
        return token is not None and (token.expires_at is None or token.expires_at > self._now())

    def seconds_left(self, token_id: str | None) -> float | None:
        """Until it expires, 0 or less if it is invalid; None: never."""
        if token_id is None:
            return None
        token = self._tokens.get(token_id)
        if token is None:
            return 0.0
        return None if token.expires_at is None else token.expires_at - self._now()

    def on_revoked(self, listener: Callable[[str], object]) -> Callable[[], None]:
        """Call ``listener`` from any thread with the id of each revoked token; it must return at once. Expired tokens
        are not reported. Returns a function that removes the listener."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def list(self) -> list[dict[str, Any]]:
        """Oldest first."""
        tokens = sorted(self._tokens.values(), key=lambda one: (one.created_at, one.id))
        return [one.summary(self._now()) for one in tokens]

    def begin_create(
        self, user: str, roles: Iterable[Role], note: str = "", expires_at: float | None = None
    ) -> tuple[Token, str, Future[int]]:
        """The token, its secret text, and a future of its durability, after which the caller must :meth:`activate` it.
        Does not block. Raises ConfigurationError, ServiceUnavailableError."""
        caller_roles = frozenset(roles)
        _check(user, caller_roles, note, expires_at, self._now())
        with self._lock:
            if len(self._tokens) >= _MAX_TOKENS:
                raise ConfigurationError(f"There are {_MAX_TOKENS:,} tokens already.", next_step="revoke unused ones")
            if self._store.write_problem is not None:
                raise ServiceUnavailableError(
                    f"Tokens cannot be written now. {self._store.write_problem}",
                    next_step="repeat it when the disk has free space",
                )
            token_id = secrets.token_hex(4)
            while token_id in self._tokens or token_id in self._revoking:
                token_id = secrets.token_hex(4)
            text = f"{PREFIX}_{token_id}_{secrets.token_hex(32)}"
            caller = Caller(user, caller_roles, token_id)
            token = Token(token_id, caller, note, self._now(), expires_at, _digest(text))
            return token, text, self._write(token_id, _text(token))

    def activate(self, token: Token) -> dict[str, Any]:
        """Accept a token from now on; returns its summary."""
        with self._lock:
            self._tokens[token.id] = token
        return token.summary(self._now())

    def create(
        self, user: str, roles: Iterable[Role], note: str = "", expires_at: float | None = None
    ) -> tuple[dict[str, Any], str]:
        """Summary and secret of a new, durable token. Blocks. Raises ConfigurationError, ServiceUnavailableError."""
        token, text, written = self.begin_create(user, roles, note, expires_at)
        self._wait(written)
        return self.activate(token), text

    def begin_revoke(self, token_id: str, *, force: bool = False) -> tuple[dict[str, Any], Future[int]]:
        """Make a token invalid at once; returns its summary and a future of the revocation's durability. Can be
        repeated until it is durable. Does not block. Raises UnknownItemError, NotAllowedError for the last admin."""
        with self._lock:
            revoking = self._revoking.get(token_id)
            if revoking is not None:
                token, written = revoking
                if written.done():  # it failed: a successful one removes the entry
                    written = self._erase(token)
                return token.summary(self._now()), written
            token = self._existing(token_id)
            others = (one for one in self._tokens.values() if one.id != token_id and self.is_valid(one.id))
            if not force and Role.ADMIN in token.caller.roles and not any(Role.ADMIN in o.caller.roles for o in others):
                raise NotAllowedError(
                    f"{token_id} is the last token of an admin: without it no token can be created.",
                    next_step="create another one first, or use force; the next start of the service then creates one",
                )
            del self._tokens[token_id]
            written = self._erase(token)
        for listener in list(self._listeners):
            listener(token_id)
        return token.summary(self._now()), written

    def revoke(self, token_id: str, *, force: bool = False) -> dict[str, Any]:
        """The same, durable when this returns. Blocks: not on the loop. Raises ServiceUnavailableError, too."""
        about, written = self.begin_revoke(token_id, force=force)
        self._wait(written)
        return about

    async def written(self, writing: Future[int]) -> None:
        """Wait on a loop. Raises ServiceUnavailableError if it is not durable soon; it may become so later."""
        waiting = asyncio.wrap_future(writing)
        for _ in range(int(_WRITE_TIMEOUT_S / _WRITE_POLL_S)):
            await asyncio.wait([waiting], timeout=_WRITE_POLL_S)
            if waiting.done():
                break
            self._check_writable()
        self._check_written(writing)

    def _existing(self, token_id: str) -> Token:
        token = self._tokens.get(token_id)
        if token is None:
            raise UnknownItemError(
                f"There is no token {token_id!r}: it was revoked already, or never existed.",
                next_step="see `rmcs token list`",
            )
        return token

    def _erase(self, token: Token) -> Future[int]:
        """Delete it durably, remembering it until then."""
        written = self._write(token.id, None)
        self._revoking[token.id] = (token, written)
        written.add_done_callback(lambda done: done.exception() or self._revoking.pop(token.id, None))
        return written

    def _write(self, token_id: str, text: bytes | None) -> Future[int]:
        return self._store.write(Change(settings={f"{_KEYS}{token_id}": text}))

    def _wait(self, writing: Future[int]) -> None:
        for _ in range(int(_WRITE_TIMEOUT_S / _WRITE_POLL_S)):
            wait([writing], _WRITE_POLL_S)
            if writing.done():
                break
            self._check_writable()
        self._check_written(writing)

    def _check_writable(self) -> None:
        if self._store.write_problem is not None:
            raise ServiceUnavailableError(
                f"The request took effect, but cannot be written now. {self._store.write_problem}",
                next_step="repeat it when the disk has free space",
            )

    def _check_written(self, writing: Future[int]) -> None:
        error = writing.exception() if writing.done() else None
        if error is not None or not writing.done():
            why = f" {error}" if error is not None else ""
            raise ServiceUnavailableError(
                f"The request took effect, but cannot be written now.{why}", next_step="repeat it when the disk works"
            )


def roles_of(words: Iterable[object]) -> frozenset[Role]:
    """Raises ConfigurationError."""
    try:
        return frozenset(Role(str(one)) for one in words)
    except (ValueError, TypeError):
        raise ConfigurationError(
            f"{', '.join(map(str, words))[:100]!r} are not roles.", next_step=f"use {', '.join(Role)}"
        ) from None


def _check(user: str, roles: frozenset[Role], note: str, expires_at: float | None, now: float) -> None:
    if not user or len(user) > _MAX_TEXT or not user.isprintable():
        raise ConfigurationError(f"user is {user[:100]!r}.", next_step="give the name of the user of the token")
    if not roles:
        raise ConfigurationError("The token has no role.", next_step=f"give one or more of {', '.join(Role)}")
    if len(note) > _MAX_TEXT or (note and not note.isprintable()):
        raise ConfigurationError(
            "note is not a single short line.", next_step=f"give one line of at most {_MAX_TEXT} characters"
        )
    if expires_at is not None and not (math.isfinite(expires_at) and expires_at > now):
        raise ConfigurationError(f"expires_at is {expires_at}, which is past.", next_step="give a time in the future")


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
    """None, with a warning, for a record that cannot be read, such as one of another version."""
    try:
        record = json.loads(text)
        caller = Caller(str(record["user"]), roles_of(record["roles"]), token_id)
        return Token(
            token_id,
            caller,
            record["note"],
            record["created_at"],
            record["expires_at"],
            bytes.fromhex(record["sha256"]),
        )
    except (ValueError, LookupError, TypeError, SchedulerError) as error:
        _log.warning("the token %s cannot be read and is not used: %s", token_id, error)
        return None


CREATED_BY_UP = "made by rmcs up"


def ensure_first_token(tokens: TokenStore, folder: Path, user: str) -> str | None:
    """Make sure that a file in the state folder holds a valid token of its owner, so that local commands need no setup.
    Returns a message for the operator, or None. Raises ConfigurationError if the file is not private or writable."""
    path = folder / TOKEN_FILE
    try:
        before = read_private(path)
    except FileNotFoundError:
        before = None
    if before is not None and tokens.check(before) is not None:
        return None
    known = [one for one in tokens.list() if one["note"] == CREATED_BY_UP and one["user"] == user]
    about, text = tokens.create(user, Role, CREATED_BY_UP)
    try:
        write_private(path, text)
    except OSError as error:
        tokens.revoke(about["id"], force=True)
        raise ConfigurationError(
            f"{path} cannot be written: {error.strerror}.", next_step="make the state folder writable for you"
        ) from error
    for one in known:  # their only copy was the file
        tokens.revoke(one["id"], force=True)
    if before is not None:
        return f"the token in {path} was revoked or had expired; it was replaced by a new one"
    if known:
        return f"{path} was lost; it has a new token now, and the previous one is revoked"
    return f"{path} has a token for you, which programs and commands of your account use"
