"""A key and its certificate in one text, as two ends of a connection know each other by."""

from __future__ import annotations

import hashlib
import hmac
import os
import ssl
import tempfile
from pathlib import Path

_BEGIN = "-----BEGIN CERTIFICATE-----"


def certificate_of(pem: str) -> str:
    """The part that may be shown. Raises ValueError if there is none."""
    begin = pem.find(_BEGIN)
    if begin < 0:
        raise ValueError("there is no certificate")
    return pem[begin:]


def show(context: ssl.SSLContext, pem: str) -> None:
    """Have this key shown by whoever uses ``context``. Raises ssl.SSLError for what is none."""
    with tempfile.TemporaryDirectory(prefix="rmcs-tls-") as folder:
        path = Path(folder, "identity.pem")
        # The ssl module reads keys from files only; this one is ours alone and gone at once.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(pem)
        context.load_cert_chain(path)


def fingerprint_of(certificate: str) -> str:
    """By which a certificate is known that nobody has signed."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()


def waiting(pem: str, trusted: str) -> ssl.SSLContext:
    """For who waits for connections: shows its own key ``pem``, and lets in nobody but who has the key of the
    certificate ``trusted``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=trusted)
    show(context, pem)
    return context


def dialling(pem: str) -> ssl.SSLContext:
    """For who dials, and shows its key ``pem``. Whom it has reached, :func:`is_shown` tells: only the fingerprint of
    the other end is known, which the ssl module cannot look for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    show(context, pem)
    return context


def is_shown(connection: ssl.SSLObject, fingerprint: str) -> bool:
    """Has the other end the key of the certificate with this fingerprint? To be asked before anything is said."""
    shown = connection.getpeercert(binary_form=True) or b""
    return hmac.compare_digest(hashlib.sha256(shown).hexdigest(), fingerprint)
