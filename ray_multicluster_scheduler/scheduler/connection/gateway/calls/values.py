"""Values that stay in the cluster: named to each new connection, and sent when asked for, few at a time."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, MutableMapping
from concurrent.futures import Future
from typing import Any

from ray_multicluster_scheduler.scheduler.connection.gateway.calls.reports import BACKLOG_HIGH, Key
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.results import Line
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m

_AT_ONCE = 2


class Values:
    """Lives on the event loop. ``kept`` are references into the object store, each with the time when it came."""

    def __init__(
        self, line: Line, kept: MutableMapping[Key, tuple[Any, float]], read: Callable[[Any], Future[bytes]]
    ) -> None:
        self._line, self._kept, self._read = line, kept, read
        self._asked: OrderedDict[Key, None] = OrderedDict()
        self._reading: set[asyncio.Task[None]] = set()

    def resume(self) -> None:
        """A new connection: what was asked for over the last one is asked for again."""
        self._asked.clear()
        if self._kept:
            now = time.monotonic()
            self._line.send(m.KEPT, {"values": [[*key, now - since] for key, (_, since) in self._kept.items()]})

    def fetch(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._asked[key] = None
        self.send()

    def release(self, keys: Iterable[Key]) -> None:
        keys = list(keys)
        for key in keys:
            self._kept.pop(key, None)
        self._line.send(m.RELEASED, {"keys": keys})

    def send(self) -> None:
        """Few are copied out of the object store at a time, and only when those before them have left; one that hangs
        there does not hold up the others."""
        backlog = self._line.backlog()
        while self._asked and len(self._reading) < _AT_ONCE and backlog is not None and backlog < BACKLOG_HIGH:
            key, _ = self._asked.popitem(last=False)
            task = asyncio.create_task(self._send(key))
            self._reading.add(task)
            task.add_done_callback(self._was_read)

    def _was_read(self, task: asyncio.Task[None]) -> None:
        self._reading.discard(task)
        self.send()

    async def _send(self, key: Key) -> None:
        connection = self._line.connection()
        payload: bytes = b""
        problem: dict[str, Any] = {}
        try:
            if key in self._kept:
                payload = await asyncio.wrap_future(self._read(self._kept[key][0]))
            else:
                problem = {"problem": "the cluster does not have it any more", "gone": True}
        except Exception as error:  # noqa: BLE001 - whatever Ray raises: the value cannot be had
            problem = {"problem": f"it cannot be read there ({type(error).__name__}: {str(error).strip()[:300]})"}
        if self._line.connection() is connection:  # else it is asked for again over the new one
            self._line.send(m.VALUE, {"id": key[0], "attempt": key[1], **problem}, [payload])
