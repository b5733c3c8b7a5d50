"""Talking to Ray on threads of its own, because Ray may block; what comes back is done on the event loop."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

Step: TypeAlias = Callable[[], object]
Told: TypeAlias = Callable[[bytes | None, BaseException | None], None]
"""The value of a reference, or why there is none."""


class Hands:
    """``wake`` is called from any thread when :meth:`catch_up` has something to do."""

    def __init__(self, wake: Step) -> None:
        self._wake = wake
        self._queue: queue.SimpleQueue[Step] = queue.SimpleQueue()
        self._back: deque[Step] = deque()
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="rmcs-beside")
        threading.Thread(target=self._loop, name="rmcs-submit", daemon=True).start()

    def soon(self, work: Step) -> None:
        """On the one thread that gives calls to Ray, in order. Must not raise, and should not take long."""
        self._queue.put(work)

    def beside(self, work: Callable[[], Any]) -> Future[Any]:
        """On another thread, for what may take long."""
        return self._pool.submit(work)

    def back(self, step: Step) -> None:
        """From any thread: do this on the loop."""
        self._back.append(step)
        self._wake()

    def watch(self, ref: Any, told: Told) -> None:
        """When the reference has a value or an error, tell it on the loop."""
        ref.future().add_done_callback(lambda future: self._told(future, told))

    def catch_up(self) -> None:
        """On the loop: do what came back."""
        while self._back:
            self._back.popleft()()

    def _told(self, future: Future[Any], told: Told) -> None:
        error = future.exception()
        value = None if error is not None else future.result()
        self.back(lambda: told(value, error))

    def _loop(self) -> None:
        while True:
            self._queue.get()()
