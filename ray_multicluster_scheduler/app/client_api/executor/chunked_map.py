"""One map over the fleet: a thread packs its input into chunks, keeps enough of them on the way, and puts what
comes back into the order of the input.

Pull style: a chunk is made when there is room for one, so a slow cluster gets fewer of them. How many are on the way is
not planned but seen: as long as chunks are seen to run, more are sent after them. The thread sleeps until it is told of
something: by the reader of the input, by whoever reads the results, or by an item that took a step.
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
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from ray_multicluster_scheduler.app.client_api.executor import chunk_results
from ray_multicluster_scheduler.app.client_api.executor.chunk_results import Failed
from ray_multicluster_scheduler.app.client_api.executor.handle_watch import item_of, waits, when_over
from ray_multicluster_scheduler.app.client_api.executor.input_reader import InputReader
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import SchedulerError, TaskCancelledError, TaskSubmissionError
from ray_multicluster_scheduler.common.model import TaskState

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.executor.chunk_size import ChunkSizer
    from ray_multicluster_scheduler.app.client_api.handles.handle import TaskHandle
    from ray_multicluster_scheduler.app.client_api.handles.progress import Progress

RESERVE = 8
"""At least so many chunks beside those seen to run, or half as many: no place stays empty between two chunks."""
MOST_ON_THE_WAY = 512
UNREAD_BASE, UNREAD_PER_PLACE = 48, 6
"""How many chunks may be on the way or back and not read: room for others to go on while a slow one is awaited."""
UNREAD_BYTES = 256 * 1024 * 1024
PULL_S = 0.05
"""An input that takes longer than this for the next chunk is not waited for: what is there is sent."""
_BEFORE_RUN = frozenset({TaskState.PENDING, TaskState.QUEUED, TaskState.DISPATCHING})
_WEIGHED_BYTES = 1024 * 1024


class Calls(Protocol):
    """How calls reach the fleet."""

    def submit(self, rows: list[Any]) -> TaskHandle:
        """Send a chunk. Raises SchedulerError."""

    def again(self, row: Any, error_type: str) -> TaskHandle | None:
        """Repeat one call that raised, as a task of its own; None if it is not to be repeated."""


@dataclass(eq=False)
class _Chunk:
    """One chunk, from its making until its values are handed over. ``places``: which of the values were sent."""

    rows: list[Any]
    values: list[Any]
    places: list[int] = field(default_factory=list)
    handle: TaskHandle | None = None
    weight: int = 0
    came: int = 0
    """Bytes that were sent, and that came back."""
    waits: bool = True
    """Is it not known to have begun?"""
    open: int = 0
    """Answers that are still to come: the chunk's own, and those of calls that are repeated."""


_Event: TypeAlias = Callable[[], None]


class Results(NamedTuple):
    """The values of one chunk, and how many bytes they were."""

    values: list[Any]
    size: int


class ChunkedMap:
    """Runs from when it is made until all is handed over, or :meth:`stop`. Made in the caller's context, which
    submissions carry; safe from any thread. It does not know who reads ``results``, which end with None."""

    def __init__(
        self,
        calls: Calls,
        source: Iterator[Any],
        length: int | None,
        sizer: ChunkSizer,
        reserve: int = RESERVE,
        progress: Progress | None = None,
    ) -> None:
        self._calls, self._remaining, self._sizer, self._reserve = calls, length, sizer, reserve
        self.progress = progress
        self._inbox: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._input = InputReader(source, lambda: self._inbox.put(_nothing))
        self._wanted, self._wanted_until = 0, 0.0
        self.results: queue.SimpleQueue[Results | None] = queue.SimpleQueue()
        self.at_rest = threading.Event()
        """Nothing is on the way, and nothing more is sent before somebody reads."""
        self._on_the_way: set[_Chunk] = set()
        self._in_order: deque[_Chunk] = deque()
        self._unread = self._unread_bytes = 0
        self._freed: str | None = None
        self._exhausted = self._stopped = self._withdrawn = False
        self._last_word: BaseException | None = None
        self._too_heavy = False
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run,), name="rmcs-map", daemon=True).start()

    # From any thread; also from the garbage collector, so nothing here takes a lock ------------------------

    def stop(self) -> None:
        """Nobody will read: end what is on the way."""
        self._stopped = True
        self._inbox.put(_nothing)

    def withdraw(self) -> None:
        """Send nothing more, and take back what waits; that is answered by CancelledError."""
        self._withdrawn = True
        self._inbox.put(self._take_back)

    def was_read(self, results: Results) -> None:
        """These were taken."""
        self._inbox.put(lambda: self._read(results.size))

    # On the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopped and (self._in_order or not self._exhausted):
                patience = self._fill()
                if self._exhausted and not self._in_order:
                    break
                try:
                    event = self._inbox.get(timeout=patience)
                except queue.Empty:
                    continue
                event()
        except BaseException as error:  # noqa: BLE001 - a defect of ours must not leave the reader waiting
            self._last_word = error
        self._input.stop()
        for chunk in self._on_the_way:
            _end(chunk)
        if self._last_word is not None:
            self.results.put(Results([Failed(self._last_word)], 0))
        if self.progress is not None:
            self.progress.stop()
        self.results.put(None)
        self.at_rest.set()

    def _fill(self) -> float | None:
        """Send chunks until enough wait for a place. Says after how many seconds to go on, if nothing happens."""
        waiting = sum(chunk.waits for chunk in self._on_the_way)
        running = len(self._on_the_way) - waiting
        most_unread = UNREAD_BASE + UNREAD_PER_PLACE * max(running, self._reserve // 2)
        while not (self._exhausted or self._stopped or self._withdrawn):
            unread = self._unread >= most_unread or self._unread_bytes >= UNREAD_BYTES
            if unread or len(self._on_the_way) >= MOST_ON_THE_WAY:
                if not self._on_the_way:
                    self.at_rest.set()
                return None
            if waiting >= max(self._reserve, running // 2):
                return None
            if not self._wanted:
                self._want(running + waiting)
            if (patience := self._patience()) != 0:
                return patience
            if rows := self._input.take(self._wanted):
                self._send(rows)
                waiting += 1
            elif self._input.ended:
                self._exhausted, self._last_word = True, self._input.error
            self._wanted = 0
        return None

    def _want(self, slots: int) -> None:
        """Decide on the next chunk and have it read."""
        self._wanted = self._sizer.next_size(cluster=self._freed, remaining=self._remaining, slots=slots)
        self._wanted_until = time.monotonic() + PULL_S
        self._freed = None
        self._input.want(self._wanted)

    def _patience(self) -> float | None:
        """How long to wait for the rest of the next chunk; None: until the reader says something."""
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
                if not self._set_the_unpicklable_aside(chunk):
                    raise
                if not chunk.places:
                    self._settled(chunk)
                    return
                chunk.handle = self._calls.submit([rows[place] for place in chunk.places])
        except Exception as error:  # noqa: BLE001 - nothing can be sent any more; said when its turn comes
            chunk.values = [Failed(error)]
            self._exhausted, self._last_word = True, None
            self._settled(chunk)
            return
        chunk.weight = 0 if self._sizer.exact else self._weigh(rows[chunk.places[0]]) * len(chunk.places)
        chunk.open = 1
        self._follow(chunk, chunk.handle, lambda: self._over(chunk))

    def _follow(self, chunk: _Chunk, handle: TaskHandle, when_it_is_over: _Event) -> None:
        """Hear of it when it begins and when it is over. Inside a cluster nobody tells the first, and nobody asks."""
        self._on_the_way.add(chunk)
        when_over(handle, lambda: self._inbox.put(when_it_is_over))
        item = item_of(handle)
        if item is None:
            return

        def tell(_: object) -> None:
            if (item.state in _BEFORE_RUN) != chunk.waits:  # of a chunk's steps only these are news
                self._inbox.put(look)

        def look() -> None:
            while (before := item.state in _BEFORE_RUN) != chunk.waits:  # it may move on meanwhile, and not be told of
                chunk.waits = before

        item.watch_transitions(tell)
        look()

    def _set_the_unpicklable_aside(self, chunk: _Chunk) -> bool:
        """Answer those rows of a chunk that cannot be sent. False: none of them is to blame."""
        chunk.places = []
        for place, row in enumerate(chunk.rows):
            try:
                pickling.dumps(row)
            except Exception as error:  # noqa: BLE001 - pickling runs arbitrary code; all of it is reported
                chunk.values[place] = Failed(chunk_results.not_sendable(row, error))
            else:
                chunk.places.append(place)
        return len(chunk.places) < len(chunk.rows)

    def _weigh(self, row: Any) -> int:
        """Bytes of one row, so that chunks of large ones stay small. The cluster tells the rest with the answer."""
        if self._too_heavy:
            return _WEIGHED_BYTES
        weight = len(pickling.dumps(row))
        self._too_heavy = weight > _WEIGHED_BYTES
        return weight

    def _over(self, chunk: _Chunk) -> None:
        assert chunk.handle is not None
        self._on_the_way.discard(chunk)
        chunk.open -= 1
        self._freed = chunk.handle.cluster
        try:
            answer = chunk.handle.result()
            values = chunk_results.values_of(answer, chunk.handle)
        except TaskCancelledError as error:
            self._fail(chunk, CancelledError() if self._withdrawn else error)
        except BaseException as error:  # noqa: BLE001 - it belongs to each call of the chunk
            self._fail(chunk, error)
        else:
            size = len(answer.values)
            self._sizer.observe(self._freed, len(values), answer.seconds, chunk.weight + size)
            chunk.came = size
            self._unread_bytes += size
            for place, value in zip(chunk.places, values, strict=True):
                chunk.values[place] = value
            for failure in answer.failures:
                place = chunk.places[failure.place]
                chunk.values[place] = Failed(chunk_results.error_of_call(failure, chunk.handle))
                if not failure.of_result:
                    self._repeat(chunk, place, failure.error_type)
        self._settled(chunk)

    def _fail(self, chunk: _Chunk, error: BaseException) -> None:
        for place in chunk.places:
            chunk.values[place] = Failed(error)

    def _repeat(self, chunk: _Chunk, place: int, error_type: str) -> None:
        try:
            handle = None if self._withdrawn else self._calls.again(chunk.rows[place], error_type)
        except SchedulerError:
            return  # the scheduler has ended; the error that the call raised is what is known
        if handle is not None:
            single = _Chunk([chunk.rows[place]], [], handle=handle)
            chunk.open += 1
            self._follow(single, handle, lambda: self._repeated(chunk, place, single))

    def _repeated(self, chunk: _Chunk, place: int, single: _Chunk) -> None:
        assert single.handle is not None
        self._on_the_way.discard(single)
        chunk.open -= 1
        try:
            chunk.values[place] = single.handle.result()
        except BaseException as error:  # noqa: BLE001 - it belongs to this call
            chunk.values[place] = Failed(error)
        self._settled(chunk)

    def _settled(self, chunk: _Chunk) -> None:
        """An answer of it came: if it was the last one, it is over."""
        if chunk.open:
            return
        if self.progress is not None:
            self.progress.count(len(chunk.values), sum(isinstance(one, Failed) for one in chunk.values))
        self._hand_over()

    def _hand_over(self) -> None:
        while self._in_order and not self._in_order[0].open:
            chunk = self._in_order.popleft()
            self.results.put(Results(chunk.values, chunk.came))

    def _read(self, size: int) -> None:
        self._unread -= 1
        self._unread_bytes -= size

    def _take_back(self) -> None:
        if not self._exhausted:
            self._exhausted, self._last_word = True, CancelledError()
        for chunk in self._on_the_way:
            if chunk.handle is not None and waits(chunk.handle):
                _end(chunk)


def _end(chunk: _Chunk) -> None:
    with suppress(SchedulerError):  # a scheduler that has ended has ended this, too
        if chunk.handle is not None:
            chunk.handle.cancel()


def _nothing() -> None:
    """Only wakes the thread."""
