"""TLS between a control plane and its agents: self-signed identities, pinned by certificate or fingerprint.

An identity is one PEM text with a private key and its certificate. Only the standard library is used.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import ssl
import tempfile
from pathlib import Path

_BEGIN = "-----BEGIN CERTIFICATE-----"


def certificate_of(identity: str) -> str:
    """The public part of an identity. Raises ValueError if there is none."""
    begin = identity.find(_BEGIN)
    if begin < 0:
        raise ValueError("there is no certificate")
    return identity[begin:]


def fingerprint_of(certificate: str) -> str:
    """The SHA-256 of a certificate, for peers that have no authority to check it by."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()


def load_identity(context: ssl.SSLContext, identity: str) -> None:
    """Present this identity on connections of ``context``. Raises ssl.SSLError for an invalid one."""
    with tempfile.TemporaryDirectory(prefix="rmcs-tls-") as folder:
        path = Path(folder, "identity.pem")
        # The ssl module reads keys from files only; this file is readable by its owner only and removed at once.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(identity)
        context.load_cert_chain(path)


def server_context(identity: str, trusted: str) -> ssl.SSLContext:
    """For the listening side: presents ``identity``, and accepts only clients with the certificate ``trusted``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=trusted)
    load_identity(context, identity)
    return context


def client_context(identity: str) -> ssl.SSLContext:
    """For the dialling side: presents ``identity``. The caller must check the server with :func:`peer_has_fingerprint`,
    because the ssl module cannot verify a fingerprint."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    load_identity(context, identity)
    return context


def peer_has_fingerprint(connection: ssl.SSLObject, fingerprint: str) -> bool:
    """Whether the peer presented the certificate with this fingerprint. Check it before sending anything."""
    presented = connection.getpeercert(binary_form=True) or b""
    return hmac.compare_digest(hashlib.sha256(presented).hexdigest(), fingerprint)


# ---- making an identity

Point = tuple[int, int]

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G: Point = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_INTEGER, _BITS, _BYTES, _OID, _TEXT, _SEQUENCE, _SET = 0x02, 0x03, 0x04, 0x06, 0x0C, 0x30, 0x31
_UTC_TIME, _LONG_TIME = 0x17, 0x18
_CURVE = bytes.fromhex("06082a8648ce3d030107")  # prime256v1
_EC_KEY = bytes.fromhex("06072a8648ce3d0201")  # id-ecPublicKey
_SIGNATURE_ALGORITHM = bytes.fromhex("300a06082a8648ce3d040302")  # ecdsa-with-SHA256
_COMMON_NAME = bytes.fromhex("0603550403")
_VALIDITY = (b"700101000000Z", b"99991231235959Z")


def self_signed(name: str) -> str:
    """A new private key and its certificate, as PEM.

    An ECDSA key on the curve P-256, made in pure Python: a cluster may have no other library. Peers do not check the
    signature or the dates of the certificate; they compare its fingerprint.
    """
    secret = secrets.randbelow(_N - 1) + 1
    public = _bits(b"\x04" + b"".join(part.to_bytes(32, "big") for part in _multiply(secret, _G)))
    subject = _der(_SEQUENCE, _der(_SET, _der(_SEQUENCE, _COMMON_NAME, _der(_TEXT, name.encode()))))
    body = _der(
        _SEQUENCE,
        _der(0xA0, _integer(2)),  # version 3
        _integer(secrets.randbits(120) + 1),
        _SIGNATURE_ALGORITHM,
        subject,
        _der(_SEQUENCE, _der(_UTC_TIME, _VALIDITY[0]), _der(_LONG_TIME, _VALIDITY[1])),
        subject,
        _der(_SEQUENCE, _der(_SEQUENCE, _EC_KEY, _CURVE), public),
    )
    certificate = _der(_SEQUENCE, body, _SIGNATURE_ALGORITHM, _bits(_signature(secret, body)))
    key = _der(_SEQUENCE, _integer(1), _der(_BYTES, secret.to_bytes(32, "big")), _der(0xA0, _CURVE), _der(0xA1, public))
    return _pem("EC PRIVATE KEY", key) + _pem("CERTIFICATE", certificate)


def _signature(secret: int, body: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(body).digest(), "big")
    while True:
        nonce = secrets.randbelow(_N - 1) + 1
        r = _multiply(nonce, _G)[0] % _N
        s = pow(nonce, -1, _N) * (digest + r * secret) % _N
        if r and s:
            return _der(_SEQUENCE, _integer(r), _integer(s))


def _multiply(number: int, point: Point) -> Point:
    """``number`` is not a multiple of the order of the curve, so the result is not the point at infinity."""
    total: Point | None = None
    while number:
        if number & 1:
            total = point if total is None else _add(total, point)
        number >>= 1
        if number:
            point = _add(point, point)
    assert total is not None  # nosec B101 # the number is at least 1
    return total


def _add(one: Point, other: Point) -> Point:
    """The two points are never opposites: that cannot happen below the order of the curve."""
    if one == other:
        slope = (3 * one[0] * one[0] - 3) * pow(2 * one[1], -1, _P)
    else:
        slope = (other[1] - one[1]) * pow(other[0] - one[0], -1, _P)
    x = (slope * slope - one[0] - other[0]) % _P
    return x, (slope * (one[0] - x) - one[1]) % _P


def _der(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    if len(body) < 0x80:
        return bytes([tag, len(body)]) + body
    length = len(body).to_bytes((len(body).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + body


def _integer(number: int) -> bytes:
    return _der(_INTEGER, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def _bits(content: bytes) -> bytes:
    return _der(_BITS, b"\x00" + content)


def _pem(kind: str, content: bytes) -> str:
    text = base64.b64encode(content).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----", ""])
