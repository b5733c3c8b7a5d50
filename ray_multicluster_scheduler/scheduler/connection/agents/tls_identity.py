"""TlsIdentity: the self-signed key and certificate of a control plane, made at start and pinned by its agents."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from ray_multicluster_scheduler.common.tls import certificate_of, load_identity, self_signed


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """A server context, the certificate (PEM) that is the only one agents trust, and key and certificate to store."""

    context: ssl.SSLContext
    certificate: str
    pem: bytes


def make_identity() -> TlsIdentity:
    """Make a new key and certificate."""
    return identity_from(self_signed("rmcs control plane").encode("ascii"))


def identity_from(pem: bytes) -> TlsIdentity:
    """Load a stored identity. Raises ValueError if it is none."""
    text = pem.decode("ascii")
    certificate = certificate_of(text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_identity(context, text)
    return TlsIdentity(context, certificate, pem)
