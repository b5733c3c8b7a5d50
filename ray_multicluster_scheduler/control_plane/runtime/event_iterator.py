"""EventIterator: live events for a `for` or `async for` loop of a program. EventListener: calls a callback with each.

``UnifiedScheduler.events`` and ``on_event`` return them, in a program with or without a service.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol, Self

from ray_multicluster_scheduler.common.exception import SchedulerError, ServiceUnavailableError
from ray_multicluster_scheduler.common.logging import get_logger

_log = get_logger(__name__)
EventDict = dict[str, Any]
EventCallback = Callable[[EventDict], object]


class LoopOwner(Protocol):
    """The control plane, which runs the loop of the event source."""

    def start(self, work: Coroutine[Any, Any, Any]) -> Future[Any]: ...

    def spawn(self, work: Coroutine[Any, Any, object]) -> None: ...


class EventIterator:
    """Each event is a dict with its ``type``; durable ones have a ``number``. It ends with its scheduler or by
    :meth:`close`, which `with` and `async with` call. For one reader at a time."""

    def __init__(self, plane: LoopOwner, source: AsyncGenerator[list[EventDict], None]) -> None:
        self._plane, self._source = plane, source
        self._buffer: deque[EventDict] = deque()
        self._pending: Future[list[EventDict] | None] | None = None
        self._closed = False

    def begin(self, timeout: float) -> None:
        """Wait for the first batch, which shows that the request was accepted. Raises SchedulerError."""
        pending = self._request()
        if pending is not None:
            try:
                self._take(pending.result(timeout))
            except TimeoutError:
                self.close()
                raise ServiceUnavailableError(
                    f"No event was received within {timeout:g} s.", next_step="check whether the service runs"
                ) from None

    def next(self, timeout: float | None = None) -> EventDict | None:
        """The next event; None on timeout or after the last event."""
        while not self._buffer:
            pending = self._request()
            if pending is None:
                return None
            try:
                found = pending.result(timeout)
            except TimeoutError:
                return None
            except CancelledError:
                found = None
            if not self._take(found):
                return None
        return self._buffer.popleft()

    def close(self) -> None:
        """End the subscription. Idempotent."""
        if not self._closed:
            self._closed = True
            if self._pending is not None:
                self._pending.cancel()
            self._plane.spawn(_close(self._source))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> EventDict:
        try:
            found = self.next()
        except KeyboardInterrupt:
            self.close()
            raise
        if found is None:
            raise StopIteration
        return found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventDict:
        while not self._buffer:
            pending = self._request()
            if pending is None:
                raise StopAsyncIteration
            try:
                found = await asyncio.shield(asyncio.wrap_future(pending))
            except asyncio.CancelledError:
                if not pending.cancelled():
                    raise
                found = None
            if not self._take(found):
                raise StopAsyncIteration
        return self._buffer.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _request(self) -> Future[list[EventDict] | None] | None:
        """The pending request for the next batch. It is kept after a timeout, so that no event is lost."""
        if self._closed:
            return None
        if self._pending is None:
            try:
                self._pending = self._plane.start(anext(self._source, None))
            except SchedulerError:  # its scheduler was shut down
                self._closed = True
                return None
        return self._pending

    def _take(self, found: list[EventDict] | None) -> bool:
        self._pending = None
        if found is None:
            self._closed = True
            return False
        self._buffer.extend(found)
        return True


class EventListener:
    """Calls ``hear`` with one event after the other, on a thread of its own, and awaits what it returns if possible. If
    it raises, the error is logged, and it is not called again."""

    def __init__(self, events: EventIterator, hear: EventCallback) -> None:
        self._events, self._hear = events, hear
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()), name="rmcs-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the calls; waits for the one in progress, unless the callback itself closes it. Idempotent."""
        self._events.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    async def _listen(self) -> None:
        try:
            while (event := await self._next()) is not None:
                answer = self._hear(event)
                if inspect.isawaitable(answer):
                    await answer
        except Exception:  # noqa: BLE001 - user code; nothing else depends on it
            _log.exception("a callback for events failed; it is not called any more")
        finally:
            self._events.close()

    async def _next(self) -> EventDict | None:
        try:
            return await anext(self._events, None)
        except SchedulerError as error:
            _log.warning("no more events come for a callback: %s", error)
            return None


async def _close(source: AsyncGenerator[list[EventDict], None]) -> None:
    await source.aclose()
