"""Code and arguments of items that are not over yet, by content."""

from __future__ import annotations

import hashlib
import threading


def digest_of(data: bytes) -> str:
    """The name of a blob."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class PayloadShelf:
    """Holds each blob once, for as long as somebody needs it. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blobs: dict[str, tuple[bytes, int]] = {}

    def put(self, data: bytes) -> str:
        """Keep it for one more user; returns its digest."""
        digest = digest_of(data)
        with self._lock:
            known, users = self._blobs.get(digest, (data, 0))
            self._blobs[digest] = (known, users + 1)
        return digest

    def get(self, digest: str) -> bytes:
        """The blob. Raises KeyError when nobody holds it any more."""
        return self._blobs[digest][0]

    def release(self, digest: str | None) -> None:
        """One user less; the last one takes it off the shelf."""
        if digest is None:
            return
        with self._lock:
            data, users = self._blobs[digest]
            if users > 1:
                self._blobs[digest] = (data, users - 1)
            else:
                del self._blobs[digest]

    def __len__(self) -> int:
        return len(self._blobs)
