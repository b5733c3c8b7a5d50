"""BlobQuota: space that blobs use and may use, and which blobs must not be deleted now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping

from ray_multicluster_scheduler.common.exception import StoreFullError, TaskSubmissionError


class BlobQuota:
    """Thread-safe. ``is_stored`` queries whether a blob is durable.

    A blob that was put or pinned recently is *fresh*: the change that names it may be on its way. A blob that is being
    deleted is not available: a caller that needs it must upload it again.
    """

    def __init__(
        self, used_bytes: int, max_blob_bytes: int, quota_bytes: int, is_stored: Callable[[str], bool]
    ) -> None:
        self._used_bytes, self._max_blob_bytes, self._quota_bytes = used_bytes, max_blob_bytes, quota_bytes
        self._is_stored = is_stored
        self._reserved: dict[str, int] = {}
        self._fresh: set[str] = set()
        self._fresh_before: set[str] = set()
        self._deleting: set[str] = set()
        self._known: set[str] = set()
        """Cache of blobs that are stored."""
        self.lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def reserve(self, blobs: Mapping[str, int], *, beyond_quota: bool = False) -> None:
        """Reserve space for all of them, or for none."""
        for size in blobs.values():
            if size > self._max_blob_bytes and not beyond_quota:
                raise TaskSubmissionError(
                    f"A payload of {size:,} bytes is larger than the control plane takes ({self._max_blob_bytes:,}).",
                    next_step="put the data where the clusters can read it and pass its path, or raise "
                    "max_payload_bytes",
                )
        with self.lock:
            new = {digest: size for digest, size in blobs.items() if not self._is_available(digest)}
            total = self._used_bytes + sum(self._reserved.values()) + sum(new.values())
            if total > self._quota_bytes and not beyond_quota:
                raise StoreFullError(
                    f"Payloads and results take {self._used_bytes:,} of {self._quota_bytes:,} bytes.",
                    next_step="wait until older items are deleted, shorten retention, or raise payload_quota_bytes",
                )
            self._reserved.update(new)
            self._fresh.update(blobs)

    def settle(self, digests: Collection[str], *, written: bool) -> None:
        """End reservations: the blobs are durable, or could not be written."""
        with self.lock:
            sizes = [self._reserved.pop(digest, 0) for digest in digests]
            self._used_bytes += sum(sizes) if written else 0
            if written:
                self._known.update(digests)

    def pin(self, digests: Iterable[str]) -> list[str]:
        """Protect blobs from deletion; returns those that are missing."""
        with self.lock:
            pinned = list(digests)
            self._fresh.update(pinned)
            return [digest for digest in pinned if not self._is_available(digest)]

    def mark_for_deletion(self, digests: Iterable[str]) -> list[str]:
        """Mark for deletion those that are not fresh or reserved; returns them."""
        with self.lock:
            deleting = [one for one in digests if not self.is_fresh(one) and one not in self._reserved]
            self._deleting.update(deleting)
            self._known.difference_update(deleting)
            return deleting

    def deleted(self, digests: Iterable[str], freed_bytes: int) -> None:
        """End what :meth:`mark_for_deletion` began."""
        with self.lock:
            self._deleting.difference_update(digests)
            self._used_bytes -= freed_bytes

    def age(self) -> None:
        """End the freshness of blobs that were put or pinned before the previous call."""
        with self.lock:
            self._fresh_before, self._fresh = self._fresh, set()
            self._known &= self._fresh_before

    def is_fresh(self, digest: str) -> bool:
        """The caller holds the lock."""
        return digest in self._fresh or digest in self._fresh_before

    def _is_available(self, digest: str) -> bool:
        if digest in self._reserved or digest in self._known:
            return True
        if digest in self._deleting or not self._is_stored(digest):
            return False
        self._known.add(digest)
        return True
