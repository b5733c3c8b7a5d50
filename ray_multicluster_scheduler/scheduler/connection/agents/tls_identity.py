"""TlsIdentity: the self-signed key and certificate of a control plane, made at start and pinned by its agents."""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass

from ray_multicluster_scheduler.common.tls import certificate_of, load_identity

_VALID = datetime.timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """A server context, the certificate (PEM) that is the only one agents trust, and key and certificate to store."""

    context: ssl.SSLContext
    certificate: str
    pem: bytes


def make_identity() -> TlsIdentity:
    """Make a new key and certificate."""
    from cryptography import x509  # noqa: PLC0415 - only needed off loopback, and slow to import
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rmcs control plane")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return identity_from(secret + pem)


def identity_from(pem: bytes) -> TlsIdentity:
    """Load a stored identity. Raises ValueError if it is none."""
    text = pem.decode("ascii")
    certificate = certificate_of(text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_identity(context, text)
    return TlsIdentity(context, certificate, pem)
