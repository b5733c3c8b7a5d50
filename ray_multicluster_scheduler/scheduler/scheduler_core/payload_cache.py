"""Code, arguments and shared values of items that are not over yet, by content or by name."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.model import TaskDescription


class PayloadCache:
    """Holds each blob once, for as long as somebody needs it. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blobs: dict[str, tuple[bytes, int]] = {}
        self._attached: dict[str, tuple[str, ...]] = {}

    def put(self, data: bytes) -> str:
        """Keep it for one more user; returns its digest."""
        return self.hold(digest_of(data), data)

    def hold(self, digest: str, data: bytes) -> str:
        """The same, by a name that is known already."""
        with self._lock:
            self._hold(digest, data)
        return digest

    def get(self, digest: str) -> bytes:
        """The blob. Raises KeyError when nobody holds it any more."""
        return self._blobs[digest][0]

    def release(self, digest: str | None) -> None:
        """One user less; the last one removes it."""
        if digest is not None:
            with self._lock:
                self._release(digest)

    def attach(self, task_id: str, objects: Sequence[tuple[str, bytes]]) -> None:
        """Keep these values, each with its name, for one item until it is :meth:`detach`\\ ed."""
        with self._lock:
            for name, data in objects:
                self._hold(name, data)
            self._attached[task_id] = tuple(name for name, _ in objects)

    def objects_of(self, task_id: str) -> Sequence[tuple[str, bytes]]:
        """What was attached to it, in that order."""
        return [(name, self._blobs[name][0]) for name in self._attached.get(task_id, ())]

    def detach(self, task_id: str) -> None:
        """It is over. Nothing happens if there is nothing of it."""
        if task_id in self._attached:
            with self._lock:
                for name in self._attached.pop(task_id, ()):
                    self._release(name)

    def is_at_hand(self, task: TaskDescription) -> bool:
        """Can its payloads be had at once?"""
        return True

    @asynccontextmanager
    async def at_hand(self, task: TaskDescription) -> AsyncIterator[None]:
        """Its payloads can be had at once inside of this."""
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
