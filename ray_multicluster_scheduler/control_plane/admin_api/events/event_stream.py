"""EventStream: server-sent events (SSE) for one reader; and the snapshot that a reader can start with."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ray_multicluster_scheduler.control_plane.runtime import explanation
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import missed_event
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event_hub import Batch, Subscription

HEARTBEAT_S = 15.0
_AGAIN_MS = 2_000
_AT_ONCE = 100
MAX_ITEMS = 1_000
"""Items in a snapshot."""
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStream(Response):
    """Sends ``first``, then the events after number ``after``. Closes the reader when either side ends the stream."""

    media_type = "text/event-stream"

    def __init__(
        self,
        reader: Subscription,
        batches: AsyncIterator[Batch],
        after: int,
        on_close: Callable[[], None],
        first: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._reader, self._batches, self._after, self._first = reader, batches, after, first
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_events(send))
        disconnected = asyncio.create_task(_until_disconnected(receive))
        try:
            await asyncio.wait((sending, disconnected), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._reader.close()
            self._on_close()
            for task in (sending, disconnected):
                task.cancel()
            await asyncio.gather(sending, disconnected, return_exceptions=True)
        if sending.done() and not sending.cancelled() and (error := sending.exception()) is not None:
            raise error

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        first = "".join(_frame(json.dumps(one), one.get("number")) for one in self._first)
        # An id without data: a reader that is cut off before the first event resumes there. A snapshot has its own.
        number = "" if first else f"id: {self._after}\n\n"
        await _send(send, f"retry: {_AGAIN_MS}\n{number}{first}")
        async for batch in self._batches:
            for text in _texts(batch):
                await _send(send, text)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _texts(batch: Batch) -> Iterator[str]:
    """In small pieces, since what a slow reader does not take is buffered."""
    if batch.missed is not None:
        yield _frame(json.dumps(missed_event(batch.missed)), None)
    for at in range(0, len(batch.events), _AT_ONCE):
        yield "".join([_frame(event.text, event.number) for event in batch.events[at : at + _AT_ONCE]])
    if batch.read is not None and (not batch.events or batch.events[-1].number != batch.read):
        yield f"id: {batch.read}\n\n"  # resume behind the events that the filter left out
    elif not batch.events:
        yield ": heartbeat\n\n"


def _frame(text: str, number: int | None) -> str:
    return f"data: {text}\n\n" if number is None else f"id: {number}\ndata: {text}\n\n"


def snapshot(runtime: ServiceRuntime, only_owner: str | None = None) -> dict[str, Any]:
    """The state of clusters and unfinished items, on the loop. It includes all events up to ``number``, and maybe later
    ones: of an item the state with the highest ``step`` is valid."""
    live = [one for one in runtime.unfinished() if only_owner is None or one.task.owner == only_owner]
    return {
        "number": runtime.event_publisher.hub.number,
        "type": "snapshot",
        "at": runtime.clock.now(),
        "clusters": explanation.cluster_rows(runtime),
        "counts": dict(Counter(str(one.state) for one in live)),
        "items": [_row(one) for one in islice(reversed(live), MAX_ITEMS)],
        "all_items": len(live) <= MAX_ITEMS,
    }


def _row(item: Item) -> dict[str, Any]:
    task, step = item.task, item.transition
    return {
        "id": item.id,
        "kind": task.kind,
        "name": task.name,
        "owner": task.owner,
        "state": str(item.state),
        "step": 0 if step is None else step.number,
        "attempt": item.attempt,
        "cluster": item.cluster,
        "code": None if step is None else step.code,
        "sentence": None if step is None else step.sentence,
    }
