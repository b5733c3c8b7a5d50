"""The name of a blob: a hash of what is in it."""

from __future__ import annotations

import hashlib


def digest_of(data: bytes) -> str:
    """Equal bytes have equal names, and no others."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def new_digest() -> hashlib.blake2b:
    """For bytes that come in pieces; its ``hexdigest()`` is what digest_of says of all of them."""
    return hashlib.blake2b(digest_size=16)
