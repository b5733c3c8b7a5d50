"""Values that stay in the cluster: named to each new connection, and sent when asked for, one after another."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, MutableMapping
from concurrent.futures import Future
from typing import Any

from ray_multicluster_scheduler.scheduler.connection.gateway import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.reports import BACKLOG_HIGH, Key
from ray_multicluster_scheduler.scheduler.connection.gateway.results import MOST_VALUE_BYTES, Line


class Values:
    """Lives on the event loop. ``kept`` are references into the object store."""

    def __init__(self, line: Line, kept: MutableMapping[Key, Any], read: Callable[[Any], Future[bytes]]) -> None:
        self._line, self._kept, self._read = line, kept, read
        self._asked: OrderedDict[Key, None] = OrderedDict()
        self._reading: asyncio.Task[None] | None = None

    def resume(self) -> None:
        """A new connection: what was asked for over the last one is asked for again."""
        self._asked.clear()
        if self._kept:
            self._line.send(m.KEPT, {"keys": list(self._kept)})

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
        """One is copied out of the object store at a time, and only when those before it have left."""
        backlog = self._line.backlog()
        if self._asked and self._reading is None and backlog is not None and backlog < BACKLOG_HIGH:
            key, _ = self._asked.popitem(last=False)
            self._reading = asyncio.create_task(self._send(key))

    async def _send(self, key: Key) -> None:
        connection = self._line.connection()
        payload, problem = b"", None
        try:
            if key in self._kept:
                payload = await asyncio.wrap_future(self._read(self._kept[key]))
            else:
                problem = "the cluster does not have it any more"
        except Exception as error:  # noqa: BLE001 - whatever Ray raises: the value cannot be had
            problem = f"it cannot be read there any more ({type(error).__name__}: {str(error).strip()[:300]})"
        finally:
            self._reading = None
        if len(payload) > MOST_VALUE_BYTES:
            problem = f"it has {len(payload)} bytes, and less than 4 GiB can be sent; use it where it is"
            payload = b""
        if self._line.connection() is connection:  # else it is asked for again over the new one
            head = {"id": key[0], "attempt": key[1]}
            self._line.send(m.VALUE, head if problem is None else {**head, "problem": problem}, [payload])
        self.send()
