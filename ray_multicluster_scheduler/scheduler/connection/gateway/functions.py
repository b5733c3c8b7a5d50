"""The functions that calls use: sent once, kept for later calls, the least used dropped when there are too many."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

KEPT_FUNCTIONS = 1000
KEPT_BYTES = 256 * 1024 * 1024
_LARGE_BYTES = 64 * 1024


class Function:
    """One pickled function. A call that waits holds on to it, also when it is not kept for others any more."""

    def __init__(self, pickled: bytes) -> None:
        self.size = len(pickled)
        self._value: Any = pickled
        self._stored = False
        self._lock = threading.Lock()

    def argument(self, store: Callable[[bytes], Any]) -> Any:
        """What to give to Ray: a large one goes to the object store once, not into each call. May block and raise."""
        with self._lock:
            if self.size > _LARGE_BYTES and not self._stored:
                self._value = store(self._value)
                self._stored = True
            return self._value


class Functions:
    """By digest. Whoever needs one that was dropped has to ask for it again."""

    def __init__(self, most: int = KEPT_FUNCTIONS, most_bytes: int = KEPT_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._kept: OrderedDict[str, Function] = OrderedDict()
        self._bytes = 0

    def learn(self, digest: str, pickled: bytes) -> Function:
        """Keep it; one that is known already stays as it is."""
        known = self.get(digest)
        if known is not None:
            return known
        function = self._kept[digest] = Function(pickled)
        self._bytes += function.size
        while len(self._kept) > 1 and (len(self._kept) > self._most or self._bytes > self._most_bytes):
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.size
        return function

    def get(self, digest: str) -> Function | None:
        """None: it never came, or was dropped."""
        function = self._kept.get(digest)
        if function is not None:
            self._kept.move_to_end(digest)
        return function
