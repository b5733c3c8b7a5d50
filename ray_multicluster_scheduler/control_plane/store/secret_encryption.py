"""Sealer: secrets that have to be written down are written so that the record alone does not tell them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet, InvalidToken

from ray_multicluster_scheduler.common.exception import ConfigurationError, StoreError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.redaction.patterns import MASKED, replaced
from ray_multicluster_scheduler.control_plane.store.private_file import read_private, write_private

_log = get_logger(__name__)
KEY_FILE = "secret.key"
SEALED = "$sealed"
LOST = "\0the key that it was sealed with is gone"
"""In the place of what cannot be opened any more. No environment can hold it, so nobody has given it."""


class SecretCipher:
    """With a key in a file of its own, which is made when it is first needed. A copy of the database without that file
    tells no secrets."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fernet: Fernet | None = None

    def sealed(self, value: Any) -> Any:
        """Plain data with what looks like a secret sealed. Raises StoreError if there is no key, and none can be."""
        return replaced(value, self._seal)

    def sealed_text(self, text: str) -> dict[str, str]:
        """One text, whatever it looks like. Raises as :meth:`sealed` does."""
        return self._seal(text)

    def opened(self, value: Any) -> Any:
        """The same as it was; :data:`LOST` is in the place of what cannot be opened."""
        return _each_sealed(value, self._open)

    def check(self) -> None:
        """Raises StoreError if there is a key that cannot be used: what it would open is not lost, but not to be had
        before somebody mends that. That there is none is for others to judge."""
        if self._fernet is None:
            self._fernet = self._key(make=False)

    def _seal(self, text: str | float) -> dict[str, str]:
        if self._fernet is None:
            self._fernet = self._key(make=True)
        assert self._fernet is not None
        return {SEALED: self._fernet.encrypt(json.dumps(text).encode()).decode("ascii")}

    def _open(self, sealed: str) -> str | float:
        if self._fernet is None:
            try:
                self._fernet = self._key(make=False)
            except StoreError as error:
                _log.error("%s", error)
        try:
            text: str | float = LOST if self._fernet is None else json.loads(self._fernet.decrypt(sealed))
        except (InvalidToken, ValueError):
            return LOST
        return text

    def _key(self, *, make: bool) -> Fernet | None:
        try:
            try:
                return Fernet(read_private(self._path))
            except FileNotFoundError:
                if not make:
                    return None
                write_private(self._path, Fernet.generate_key().decode("ascii"))
                return Fernet(read_private(self._path))
        except (ConfigurationError, OSError, ValueError) as error:
            raise StoreError(
                f"The key in {self._path}, for secrets that are written down, cannot be used: {error}",
                next_step="restore that file from a backup, for its owner alone, or remove it: then what is accepted "
                "and not over cannot be started if it has secrets, and agents that run cannot come back",
            ) from error


def hidden(value: Any) -> Any:
    """What was sealed, for whoever only looks."""
    return _each_sealed(value, lambda _: MASKED)


def is_lost(value: Any) -> bool:
    """Is there anything in it that could not be opened?"""
    if isinstance(value, Mapping):
        return any(map(is_lost, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(is_lost, value))
    return bool(value == LOST)


def _each_sealed(value: Any, instead: Any) -> Any:
    if isinstance(value, Mapping):
        if len(value) == 1 and isinstance(value.get(SEALED), str):
            return instead(value[SEALED])
        return {name: _each_sealed(one, instead) for name, one in value.items()}
    return [_each_sealed(one, instead) for one in value] if isinstance(value, list) else value
