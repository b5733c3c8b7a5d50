"""What calls share (functions, objects): sent once, kept for later, the least used dropped when there is too much."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

_LARGE_BYTES = 64 * 1024


class Kept:
    """One pickled thing. A call that waits holds on to it, also when it is not kept for others any more."""

    def __init__(self, pickled: bytes) -> None:
        self.size = len(pickled)
        self._value: Any = pickled
        self._stored = False
        self._lock = threading.Lock()

    @property
    def not_stored(self) -> bool:
        """Does it still have to go to the object store? That takes a while."""
        return self.size > _LARGE_BYTES and not self._stored

    def argument(self, store: Callable[[bytes], Any]) -> Any:
        """What to give to Ray: a large one goes to the object store once, not into each call. May block and raise."""
        with self._lock:
            if self.not_stored:
                self._value = store(self._value)
                self._stored = True
            return self._value


class KeptByDigest:
    """By digest. Whoever needs one that was dropped has to ask for it again."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.most, self.most_bytes = most, most_bytes
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._bytes = 0

    def learn(self, digest: str, pickled: bytes) -> Kept:
        """Keep it; one that is known already stays as it is."""
        known = self.get(digest)
        if known is not None:
            return known
        new = self._kept[digest] = Kept(pickled)
        self._bytes += new.size
        while len(self._kept) > 1 and (len(self._kept) > self.most or self._bytes > self.most_bytes):
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.size
        return new

    def get(self, digest: str) -> Kept | None:
        """None: it never came, or was dropped."""
        known = self._kept.get(digest)
        if known is not None:
            self._kept.move_to_end(digest)
        return known
