"""OpeningEvents: what `AsyncScheduler.events()` returns, which is asked for when it is first used."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Self

from ray_multicluster_scheduler.app.client_api.events.event_iterator import EventIterator, Said


class OpeningEvents:
    """``async for event in scheduler.events()``, ``async with scheduler.events() as events``, and ``events = await
    scheduler.events()``, which raises at once what stands against it. For one reader at a time."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, EventIterator]]) -> None:
        self._begin = begin
        self._events: EventIterator | None = None

    async def _begun(self) -> EventIterator:
        if self._events is None:
            self._events = await self._begin()
        return self._events

    def __await__(self) -> Generator[Any, None, EventIterator]:
        return self._begun().__await__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Said:
        return await anext(await self._begun())

    async def __aenter__(self) -> EventIterator:
        return await self._begun()

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """No more is wanted. Idempotent."""
        if self._events is not None:
            self._events.close()
