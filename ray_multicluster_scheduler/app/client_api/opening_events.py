"""OpeningEvents: what `AsyncScheduler.events()` returns, which is asked for when it is first used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Self

from ray_multicluster_scheduler.control_plane.runtime.event_iterator import EventDict, EventIterator


class OpeningEvents:
    """``async for event in scheduler.events()``, ``async with scheduler.events() as events``, and ``events = await
    scheduler.events()``, which raises at once what stands against it. For one reader at a time.

    It begins once: whoever stops waiting for it (a time-out, say) finds it begun the next time, and has missed nothing.
    """

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, EventIterator]]) -> None:
        self._begin = begin
        self._beginning: asyncio.Future[EventIterator] | None = None
        self._closed = False

    async def _begun(self) -> EventIterator:
        if self._beginning is None:
            self._beginning = asyncio.ensure_future(self._begin())
        try:
            return await asyncio.shield(self._beginning)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._beginning = None  # the next time it is asked for anew
            raise

    def __await__(self) -> Generator[Any, None, EventIterator]:
        return self._begun().__await__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventDict:
        if self._closed:
            raise StopAsyncIteration
        return await anext(await self._begun())

    async def __aenter__(self) -> EventIterator:
        return await self._begun()

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """No more is wanted. Idempotent."""
        self._closed = True
        if self._beginning is not None:
            self._beginning.add_done_callback(_close)


def _close(begun: asyncio.Future[EventIterator]) -> None:
    if not begun.cancelled() and begun.exception() is None:
        begun.result().close()
