"""EventIterator: events in a program, for loops and for `async for`; and callbacks that hear of each."""

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
    """Whoever runs the loop on which events come."""

    def start(self, work: Coroutine[Any, Any, Any]) -> Future[Any]: ...

    def spawn(self, work: Coroutine[Any, Any, object]) -> None: ...


class EventIterator:
    """Each event is a dict with its ``type``; durable ones have a ``number``. It ends when its scheduler does, or with
    :meth:`close`; `with` and `async with` close it. For one reader at a time."""

    def __init__(self, plane: LoopOwner, source: AsyncGenerator[list[EventDict], None]) -> None:
        self._plane, self._source = plane, source
        self._here: deque[EventDict] = deque()
        self._asked: Future[list[EventDict] | None] | None = None
        self._closed = False

    def begin(self, timeout: float) -> None:
        """Until it is known that they come, or that they are refused. Raises SchedulerError."""
        asked = self._ask()
        if asked is not None:
            try:
                self._take(asked.result(timeout))
            except TimeoutError:
                self.close()
                raise ServiceUnavailableError(
                    f"Nobody has told of any event for {timeout:g} s.", next_step="see whether the service runs"
                ) from None

    def next(self, timeout: float | None = None) -> EventDict | None:
        """The next one; None if none came for so many seconds, or none will come any more."""
        while not self._here:
            asked = self._ask()
            if asked is None:
                return None
            try:
                found = asked.result(timeout)
            except TimeoutError:
                return None
            except CancelledError:
                found = None
            if not self._take(found):
                return None
        return self._here.popleft()

    def close(self) -> None:
        """No more is wanted. Idempotent."""
        if not self._closed:
            self._closed = True
            if self._asked is not None:
                self._asked.cancel()
            self._plane.spawn(_end(self._source))

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
        while not self._here:
            asked = self._ask()
            if asked is None:
                raise StopAsyncIteration
            try:
                found = await asyncio.shield(asyncio.wrap_future(asked))
            except asyncio.CancelledError:
                if not asked.cancelled():
                    raise
                found = None
            if not self._take(found):
                raise StopAsyncIteration
        return self._here.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _ask(self) -> Future[list[EventDict] | None] | None:
        """What is asked already is not asked twice: a time-out loses nothing."""
        if self._closed:
            return None
        if self._asked is None:
            try:
                self._asked = self._plane.start(anext(self._source, None))
            except SchedulerError:  # its scheduler was shut down
                self._closed = True
                return None
        return self._asked

    def _take(self, found: list[EventDict] | None) -> bool:
        self._asked = None
        if found is None:
            self._closed = True
            return False
        self._here.extend(found)
        return True


class EventListener:
    """Calls ``hear`` with each event, one after the other, on a thread of its own; what it returns is awaited if that
    can be. If it raises, that is logged, and it is not called again."""

    def __init__(self, events: EventIterator, hear: EventCallback) -> None:
        self._events, self._hear = events, hear
        self._thread = threading.Thread(target=self._run, name="rmcs-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Not called any more once this returns, unless it closes itself. Idempotent."""
        self._events.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._listen())

    async def _listen(self) -> None:
        try:
            async for event in _while_they_come(self._events):
                answer = self._hear(event)
                if inspect.isawaitable(answer):
                    await answer
        except Exception:  # noqa: BLE001 - the user's; nothing else hangs on it
            _log.exception("a callback for events failed; it is not called any more")
        finally:
            self._events.close()


async def _while_they_come(events: EventIterator) -> AsyncGenerator[EventDict, None]:
    while True:
        try:
            event = await anext(events)
        except StopAsyncIteration:
            return
        except SchedulerError as error:
            _log.warning("no more events come for a callback: %s", error)
            return
        yield event


async def _end(source: AsyncGenerator[list[EventDict], None]) -> None:
    await source.aclose()
