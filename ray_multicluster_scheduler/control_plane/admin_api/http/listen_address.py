"""ListenAddress: host, port, TLS files and authentication of a service; unsafe combinations are refused."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cryptography import x509

from ray_multicluster_scheduler.common.exception import ConfigurationError

HOST, PORT = "127.0.0.1", 8000


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Raises ConfigurationError for an address other than loopback without TLS or without tokens. ``names`` are the
    host names of the service, besides those of this machine."""

    host: str = HOST
    port: int = PORT
    auth: Literal["token", "none"] = "token"
    cert: Path | None = None
    key: Path | None = None
    allow_hosts: Sequence[str] = ()
    names: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ConfigurationError(
                "TLS needs both a certificate and its key.", next_step="give --tls-cert and --tls-key"
            )
        if not is_loopback(self.host):
            if self.cert is None:
                raise ConfigurationError(
                    f"The service cannot listen on {self.host} without TLS: tokens and code would travel in the open.",
                    next_step="give --tls-cert and --tls-key, or use --host 127.0.0.1 and an ssh tunnel from elsewhere",
                )
            if self.auth == "none":
                raise ConfigurationError(
                    f"The service cannot listen on {self.host} without tokens: all who reach it could run code "
                    "on your clusters.",
                    next_step="use --auth token, or --host 127.0.0.1",
                )
        found = [] if self.cert is None or self.key is None else _names_in(self.cert, self.key)
        own = [] if is_loopback(self.host) or _is_any(self.host) else [self.host]
        object.__setattr__(self, "names", tuple(dict.fromkeys([*own, *found, *self.allow_hosts])))

    @property
    def secure(self) -> bool:
        return self.cert is not None

    def address(self, port: int) -> str:
        """The URL for clients; a service on all interfaces is reached by the first of its names."""
        host = next(iter(self.names), "127.0.0.1") if _is_any(self.host) else self.host
        return f"{'https' if self.secure else 'http'}://{bracketed(host)}:{port}"


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _names_in(cert: Path, key: Path) -> list[str]:
    """The host names and addresses of the certificate. Raises ConfigurationError."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=lambda: "")
        found = x509.load_pem_x509_certificates(cert.read_bytes())[0]
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigurationError(
            f"The certificate {cert} and the key {key} cannot be used: {error}.",
            next_step="give two files in PEM that belong together, the key without a password",
        ) from error
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = [str(one) for one in names.get_values_for_type(x509.IPAddress)]
    return [*(one for one in names.get_values_for_type(x509.DNSName) if not one.startswith("*")), *addresses]
