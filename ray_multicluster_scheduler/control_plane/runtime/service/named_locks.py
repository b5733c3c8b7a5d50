"""One at a time of each name, on one loop."""

from __future__ import annotations

import asyncio
import weakref


class NamedLocks:
    """A lock for each name that somebody holds or waits for; nothing is kept of the others."""

    def __init__(self) -> None:
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def of(self, name: str) -> asyncio.Lock:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    def __len__(self) -> int:
        return len(self._locks)
