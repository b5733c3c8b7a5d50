"""Caches of payloads: code, arguments and shared values of items that have not ended, by digest or name."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import StoreError
from ray_multicluster_scheduler.common.model import TaskDescription

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.store import Store

CACHE_BYTES = 64 * 2**20
ENTRY_BYTES = 250
"""Approximate overhead of one cached payload, in addition to its bytes."""
_SMALL_BYTES, _LARGE_BYTES = 4096, 2**20


class PayloadCache:
    """Payloads of an embedded control plane: each blob is held once, and counts its users. Thread-safe.

    ``hashes_large``: large arguments are named by their digest, too, because a service checks it.
    """

    def __init__(self, *, hashes_large: bool = False) -> None:
        self._hashes_large = hashes_large
        self._lock = threading.Lock()
        self._blobs: dict[str, tuple[bytes, int]] = {}
        self._attached: dict[str, tuple[str, ...]] = {}

    def name_for(self, data: bytes, item_id: str) -> str:
        """The name for arguments that are compared with no others: their digest, or the id of their item if they are
        large, because hashing takes as long as sending."""
        return digest_of(data) if self._hashes_large or len(data) <= _LARGE_BYTES else f"arguments-of-{item_id}"

    def put(self, data: bytes) -> str:
        """Add a user of this blob; returns its digest."""
        return self.hold(digest_of(data), data)

    def hold(self, digest: str, data: bytes) -> str:
        """The same, for a known digest or name."""
        with self._lock:
            self._hold(digest, data)
        return digest

    def get(self, digest: str) -> bytes:
        """The blob. Raises KeyError when it has no user."""
        return self._blobs[digest][0]

    def release(self, digest: str | None) -> None:
        """Remove a user; without users the blob is dropped."""
        if digest is not None:
            with self._lock:
                self._release(digest)

    def attach(self, task_id: str, objects: Sequence[tuple[str, bytes]]) -> None:
        """Hold these named values for one item until :meth:`detach`."""
        with self._lock:
            for name, data in objects:
                self._hold(name, data)
            self._attached[task_id] = tuple(name for name, _ in objects)

    def objects_of(self, task_id: str) -> Sequence[tuple[str, bytes]]:
        """The values attached to an item, in order."""
        return [(name, self._blobs[name][0]) for name in self._attached.get(task_id, ())]

    def detach(self, task_id: str) -> None:
        """Release the values of an item that has ended; does nothing if there are none."""
        if task_id in self._attached:
            with self._lock:
                for name in self._attached.pop(task_id, ()):
                    self._release(name)

    def is_at_hand(self, task: TaskDescription) -> bool:
        """Whether :meth:`get` returns its payloads without blocking."""
        return True

    @asynccontextmanager
    async def at_hand(self, task: TaskDescription) -> AsyncIterator[None]:
        """Within this context :meth:`get` returns its payloads without blocking."""
        yield

    def __len__(self) -> int:
        return len(self._blobs)

    def _hold(self, digest: str, data: bytes) -> None:
        known, users = self._blobs.get(digest, (data, 0))
        self._blobs[digest] = (known, users + 1)

    def _release(self, digest: str) -> None:
        data, users = self._blobs[digest]
        if users > 1:
            self._blobs[digest] = (data, users - 1)
        else:
            del self._blobs[digest]


class StoredPayloads(PayloadCache):
    """Payloads of a service: all are in the store; the last used are cached. Used on one loop.

    Caches at most ``cache_bytes``, plus what is being sent now.
    """

    def __init__(self, store: Store, cache_bytes: int = CACHE_BYTES) -> None:
        super().__init__()
        self._store, self._max_bytes = store, cache_bytes
        self._cached: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._in_use: Counter[str] = Counter()
        self._values: dict[str, list[tuple[str, str | bytes]]] = {}
        """Per item the attached values: name, and digest of the value or, if it is small, the value itself."""

    def hold(self, digest: str, data: bytes) -> str:
        """Cache a blob that is in the store, or about to be written."""
        if digest not in self._cached:
            self._cached[digest] = data
            self._bytes += len(data) + ENTRY_BYTES
            self._evict()
        return digest

    def get(self, digest: str) -> bytes:
        """Raises StoreError if it is missing or damaged."""
        data = self._cached.get(digest)
        if data is not None:
            self._cached.move_to_end(digest)
            return data
        return self._read(digest)

    def release(self, digest: str | None) -> None:
        """Does nothing: retention of the store deletes payloads."""

    def attach(self, task_id: str, objects: Sequence[tuple[str, bytes]]) -> None:
        values: list[tuple[str, str | bytes]] = []
        for name, data in objects:
            if len(data) > _SMALL_BYTES:
                values.append((name, self.hold(digest_of(data), data)))
            else:
                values.append((name, data))
        self._values[task_id] = values

    def lose(self, task_id: str, names: Sequence[str]) -> None:
        """Attach values by digest only, for an item of which some are lost: :meth:`get` will fail."""
        self._values[task_id] = [(name, name) for name in names]

    def objects_of(self, task_id: str) -> Sequence[tuple[str, bytes]]:
        values = self._values.get(task_id, ())
        return [(name, self.get(value) if isinstance(value, str) else value) for name, value in values]

    def detach(self, task_id: str) -> None:
        self._values.pop(task_id, None)

    def is_at_hand(self, task: TaskDescription) -> bool:
        return all(digest in self._cached for digest in self._digests(task))

    @asynccontextmanager
    async def at_hand(self, task: TaskDescription) -> AsyncIterator[None]:
        """Raises StoreError."""
        digests = self._digests(task)
        self._in_use.update(digests)
        try:
            for digest in digests:
                if digest not in self._cached:
                    self.hold(digest, await asyncio.to_thread(self._read, digest))
            yield
        finally:
            self._in_use.subtract(digests)
            self._in_use += Counter()
            self._evict()

    def __len__(self) -> int:
        return len(self._cached)

    def _digests(self, task: TaskDescription) -> list[str]:
        values: Iterable[tuple[str, str | bytes]] = self._values.get(task.id, ())
        named = [digest for digest in task.payload_digests if digest]
        return [*named, *(value for _, value in values if isinstance(value, str))]

    def _read(self, digest: str) -> bytes:
        data = self._store.blob(digest)
        if data is None:
            raise StoreError(f"The payload {digest} is not in the store any more.")
        return data

    def _evict(self) -> None:
        while self._bytes > self._max_bytes:
            oldest = next((one for one in self._cached if not self._in_use[one]), None)
            if oldest is None:
                return
            self._bytes -= len(self._cached.pop(oldest)) + ENTRY_BYTES
