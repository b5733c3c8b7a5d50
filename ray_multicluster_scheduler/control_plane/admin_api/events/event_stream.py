"""EventStream: events as an answer that does not end (SSE), for one reader."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import missed
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event_hub import Batch, Subscription

HEARTBEAT_S = 15.0
_AGAIN_MS = 2_000
_AT_ONCE = 100
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStream(Response):
    """What came up to number ``after`` is known; ``first`` is told before all else. The reader is closed at the end,
    whoever ends."""

    media_type = "text/event-stream"

    def __init__(
        self,
        reader: Subscription,
        batches: AsyncIterator[Batch],
        after: int,
        at_its_end: Callable[[], None],
        first: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._reader, self._batches, self._after, self._first = reader, batches, after, first
        self._at_its_end = at_its_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        telling = asyncio.create_task(self._tell(send))
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait((telling, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._reader.close()
            self._at_its_end()
            for task in (telling, gone):
                task.cancel()
            await asyncio.gather(telling, gone, return_exceptions=True)
        if telling.done() and not telling.cancelled() and (error := telling.exception()) is not None:
            raise error

    async def _tell(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        first = "".join(_frame(json.dumps(one), one.get("number")) for one in self._first)
        # A number without an event: whoever is cut off before the first one comes back with it. Not before a snapshot,
        # which has one itself: whoever is cut off before that comes back for it.
        number = "" if first else f"id: {self._after}\n\n"
        await _send(send, f"retry: {_AGAIN_MS}\n{number}{first}")
        async for batch in self._batches:
            for text in _texts(batch):
                await _send(send, text)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _texts(batch: Batch) -> Iterator[str]:
    """In pieces: what a reader does not take is kept for it, and is to be little."""
    if batch.missed is not None:
        yield _frame(json.dumps(missed(batch.missed)), None)
    for at in range(0, len(batch.events), _AT_ONCE):
        yield "".join([_frame(event.text, event.number) for event in batch.events[at : at + _AT_ONCE]])
    if batch.read is not None and (not batch.events or batch.events[-1].number != batch.read):
        yield f"id: {batch.read}\n\n"  # who is cut off now need not come back for all that is not for it
    elif not batch.events:
        yield ": all is well\n\n"


def _frame(text: str, number: int | None) -> str:
    return f"data: {text}\n\n" if number is None else f"id: {number}\ndata: {text}\n\n"
