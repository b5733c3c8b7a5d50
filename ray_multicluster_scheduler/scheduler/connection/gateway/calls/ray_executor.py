"""What Ray may take long for is done on threads of its own; what comes back is done on the event loop.

Giving Ray a small call takes it a fraction of a millisecond, less than a change of threads would cost, so that is
done on the loop. Making an actor, storing something large and the first call of a kind may block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import ray

from ray_multicluster_scheduler.scheduler.connection.gateway.calls.result_polling import Sweep, Told, do

Step: TypeAlias = Callable[[], object]


class Hands:
    """``wake`` is called from any thread when :meth:`catch_up` has something to do, ``look_later`` when :meth:`look`
    will have after a while."""

    def __init__(self, wake: Step, look_later: Step) -> None:
        self._wake, self._look_later = wake, look_later
        self._sweep = Sweep(ray, self.watch)
        self._back: deque[Step] = deque()
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="rmcs-beside")
        self._row = ThreadPoolExecutor(1, thread_name_prefix="rmcs-row")

    def beside(self, work: Callable[[], Any]) -> Future[Any]:
        """On another thread, in no order."""
        return self._pool.submit(work)

    def in_a_row(self, work: Step) -> None:
        """On one thread, in the order of asking. Must not raise."""
        self._row.submit(work)

    def back(self, step: Step) -> None:
        """From any thread: do this on the loop."""
        self._back.append(step)
        self._wake()

    def watch(self, ref: Any, told: Told) -> None:
        """When the reference has a value or an error, tell it on the loop."""
        ref.future().add_done_callback(lambda future: self._told(future, told))

    def watch_with_others(self, ref: Any, told: Told) -> None:
        """The same for one of many that will not take long. Only on the loop."""
        self._sweep.add(ref, told)
        self._look_later()

    def look(self) -> None:
        """On the loop: tell of those of the many that are done."""
        self._sweep.look()
        if self._sweep:
            self._look_later()

    def catch_up(self) -> None:
        """On the loop: do what came back."""
        while self._back:
            do(self._back.popleft())

    def _told(self, future: Future[Any], told: Told) -> None:
        error = future.exception()
        value = None if error is not None else future.result()
        self.back(lambda: told(value, error))
