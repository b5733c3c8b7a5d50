"""A key and a certificate of one's own, with nothing but the standard library: in a cluster there may be nothing else.

The key is one for ECDSA on the curve P-256, made once, when an agent that is to be dialled starts. Nobody checks who
signed the certificate, nor its dates: whoever trusts it knows its fingerprint.
"""

from __future__ import annotations

import base64
import hashlib
import secrets

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
_SIGNED_BY = bytes.fromhex("300a06082a8648ce3d040302")  # ecdsa-with-SHA256
_COMMON_NAME = bytes.fromhex("0603550403")
_ALWAYS = (b"700101000000Z", b"99991231235959Z")


def self_signed(name: str) -> str:
    """A fresh key and its certificate, as PEM."""
    secret = secrets.randbelow(_N - 1) + 1
    public = _bits(b"\x04" + b"".join(part.to_bytes(32, "big") for part in _times(secret, _G)))
    called = _der(_SEQUENCE, _der(_SET, _der(_SEQUENCE, _COMMON_NAME, _der(_TEXT, name.encode()))))
    body = _der(
        _SEQUENCE,
        _der(0xA0, _integer(2)),  # version 3
        _integer(secrets.randbits(120) + 1),
        _SIGNED_BY,
        called,
        _der(_SEQUENCE, _der(_UTC_TIME, _ALWAYS[0]), _der(_LONG_TIME, _ALWAYS[1])),
        called,
        _der(_SEQUENCE, _der(_SEQUENCE, _EC_KEY, _CURVE), public),
    )
    certificate = _der(_SEQUENCE, body, _SIGNED_BY, _bits(_signature(secret, body)))
    key = _der(_SEQUENCE, _integer(1), _der(_BYTES, secret.to_bytes(32, "big")), _der(0xA0, _CURVE), _der(0xA1, public))
    return _pem("EC PRIVATE KEY", key) + _pem("CERTIFICATE", certificate)


def _signature(secret: int, body: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(body).digest(), "big")
    while True:
        once = secrets.randbelow(_N - 1) + 1
        r = _times(once, _G)[0] % _N
        s = pow(once, -1, _N) * (digest + r * secret) % _N
        if r and s:
            return _der(_SEQUENCE, _integer(r), _integer(s))


def _times(number: int, point: Point) -> Point:
    """``number`` is not a multiple of the order of the curve, so the result is a point."""
    total: Point | None = None
    while number:
        if number & 1:
            total = point if total is None else _plus(total, point)
        number >>= 1
        if number:
            point = _plus(point, point)
    assert total is not None  # nosec B101 # the number is at least 1
    return total


def _plus(one: Point, other: Point) -> Point:
    """Never of a point and its opposite: below the order of the curve they do not meet on the way."""
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


def _pem(what: str, content: bytes) -> str:
    text = base64.b64encode(content).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {what}-----", *lines, f"-----END {what}-----", ""])
