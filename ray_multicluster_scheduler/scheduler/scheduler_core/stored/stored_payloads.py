"""StoredShelf: payloads are in the store; what was used last is at hand."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import StoreError
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.control_plane.store import Store
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import PayloadCache

AT_HAND_BYTES = 64 * 2**20
_SMALL_BYTES = 4096
ENTRY_BYTES = 250
"""What one costs besides its bytes, about."""


class StoredPayloads(PayloadCache):
    """Holds no more than ``at_hand_bytes``, however long the queue is, but for what is being sent just now.

    Used on one loop.
    """

    def __init__(self, store: Store, at_hand_bytes: int = AT_HAND_BYTES) -> None:
        super().__init__()
        self._store, self._most = store, at_hand_bytes
        self._at_hand: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._wanted: Counter[str] = Counter()
        self._values: dict[str, list[tuple[str, str | bytes]]] = {}
        """Of each item the names of the values attached to it, with the digest of each, or itself if it is small."""

    def hold(self, digest: str, data: bytes) -> str:
        """It is in the store, or on its way there."""
        if digest not in self._at_hand:
            self._at_hand[digest] = data
            self._bytes += len(data) + ENTRY_BYTES
            self._make_room()
        return digest

    def get(self, digest: str) -> bytes:
        """Raises StoreError if it is not there, or not what it was."""
        data = self._at_hand.get(digest)
        if data is not None:
            self._at_hand.move_to_end(digest)
            return data
        return self._read(digest)

    def release(self, digest: str | None) -> None:
        """The store forgets by its own rules."""

    def attach(self, task_id: str, objects: Sequence[tuple[str, bytes]]) -> None:
        values: list[tuple[str, str | bytes]] = []
        for name, data in objects:
            if len(data) > _SMALL_BYTES:
                values.append((name, self.hold(digest_of(data), data)))
            else:
                values.append((name, data))
        self._values[task_id] = values

    def lose(self, task_id: str, names: Sequence[str]) -> None:
        """Some of its values are gone: it cannot be sent any more."""
        self._values[task_id] = [(name, name) for name in names]

    def objects_of(self, task_id: str) -> Sequence[tuple[str, bytes]]:
        values = self._values.get(task_id, ())
        return [(name, self.get(value) if isinstance(value, str) else value) for name, value in values]

    def detach(self, task_id: str) -> None:
        self._values.pop(task_id, None)

    def is_at_hand(self, task: TaskDescription) -> bool:
        return all(digest in self._at_hand for digest in self._digests(task))

    @asynccontextmanager
    async def at_hand(self, task: TaskDescription) -> AsyncIterator[None]:
        """Raises StoreError."""
        digests = self._digests(task)
        self._wanted.update(digests)
        try:
            for digest in digests:
                if digest not in self._at_hand:
                    self.hold(digest, await asyncio.to_thread(self._read, digest))
            yield
        finally:
            self._wanted.subtract(digests)
            self._wanted += Counter()
            self._make_room()

    def __len__(self) -> int:
        return len(self._at_hand)

    def _digests(self, task: TaskDescription) -> list[str]:
        values: Iterable[tuple[str, str | bytes]] = self._values.get(task.id, ())
        named = [digest for digest in task.payload_digests if digest]
        return [*named, *(value for _, value in values if isinstance(value, str))]

    def _read(self, digest: str) -> bytes:
        data = self._store.blob(digest)
        if data is None:
            raise StoreError(f"The payload {digest} is not in the store any more.")
        return data

    def _make_room(self) -> None:
        while self._bytes > self._most:
            oldest = next((one for one in self._at_hand if not self._wanted[one]), None)
            if oldest is None:
                return
            self._bytes -= len(self._at_hand.pop(oldest)) + ENTRY_BYTES
