"""A key and its certificate in one text, as two ends of a connection know each other by."""

from __future__ import annotations

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


def mutual(purpose: int, pem: str) -> ssl.SSLContext:
    """For one end (``ssl.PROTOCOL_TLS_SERVER`` or ``_CLIENT``) of a connection whose ends both have this key, and let
    nobody else in. Host names do not matter."""
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate_of(pem))
    show(context, pem)
    return context
