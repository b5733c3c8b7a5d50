"""BlobRoom: how much room blobs take, and which of them may not be dropped just now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping

from ray_multicluster_scheduler.common.exception import StoreFullError, TaskSubmissionError


class BlobQuota:
    """``is_kept`` asks whether one is durable. Safe from any thread.

    Blobs that somebody put or held lately are *fresh*: the change that names them may be on its way. One that is being
    dropped is *doomed*: whoever comes for it then has to bring it again.
    """

    def __init__(self, kept_bytes: int, most_bytes: int, quota_bytes: int, is_kept: Callable[[str], bool]) -> None:
        self._kept_bytes, self._most_bytes, self._quota_bytes = kept_bytes, most_bytes, quota_bytes
        self._is_kept = is_kept
        self._coming: dict[str, int] = {}
        self._fresh: set[str] = set()
        self._fresh_before: set[str] = set()
        self._doomed: set[str] = set()
        self._seen: set[str] = set()
        """Known to be kept, so that nobody has to look again."""
        self.lock = threading.Lock()

    @property
    def kept_bytes(self) -> int:
        return self._kept_bytes

    def reserve(self, blobs: Mapping[str, int], *, owed: bool = False) -> None:
        """Room for all of them, or for none."""
        for size in blobs.values():
            if size > self._most_bytes and not owed:
                raise TaskSubmissionError(
                    f"A payload of {size:,} bytes is larger than the control plane takes ({self._most_bytes:,}).",
                    next_step="put the data where the clusters can read it and pass its path, or raise "
                    "max_payload_bytes",
                )
        with self.lock:
            new = {digest: size for digest, size in blobs.items() if not self._is_here(digest)}
            wanted = self._kept_bytes + sum(self._coming.values()) + sum(new.values())
            if wanted > self._quota_bytes and not owed:
                raise StoreFullError(
                    f"Payloads and results take {self._kept_bytes:,} of {self._quota_bytes:,} bytes.",
                    next_step="wait until older items are forgotten, shorten retention, or raise payload_quota_bytes",
                )
            self._coming.update(new)
            self._fresh.update(blobs)

    def settle(self, digests: Collection[str], *, written: bool) -> None:
        """Those for which room was reserved are durable, or will not come."""
        with self.lock:
            sizes = [self._coming.pop(digest, 0) for digest in digests]
            self._kept_bytes += sum(sizes) if written else 0
            if written:
                self._seen.update(digests)

    def hold(self, digests: Iterable[str]) -> list[str]:
        """Let nobody drop them; returns those that are not here."""
        with self.lock:
            wanted = list(digests)
            self._fresh.update(wanted)
            return [digest for digest in wanted if not self._is_here(digest)]

    def doom(self, digests: Iterable[str]) -> list[str]:
        """Which of these may be dropped; from now on nobody counts on them."""
        with self.lock:
            doomed = [one for one in digests if not self.is_fresh(one) and one not in self._coming]
            self._doomed.update(doomed)
            self._seen.difference_update(doomed)
            return doomed

    def dropped(self, digests: Iterable[str], freed_bytes: int) -> None:
        """The end of :meth:`doom`."""
        with self.lock:
            self._doomed.difference_update(digests)
            self._kept_bytes -= freed_bytes

    def grow_older(self) -> None:
        """What was put or held before the last call is not fresh any more."""
        with self.lock:
            self._fresh_before, self._fresh = self._fresh, set()
            self._seen &= self._fresh_before

    def is_fresh(self, digest: str) -> bool:
        """Only with the lock."""
        return digest in self._fresh or digest in self._fresh_before

    def _is_here(self, digest: str) -> bool:
        if digest in self._coming or digest in self._seen:
            return True
        if digest in self._doomed or not self._is_kept(digest):
            return False
        self._seen.add(digest)
        return True
