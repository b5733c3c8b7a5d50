"""Credentials: finds the token and the CA certificates with which a program connects to a service."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.config.home import expanded, rmcs_home
from ray_multicluster_scheduler.control_plane.store.private_file import TOKEN_FILE, read_private
from ray_multicluster_scheduler.control_plane.store.state_folder import holder

TOKEN, TOKEN_PATH, TLS_CA = "RMCS_TOKEN", "RMCS_TOKEN_FILE", "RMCS_TLS_CA"


@dataclass(slots=True)
class Credentials:
    """``source`` describes the origin of the token, never its value, and ``path`` is the file it was read from. A token
    from a state folder (``home``) is valid only for the service of that folder. ``ca`` is a file with further trusted
    certificates."""

    token: str | None = None
    source: str = ""
    path: Path | None = None
    home: Path | None = None
    ca: Path | None = None

    def __repr__(self) -> str:
        return f"Credentials({self.source})"

    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def are_for(self, address: str) -> bool:
        """May the token be sent to this address? One from a state folder only while that folder's service has it."""
        return self.home is None or _address_of(self.home) == address

    def renewed(self) -> bool:
        """Re-read the token file after a rejection. True if the token changed. Raises ConfigurationError."""
        if self.path is None:
            return False
        try:
            text = read_private(self.path)
        except FileNotFoundError:
            return False
        changed = text != self.token
        self.token = text
        return changed

    def tls(self) -> ssl.SSLContext | bool:
        """Return the ``ssl`` argument for aiohttp; True means the system's trust store. Raises ConfigurationError."""
        if self.ca is None:
            return True
        try:
            return ssl.create_default_context(cafile=self.ca)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigurationError(
                f"The certificates in {self.ca} cannot be used: {error}.",
                next_step=f"name a file in PEM with {TLS_CA} or tls_ca=…",
            ) from error


def find_credentials(
    address: str, environ: Mapping[str, str], token: str | None = None, tls_ca: str | Path | None = None
) -> Credentials:
    """Find the token for a service: the argument, else ``RMCS_TOKEN``, else the file ``RMCS_TOKEN_FILE``, else the
    state folder, if its service listens at the address. Raises ConfigurationError for a malformed token, for a file
    that cannot be read or that others can read, and for a token that would be sent to another machine unencrypted."""
    found = _found(address, environ, token, tls_ca)
    if found.token is not None and not _is_private(address):
        raise ConfigurationError(
            f"The token from {found.source} is not sent to {address}: the connection is not encrypted.",
            next_step="use https://…, or a tunnel to 127.0.0.1",
        )
    return found


def _is_private(address: str) -> bool:
    parts = urlsplit(address)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def _found(
    address: str, environ: Mapping[str, str], token: str | None = None, tls_ca: str | Path | None = None
) -> Credentials:
    ca_file = tls_ca if tls_ca is not None else environ.get(TLS_CA)
    ca = expanded(ca_file, TLS_CA) if ca_file else None
    if token is not None:
        return Credentials(_checked(token, "token"), "the argument token", ca=ca)
    if environ.get(TOKEN):
        return Credentials(_checked(environ[TOKEN], TOKEN), TOKEN, ca=ca)
    if environ.get(TOKEN_PATH):
        path = expanded(environ[TOKEN_PATH], TOKEN_PATH)
        try:
            text = read_private(path)
        except FileNotFoundError:
            raise ConfigurationError(
                f"{TOKEN_PATH} names {path}, which does not exist.", next_step="name a file with a token in it"
            ) from None
        return Credentials(_checked(text, str(path)), f"{path} (named by {TOKEN_PATH})", path, ca=ca)
    home = rmcs_home(environ)
    path = home / TOKEN_FILE
    named = _address_of(home)
    if named != address:
        where = f"; the one in {path} is for {named}" if named is not None and path.exists() else ""
        return Credentials(None, f"no token was found for {address}{where}", ca=ca)
    try:
        text = read_private(path)
    except FileNotFoundError:
        return Credentials(None, f"there is no token in {path}", ca=ca)
    return Credentials(_checked(text, str(path)), str(path), path, home, ca)


def _address_of(home: Path) -> str | None:
    """Return the address of the service that runs on this state folder."""
    found = (holder(home) or {}).get("address")
    return None if found is None else str(found).rstrip("/")


def _checked(token: object, key: str) -> str:
    if isinstance(token, str):
        text = token.strip()
        if text and text.isascii() and text.isprintable() and " " not in text:
            return text
    raise ConfigurationError(f"{key} is not a token.", next_step="give what `rmcs token create` printed")
