"""ChunkedMap and MapResults: packs the input of one map into chunks, submits them, and returns results in order.

One thread per map keeps enough chunks in flight. A new chunk is built when a slot is free, so a slow cluster gets fewer
of them; the number in flight follows from how many are seen to run. The thread sleeps on its inbox, which receives
events from the input reader, from the reader of the results, and from item transitions.
"""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, TypeVar

from ray_multicluster_scheduler.app.client_api.executor.chunk_call import Failure
from ray_multicluster_scheduler.app.client_api.executor.handle_status import is_queued, item_of, on_done
from ray_multicluster_scheduler.app.client_api.executor.input_reader import InputReader
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import (
    SchedulerError,
    TaskCancelledError,
    TaskSubmissionError,
    TaskTimeoutError,
)
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.control_plane.runtime.item import Outcome
from ray_multicluster_scheduler.control_plane.runtime.outcome import error_of, value_of
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.executor.chunk_size import ChunkSizer
    from ray_multicluster_scheduler.app.client_api.executor.executor_calls import ChunkCalls
    from ray_multicluster_scheduler.app.client_api.handles.handle import TaskHandle
    from ray_multicluster_scheduler.app.client_api.handles.progress import Progress

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_MISSING: Any = object()
RESERVE = 8
"""Minimum number of queued chunks, or half as many as run: no slot stays empty between two chunks."""
MAX_IN_FLIGHT = 512
UNREAD_BASE, UNREAD_PER_SLOT = 48, 6
"""Limit for chunks in flight or finished but unread: later chunks can proceed while a slow one is awaited."""
UNREAD_BYTES = 256 * 1024 * 1024
PULL_S = 0.05
"""If the input takes longer than this to fill a chunk, the buffered rows are sent."""
_BEFORE_RUN = frozenset({TaskState.PENDING, TaskState.QUEUED, TaskState.DISPATCHING})
_MAX_WEIGHED_BYTES = 1024 * 1024


class Failed(NamedTuple):
    """Takes the place of the value of a failed call."""

    error: BaseException


def _error_of_call(failure: Failure, handle: TaskHandle) -> BaseException:
    """Return the error that a separate task would raise: the user's exception, caused by its remote traceback."""
    error, step = None, ""
    if failure.of_result:
        error, step = "TaskSubmissionError", "return data that can be pickled"
    done = Complete(handle.id, TaskState.FAILED, handle.attempt, handle.cluster, error, failure.message, step)
    result = CallResult(
        handle.id,
        handle.attempt,
        "failed",
        failure.payload,
        FailureClass.USER,
        failure.error_type,
        message=failure.message,
        traceback=failure.traceback,
    )
    problem = error_of(Outcome(done, result))
    assert problem is not None
    return problem


@dataclass(eq=False)
class _Chunk:
    """One chunk, from its creation until its values are delivered. ``places``: indexes of the values that were sent."""

    rows: list[Any]
    values: list[Any]
    places: list[int] = field(default_factory=list)
    handle: TaskHandle | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    waits: bool = True
    """True until the chunk is known to run."""
    open: int = 0
    """Number of pending results: of the chunk itself and of its retried calls."""


_Event: TypeAlias = Callable[[], None]


class ChunkResult(NamedTuple):
    """The values of one chunk and their size in bytes."""

    values: list[Any]
    size: int


class ChunkedMap:
    """The thread of one map. It runs until all results are delivered, or :meth:`stop`. Thread-safe. It copies the
    context of its creator for the submissions. ``results`` ends with None; the map holds no reference to its reader."""

    def __init__(
        self,
        calls: ChunkCalls,
        source: Iterator[Any],
        length: int | None,
        sizer: ChunkSizer,
        reserve: int = RESERVE,
        progress: Progress | None = None,
    ) -> None:
        self._calls, self._remaining, self._sizer, self._reserve = calls, length, sizer, reserve
        self.progress = progress
        self._inbox: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._input = InputReader(source, lambda: self._inbox.put(_wake))
        self._wanted, self._wanted_until = 0, 0.0
        self.results: queue.SimpleQueue[ChunkResult | None] = queue.SimpleQueue()
        self.at_rest = threading.Event()
        """Set when nothing is in flight and nothing more is sent until results are read."""
        self._in_flight: set[_Chunk] = set()
        self._in_order: deque[_Chunk] = deque()
        self._unread = self._unread_bytes = 0
        self._freed: str | None = None
        self._exhausted = self._stopped = self._withdrawn = False
        self._final_error: BaseException | None = None
        self._too_heavy = False
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run,), name="rmcs-map", daemon=True).start()

    # Thread-safe, and called by the garbage collector, so no locks here ------------------------------------

    def stop(self) -> None:
        """Cancel everything: the results are no longer read."""
        self._stopped = True
        self._inbox.put(_wake)

    def withdraw(self) -> None:
        """Submit nothing more and cancel the queued chunks, which fail with CancelledError."""
        self._withdrawn = True
        self._inbox.put(self._cancel_queued)

    def mark_read(self, results: ChunkResult) -> None:
        """Report that these results were read."""
        self._inbox.put(lambda: self._count_read(results.size))

    # On the map's thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopped and (self._in_order or not self._exhausted):
                timeout = self._fill()
                if self._exhausted and not self._in_order:
                    break
                try:
                    event = self._inbox.get(timeout=timeout)
                except queue.Empty:
                    continue
                event()
        except BaseException as error:  # noqa: BLE001 - a bug here must not leave the reader waiting
            self._final_error = error
        self._input.stop()
        for chunk in self._in_flight:
            _cancel(chunk)
        if self._final_error is not None:
            self.results.put(ChunkResult([Failed(self._final_error)], 0))
        if self.progress is not None:
            self.progress.stop()
        self.results.put(None)
        self.at_rest.set()

    def _fill(self) -> float | None:
        """Submit chunks until enough are queued. Returns the seconds after which to continue without an event."""
        waiting = sum(chunk.waits for chunk in self._in_flight)
        running = len(self._in_flight) - waiting
        most_unread = UNREAD_BASE + UNREAD_PER_SLOT * max(running, self._reserve // 2)
        while not (self._exhausted or self._stopped or self._withdrawn):
            unread = self._unread >= most_unread or self._unread_bytes >= UNREAD_BYTES
            if unread or len(self._in_flight) >= MAX_IN_FLIGHT:
                if not self._in_flight:
                    self.at_rest.set()
                return None
            if waiting >= max(self._reserve, running // 2):
                return None
            if not self._wanted:
                self._request_rows(running + waiting)
            if (timeout := self._input_timeout()) != 0:
                return timeout
            if rows := self._input.take(self._wanted):
                self._send(rows)
                waiting += 1
            elif self._input.ended:
                self._exhausted, self._final_error = True, self._input.error
            self._wanted = 0
        return None

    def _request_rows(self, slots: int) -> None:
        """Choose the size of the next chunk and request its rows."""
        self._wanted = self._sizer.next_size(cluster=self._freed, remaining=self._remaining, slots=slots)
        self._wanted_until = time.monotonic() + PULL_S
        self._freed = None
        self._input.want(self._wanted)

    def _input_timeout(self) -> float | None:
        """Return how long to wait for the rest of the next chunk; None: until the input reader notifies."""
        ready = len(self._input)
        if ready >= self._wanted or self._input.ended:
            return 0
        if self._sizer.exact or not ready:
            return None
        return max(0.0, self._wanted_until - time.monotonic())

    def _send(self, rows: list[Any]) -> None:
        if self._remaining is not None:
            self._remaining = max(0, self._remaining - len(rows))
        chunk = _Chunk(rows, [None] * len(rows), list(range(len(rows))))
        self._in_order.append(chunk)
        self._unread += 1
        self.at_rest.clear()
        try:
            try:
                chunk.handle = self._calls.submit(rows)
            except TaskSubmissionError:
                if not self._fail_unpicklable_rows(chunk):
                    raise
                if not chunk.places:
                    self._deliver_if_done(chunk)
                    return
                chunk.handle = self._calls.submit([rows[place] for place in chunk.places])
        except Exception as error:  # noqa: BLE001 - no more chunks can be sent; raised in its place in the results
            chunk.values = [Failed(error)]
            self._exhausted, self._final_error = True, None
            self._deliver_if_done(chunk)
            return
        chunk.bytes_sent = 0 if self._sizer.exact else self._weigh(rows[chunk.places[0]]) * len(chunk.places)
        chunk.open = 1
        self._follow(chunk, chunk.handle, lambda: self._on_chunk_done(chunk))

    def _follow(self, chunk: _Chunk, handle: TaskHandle, handle_done: _Event) -> None:
        """Watch for the start and the end of a task. Inside a cluster the start is not reported."""
        self._in_flight.add(chunk)
        on_done(handle, lambda: self._inbox.put(handle_done))
        item = item_of(handle)
        if item is None:
            return

        def on_transition(_: object) -> None:
            if (item.state in _BEFORE_RUN) != chunk.waits:  # other transitions do not matter
                self._inbox.put(update)

        def update() -> None:
            while (before := item.state in _BEFORE_RUN) != chunk.waits:  # it may change during the update
                chunk.waits = before

        item.watch_transitions(on_transition)
        update()

    def _fail_unpicklable_rows(self, chunk: _Chunk) -> bool:
        """Fail the rows of a chunk that cannot be pickled. False: all of them can."""
        chunk.places = []
        for place, row in enumerate(chunk.rows):
            try:
                pickling.dumps(row)
            except Exception as problem:  # noqa: BLE001 - pickling runs arbitrary code; all of it is reported
                kind, problem_kind = type(row).__qualname__, type(problem).__name__
                error = TaskSubmissionError(
                    f"An input of the map, a {kind}, cannot be pickled: {problem_kind}: {problem}.",
                    next_step="open files, locks and connections inside the function instead of passing them",
                )
                error.__cause__ = problem
                chunk.values[place] = Failed(error)
            else:
                chunk.places.append(place)
        return len(chunk.places) < len(chunk.rows)

    def _weigh(self, row: Any) -> int:
        """Return the pickled size of one row, to keep chunks of large rows small."""
        if self._too_heavy:
            return _MAX_WEIGHED_BYTES
        weight = len(pickling.dumps(row))
        self._too_heavy = weight > _MAX_WEIGHED_BYTES
        return weight

    def _on_chunk_done(self, chunk: _Chunk) -> None:
        assert chunk.handle is not None
        self._in_flight.discard(chunk)
        chunk.open -= 1
        self._freed = chunk.handle.cluster
        try:
            handle, answer = chunk.handle, chunk.handle.result()
            done = Complete(handle.id, TaskState.SUCCEEDED, handle.attempt, handle.cluster)
            result = CallResult(handle.id, handle.attempt, "succeeded", answer.values)
            values: list[Any] = value_of(Outcome(done, result))
        except TaskCancelledError as error:
            self._fail(chunk, CancelledError() if self._withdrawn else error)
        except BaseException as error:  # noqa: BLE001 - the outcome of each call of the chunk
            self._fail(chunk, error)
        else:
            size = len(answer.values)
            self._sizer.observe(self._freed, len(values), answer.seconds, chunk.bytes_sent + size)
            chunk.bytes_received = size
            self._unread_bytes += size
            for place, value in zip(chunk.places, values, strict=True):
                chunk.values[place] = value
            for failure in answer.failures:
                place = chunk.places[failure.place]
                chunk.values[place] = Failed(_error_of_call(failure, chunk.handle))
                if not failure.of_result:
                    self._retry(chunk, place, failure.error_type)
        self._deliver_if_done(chunk)

    def _fail(self, chunk: _Chunk, error: BaseException) -> None:
        for place in chunk.places:
            chunk.values[place] = Failed(error)

    def _retry(self, chunk: _Chunk, place: int, error_type: str) -> None:
        try:
            handle = None if self._withdrawn else self._calls.retry(chunk.rows[place], error_type)
        except SchedulerError:
            return  # the scheduler has shut down; keep the error of the call
        if handle is not None:
            single = _Chunk([chunk.rows[place]], [], handle=handle)
            chunk.open += 1
            self._follow(single, handle, lambda: self._on_retry_done(chunk, place, single))

    def _on_retry_done(self, chunk: _Chunk, place: int, single: _Chunk) -> None:
        assert single.handle is not None
        self._in_flight.discard(single)
        chunk.open -= 1
        try:
            chunk.values[place] = single.handle.result()
        except BaseException as error:  # noqa: BLE001 - the outcome of this call
            chunk.values[place] = Failed(error)
        self._deliver_if_done(chunk)

    def _deliver_if_done(self, chunk: _Chunk) -> None:
        """Deliver finished chunks in input order, if this was the last pending result of its chunk."""
        if chunk.open:
            return
        if self.progress is not None:
            self.progress.count(len(chunk.values), sum(isinstance(one, Failed) for one in chunk.values))
        while self._in_order and not self._in_order[0].open:
            chunk = self._in_order.popleft()
            self.results.put(ChunkResult(chunk.values, chunk.bytes_received))

    def _count_read(self, size: int) -> None:
        self._unread -= 1
        self._unread_bytes -= size

    def _cancel_queued(self) -> None:
        if not self._exhausted:
            self._exhausted, self._final_error = True, CancelledError()
        for chunk in self._in_flight:
            if chunk.handle is not None and is_queued(chunk.handle):
                _cancel(chunk)


def _cancel(chunk: _Chunk) -> None:
    with suppress(SchedulerError):  # the scheduler has shut down, and the chunk with it
        if chunk.handle is not None:
            chunk.handle.cancel()


def _wake() -> None:
    """An event without effect: wakes the thread."""


class MapResults(Iterator[T_co]):
    """Iterator over the results of FleetExecutor.map in input order. For one reader at a time.

    ``next`` raises the error of a failed call in its place, and iteration can continue after it. A StopIteration raised
    by a call becomes the cause of a RuntimeError. The unfinished calls are cancelled when the iterator is closed or
    garbage-collected, on its timeout, and on Ctrl+C while it waits.
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
            value: T_co | Failed = next(self._values, _MISSING)
            while value is _MISSING and not self._over:
                self._values = iter(self._next_chunk())
                value = next(self._values, _MISSING)
        except BaseException:  # a timeout or Ctrl+C, not the error of a call
            self.close()
            raise
        if value is _MISSING:
            raise StopIteration
        return _value(value)

    def close(self) -> None:
        """Stop the map and cancel its unfinished calls."""
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
                f"The next result of the map did not arrive within {self._timeout:g} s; the rest is cancelled.",
                next_step="use a longer timeout or smaller chunks",
            ) from None
        if results is None:
            self._over = True
            self._end_progress()
            return []
        self._work.mark_read(results)
        return results.values


def _value(value: T | Failed) -> T:
    if isinstance(value, Failed):
        if isinstance(value.error, StopIteration):  # would end the caller's loop silently
            raise RuntimeError("a call of the map raised StopIteration") from value.error
        raise value.error
    return value
