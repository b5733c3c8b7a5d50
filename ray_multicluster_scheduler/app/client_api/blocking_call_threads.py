"""BlockingCallThreads: a small pool of daemon threads on which coroutines run blocking calls."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
MAX_THREADS = 8
LINGER_S = 2.0
"""How long an idle thread waits before it exits."""


class BlockingCallThreads:
    """A started call completes even if its coroutine is cancelled. Calls run in the context of the caller."""

    def __init__(self, most: int = MAX_THREADS) -> None:
        self._most, self._threads, self._idle, self._waiting = most, 0, 0, 0
        self._lock = threading.Lock()  # over these numbers, so that no work is left when a thread goes
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a short call on the pool; it queues while all threads are busy."""
        future, do = _prepared(work, args, kwargs)
        with self._lock:
            self._queue.put(do)
            self._waiting += 1
            more = self._idle < self._waiting and self._threads < self._most
            if more:
                self._threads += 1
                self._idle += 1
        if more:
            threading.Thread(target=self._run, name="rmcs-async", daemon=True).start()
        return await asyncio.shield(asyncio.wrap_future(future))

    async def run_on_own_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call of any length on its own thread."""
        future, do = _prepared(work, args, kwargs)
        threading.Thread(target=do, name="rmcs-async-long", daemon=True).start()
        return await asyncio.shield(asyncio.wrap_future(future))

    def close(self) -> None:
        """Let idle threads exit; the next call starts new ones."""
        with self._lock:
            for _ in range(self._threads):
                self._queue.put(None)

    def _run(self) -> None:
        while True:
            try:
                do = self._queue.get(timeout=LINGER_S)
            except queue.Empty:
                do = None
            with self._lock:
                self._idle -= 1
                if do is not None:
                    self._waiting -= 1
                elif not self._waiting:
                    self._threads -= 1
                    return
            if do is not None:
                do()
            del do  # release its references while idle
            with self._lock:
                self._idle += 1


def _prepared(work: Callable[..., T], args: Any, kwargs: Any) -> tuple[Future[T], Callable[[], object]]:
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def do() -> None:
        try:
            future.set_result(context.run(work, *args, **kwargs))
        except StopIteration as error:  # cannot be raised in a coroutine
            again = RuntimeError("what was called raised StopIteration")
            again.__cause__ = error
            future.set_exception(again)
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            future.set_exception(error)

    return future, do
