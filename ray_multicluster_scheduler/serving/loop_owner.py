"""LoopOwner: the event loop that does the I/O of a scheduler, used from any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from ray_multicluster_scheduler.serving.client import LoopThread

T = TypeVar("T")


class LoopOwner:
    """Uses the loop of an asyncio server if one is given, else a thread of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._lock = threading.RLock()
        self._loop = loop
        self._thread: LoopThread | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that does the I/O; without one of the caller's, a thread of its own."""
        with self._lock:
            if self._loop is None:
                self._thread = LoopThread("rmcs-serving")
                self._loop = self._thread.loop
            return self._loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the scheduler's loop, from a thread that has none, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def call_soon(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call on the scheduler's loop; at once if that is the running one."""
        if _running_loop() is self.loop:
            function(*arguments)
        else:
            self.loop.call_soon_threadsafe(function, *arguments)

    def _call_after(self, written: Future[int], function: Callable[..., object], *arguments: Any) -> None:
        """Call on the scheduler's loop when a write is on disk; not if it failed."""
        loop = self.loop

        def call(_: Future[int]) -> None:
            if written.exception() is None:
                with suppress(RuntimeError):  # the loop has ended; the next process reads what was written
                    loop.call_soon_threadsafe(function, *arguments)

        written.add_done_callback(call)

    async def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Await on the scheduler's loop, from any loop."""
        if asyncio.get_running_loop() is self.loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
