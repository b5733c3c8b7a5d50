"""SecretCipher: encrypts secrets in stored documents, so that a copy of the database alone reveals none."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet, InvalidToken

from ray_multicluster_scheduler.common.exception import ConfigurationError, StoreError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.redaction import MASKED, replace_secrets
from ray_multicluster_scheduler.control_plane.store.private_file import read_private, write_private

_log = get_logger(__name__)
KEY_FILE = "secret.key"
ENCRYPTED = "$sealed"
"""The key of a mapping that stands for an encrypted value."""
UNDECRYPTABLE = "\0the key that it was sealed with is gone"
"""Stands for a value that cannot be decrypted. No environment variable can hold it, so no user can have given it."""


class SecretCipher:
    """The key is in a file of its own next to the database, created at first use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fernet: Fernet | None = None

    def encrypt(self, value: Any) -> Any:
        """Encrypt the values in plain data that look like secrets. Raises StoreError if the key cannot be used."""
        return replace_secrets(value, self.encrypt_text)

    def encrypt_text(self, text: str | float) -> dict[str, str]:
        """One value, whether or not it looks like a secret. Raises StoreError as :meth:`encrypt` does."""
        if self._fernet is None:
            self._fernet = self._load_key(create=True)
        assert self._fernet is not None
        return {ENCRYPTED: self._fernet.encrypt(json.dumps(text).encode()).decode("ascii")}

    def decrypt(self, value: Any) -> Any:
        """Plain data with all encrypted values decrypted, or replaced by :data:`UNDECRYPTABLE`."""
        return _map_encrypted(value, self._decrypt_text)

    def check_key(self) -> None:
        """Raises StoreError if the key exists but cannot be used: until that is fixed, nothing can be decrypted."""
        if self._fernet is None:
            self._fernet = self._load_key(create=False)

    def _decrypt_text(self, token: str) -> str | float:
        if self._fernet is None:
            try:
                self._fernet = self._load_key(create=False)
            except StoreError as error:
                _log.error("%s", error)
        try:
            text: str | float = UNDECRYPTABLE if self._fernet is None else json.loads(self._fernet.decrypt(token))
        except (InvalidToken, ValueError):
            return UNDECRYPTABLE
        return text

    def _load_key(self, *, create: bool) -> Fernet | None:
        try:
            try:
                return Fernet(read_private(self._path))
            except FileNotFoundError:
                if not create:
                    return None
                write_private(self._path, Fernet.generate_key().decode("ascii"))
                return Fernet(read_private(self._path))
        except (ConfigurationError, OSError, ValueError) as error:
            raise StoreError(
                f"The key in {self._path}, which encrypts stored secrets, cannot be used: {error}",
                next_step="restore that file from a backup, readable by its owner only, or remove it: then accepted "
                "items that have secrets cannot be started, and running agents cannot reconnect",
            ) from error


def mask_encrypted(value: Any) -> Any:
    """Plain data with every encrypted value masked, for display."""
    return _map_encrypted(value, lambda _: MASKED)


def is_undecryptable(value: Any) -> bool:
    """Whether it holds a value that could not be decrypted."""
    if isinstance(value, Mapping):
        return any(map(is_undecryptable, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(is_undecryptable, value))
    return bool(value == UNDECRYPTABLE)


def _map_encrypted(value: Any, convert: Callable[[str], Any]) -> Any:
    if isinstance(value, Mapping):
        if len(value) == 1 and isinstance(value.get(ENCRYPTED), str):
            return convert(value[ENCRYPTED])
        return {name: _map_encrypted(one, convert) for name, one in value.items()}
    return [_map_encrypted(one, convert) for one in value] if isinstance(value, list) else value
