"""MapResults: what FleetExecutor.map returns."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from typing import Any, Self, TypeVar

from ray_multicluster_scheduler.app.client_api.executor.chunk_results import Failed
from ray_multicluster_scheduler.app.client_api.executor.chunked_map import ChunkedMap
from ray_multicluster_scheduler.common.exception import TaskTimeoutError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_NOTHING: Any = object()


class MapResults(Iterator[T_co]):
    """The values in the order of the input. For one reader at a time.

    ``next`` raises the error of a call when its turn comes, which does not end the map: whoever goes on reading gets
    the rest. A StopIteration of a call comes as the cause of a RuntimeError. When the iterator is closed or forgotten,
    its time is over, or Ctrl+C comes while it waits, what is unfinished is cancelled.
    """

    def __init__(self, work: ChunkedMap, timeout: float | None) -> None:
        self._work, self._timeout = work, timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._values: Iterator[T_co | Failed] = iter(())
        self._over = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T_co:
        try:
            value: T_co | Failed = next(self._values, _NOTHING)
            while value is _NOTHING and not self._over:
                self._values = iter(self._next_chunk())
                value = next(self._values, _NOTHING)
        except BaseException:  # no error of a call: its time is over, or Ctrl+C came, and nobody will read the rest
            self.close()
            raise
        if value is _NOTHING:
            raise StopIteration
        return _value(value)

    def close(self) -> None:
        """End it: nothing more is read, and what is unfinished is cancelled."""
        self._over = True
        self._values = iter(())
        self._work.stop()
        self._end_progress()

    def __del__(self) -> None:
        if work := getattr(self, "_work", None):
            work.stop()

    def _end_progress(self) -> None:
        if self._work.progress is not None:
            self._work.progress.close()

    def _next_chunk(self) -> list[Any]:
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        try:
            results = self._work.results.get(timeout=left)
        except queue.Empty:
            raise TaskTimeoutError(
                f"The next result of the map was not there {self._timeout:g} s after its call; the rest is cancelled.",
                next_step="give it a longer timeout, or smaller chunks",
            ) from None
        if results is None:
            self._over = True
            self._end_progress()
            return []
        self._work.was_read(results)
        return results.values


def _value(value: T | Failed) -> T:
    if isinstance(value, Failed):
        if isinstance(value.error, StopIteration):  # as it is, it would end the caller's loop without a word
            raise RuntimeError("a call of the map raised StopIteration") from value.error
        raise value.error
    return value
