"""ObjectRefGenerator: the values of a generator task or method, each as a handle, while the generator runs.

Each value is requested from the cluster by a call, as of an actor's method, a few ahead of the reader. The outcome of
that call is the value. A request that an attempt of the generator did not answer is repeated for its next attempt, so
values that arrived already are not yielded twice.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, Self

from ray_multicluster_scheduler.app.client_api.handles.call_handle import ActorCallHandle
from ray_multicluster_scheduler.app.client_api.handles.handle import DynamicHandle, Handle, PartHandle, TaskHandle
from ray_multicluster_scheduler.common.exception import ResultLostError, SchedulerError, TaskSubmissionError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.several_returns import DISCARD, DYNAMIC, STREAMING, VALUES_AHEAD, next_value
from ray_multicluster_scheduler.control_plane.runtime.arguments import Arguments
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome, Promise
from ray_multicluster_scheduler.control_plane.runtime.outcome import value_of
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
    from ray_multicluster_scheduler.control_plane.runtime.item import CallPromise, CallQueue

MAX_UNREAD_BYTES = 64 * 1024 * 1024
"""No further values are requested while the unread ones have more bytes."""
_AGAIN_S = 0.05
_NO_ARGUMENTS = pickle.dumps(((), {}))


class ValueRequests:
    """The requests for the values of one generator, in the order of the values. Thread-safe. Calls refer to it, but not
    to the ObjectRefGenerator, so that the end of that is noticed."""

    def __init__(self, whole: Promise, calls: CallQueue, runtime: ControlPlane, stream_id: str) -> None:
        self.whole, self._calls, self._runtime, self._stream_id = whole, calls, runtime, stream_id
        self._changed = threading.Condition(threading.RLock())
        self._values: dict[int, CallPromise] = {}
        """Values that arrived and were not read."""
        self._lost: set[int] = set()
        """Values that cannot be had any more, although the generator yielded them."""
        self._asked: set[int] = set()
        self._again: set[int] = set()
        """Requests to be repeated: their attempt has ended."""
        self._next_request = self.read = 0
        self.end: int | None = None
        """The number of values, once it is known."""
        self._stopped = self._unbounded = False
        self._watchers: list[Callable[[], object]] = []

    def begin(self) -> None:
        self.whole.watch(self._on_whole_end)
        self._request_more()

    def available(self) -> bool:
        """Whether the next value, or the end, is known."""
        return self.read in self._values or self.read in self._lost or self.ended

    @property
    def ended(self) -> bool:
        """Whether all values were read, and no more will come."""
        return self.end is not None and self.read >= self.end

    def wait(self) -> None:
        """Wait until the next value, or the end, is known."""
        with self._changed:
            self._changed.wait_for(self.available)

    def watch(self, callback: Callable[[], object]) -> None:
        """Call it once, when the next value or the end is known."""
        with self._changed:
            if not self.available():
                self._watchers.append(callback)
                return
        callback()

    def take(self) -> CallPromise | None:
        """The next value, which is known; None at the end. Raises ResultLostError for one that was lost."""
        with self._changed:
            index, lost = self.read, self.read in self._lost
            value = self._values.pop(index, None)
            if value is not None or lost:
                self.read += 1
        if lost:
            raise ResultLostError(
                f"Value {index} of the generator {self.whole.id} was lost on its way: its request was not answered.",
                task_id=self.whole.id,
                next_step="submit it again if you need this value; the next call of next() goes on after it",
            )
        if value is not None:
            self._request_more()
        return value

    def stop(self) -> None:
        """Request no more values."""
        self._stopped = True

    def lift_bounds(self) -> None:
        """Request all values, however many are not read."""
        self._unbounded = True
        self._request_more()

    def discard(self) -> None:
        """Let the generator run to its end, without its values."""
        self.stop()
        with suppress(SchedulerError):
            self._calls.call(f"{DISCARD}{self._stream_id}", Arguments(_NO_ARGUMENTS), has_paths=False)

    def _request_more(self) -> None:
        with self._changed:
            unread = sum(_size(one) for one in self._values.values())
            while (
                not self._stopped
                and self.end is None
                and (unread <= MAX_UNREAD_BYTES or self._unbounded)
                and self._next_request < VALUES_AHEAD + (len(self._values) if self._unbounded else 0) + self.read
            ):
                self._next_request += 1
                self._request(self._next_request - 1)

    def _request(self, index: int) -> None:
        self._asked.add(index)
        try:
            name = next_value(self._stream_id, index, min(self._asked | self._again))
            call = self._calls.call(name, Arguments(_NO_ARGUMENTS), has_paths=False)
        except SchedulerError:  # after the shutdown
            self._asked.discard(index)
            self._set_end(index)
            return
        call.watch(lambda answered: self._answered(index, answered))

    def _answered(self, index: int, call: CallPromise) -> None:
        """On the thread that ended the call, mostly the loop's."""
        outcome = call.outcome
        result = None if outcome is None else outcome.result
        with self._changed:
            self._asked.discard(index)
            if outcome is not None and (outcome.succeeded or (result is not None and _is_answer(result.code))):
                self._values[index] = call
            elif self.whole.done():
                self._set_end(index)
            else:
                self._again.add(index)
                self._runtime.call_later(_AGAIN_S, self._repeat)
            watchers = self._notify()
        for watcher in watchers:
            watcher()
        self._request_more()

    def _repeat(self) -> None:
        with self._changed:
            for index in sorted(self._again):
                self._again.discard(index)  # first: the request may fail, and be repeated, at once
                if self._stopped:
                    self._set_end(index)
                else:
                    self._request(index)
            watchers = self._notify()
        for watcher in watchers:
            watcher()

    def _on_whole_end(self, _: Promise) -> None:
        """The generator has ended; requests that are with its cluster are answered by that."""
        with self._changed:
            again, self._again = self._again, set()
            for index in again:
                self._set_end(index)
            if not self._asked:
                self._set_end(self._next_request)
            watchers = self._notify()
        for watcher in watchers:
            watcher()

    def _set_end(self, index: int) -> None:
        """There will be no value ``index``; it was lost if the generator reports that it yielded more."""
        outcome = self.whole.outcome
        total = value_of(outcome) if outcome is not None and outcome.succeeded else None
        if isinstance(total, int) and index < total:
            self._lost.add(index)
            index = total
        self.end = index if self.end is None else min(self.end, index)

    def _notify(self) -> list[Callable[[], object]]:
        """With the lock: wake the readers. Returns the watchers to call without it."""
        self._changed.notify_all()
        if not self.available():
            return []
        watchers, self._watchers = self._watchers, []
        return watchers


def _is_answer(code: str) -> bool:
    """Whether a failure is about the value itself, such as one that is too large."""
    return code in ("RESULT_LOST", "RESULT_TOO_LARGE")


def _size(call: CallPromise) -> int:
    result = None if call.outcome is None else call.outcome.result
    return len(result.payload or b"") if result is not None else 0


def returned_handles(handle: TaskHandle, number: int) -> Any:
    """What the submission of a task returns that does not have one value."""
    if number == STREAMING:
        assert isinstance(handle._item, Item)
        return ObjectRefGenerator(handle, handle._runtime.calls_of(handle._item))
    if number == DYNAMIC:
        return DynamicHandle(handle._item, handle._runtime)
    return PartHandle.split(handle, number) if number else None


_SUCCEEDED = Outcome(Complete("", TaskState.SUCCEEDED, 0, None), None)
_ended = Promise("")
_ended.ended(_SUCCEEDED)
_open: weakref.WeakSet[ObjectRefGenerator] = weakref.WeakSet()


def abandon_generators(runtime: ControlPlane) -> None:
    """At the end of a program: let those that it has not read to the end be ended."""
    for one in list(_open):
        if one._whole._runtime is runtime and (end := one._abandon()) is not None:
            end()


class ObjectRefGenerator:
    """Iterates over handles of the values that a generator yields, as they come; as Ray's class of this name.

    A failure of the generator is raised by ``get`` of its last handle. For one reader at a time. At most 16 values are
    requested ahead of the reader, and 16 more may wait in the cluster: then the generator is held back. One that is
    dropped after some of its values were read is cancelled; one of which nothing was read runs to its end.
    """

    __module__ = "ray_multicluster_scheduler"

    def __init__(self, whole: Handle, calls: CallQueue, stream_id: str = "") -> None:
        """``whole``: of the task, or of the call of a method, which has the id ``stream_id``."""
        self._whole = whole
        self._requests = ValueRequests(whole._item, calls, whole._runtime, stream_id)
        self._failure_is_read = False
        self._requests.begin()
        _open.add(self)

    @property
    def id(self) -> str:
        """The id of the task or call."""
        return self._whole.id

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Handle:
        """Wait for the next value and return its handle."""
        self._check_process()
        self._requests.wait()
        return self._take()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Handle:
        self._check_process()
        loop, known = asyncio.get_running_loop(), asyncio.Event()

        def on_known() -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(known.set)

        self._requests.watch(on_known)
        await known.wait()
        try:
            return self._take()
        except StopIteration:
            raise StopAsyncIteration from None

    def completed(self) -> Handle:
        """The handle of the task or call, which ends with the generator; its value is the number of values. From now on
        the generator is not held back, so that it ends without a reader; the program keeps what it yields."""
        self._requests.lift_bounds()
        return self._whole

    def next_ready(self) -> bool:
        """Whether ``next`` would return a handle at once."""
        return self._requests.available() and not self.is_finished()

    def is_finished(self) -> bool:
        """Whether ``next`` would raise StopIteration."""
        return self._requests.ended and (self._failure_is_read or self._whole_succeeded())

    def done(self) -> bool:
        """Whether the next value, or the end, is known. ``wait`` takes generators, too."""
        return self._requests.available()

    @property
    def _item(self) -> Promise:
        """Ends when the next value is known, for ``wait``."""
        known = Promise(self.id)
        self._requests.watch(lambda: known.ended(_SUCCEEDED))
        return known

    def cancel(self, *, force: bool = False) -> bool:
        """End the generator; see :meth:`TaskHandle.cancel`. Values that have arrived can still be read."""
        return self._whole.cancel(force=force)

    def close(self) -> None:
        """End the generator, and read no more."""
        self._failure_is_read = True
        self._requests.stop()
        self.cancel()

    def _take(self) -> Handle:
        value = self._requests.take()
        if value is not None:
            return ActorCallHandle(value, self._whole._runtime)
        if self._failure_is_read or self._whole_succeeded():
            raise StopIteration
        self._failure_is_read = True
        return self._whole

    def _whole_succeeded(self) -> bool:
        outcome = self._whole._item.outcome
        return outcome is not None and outcome.succeeded

    def _check_process(self) -> None:
        if not self._requests.available():
            self._whole._check_process()

    def _abandon(self) -> Callable[[], object] | None:
        """Request no more values. Returns how to end the generator, if it has not ended."""
        requests = self._requests
        requests.stop()
        if requests.ended or requests.whole.done():
            return None
        return self._whole.cancel if requests.read else requests.discard

    def __del__(self) -> None:
        if hasattr(self, "_requests") and (end := self._abandon()) is not None:
            runtime = self._whole._runtime
            runtime.call_soon(runtime.when_done, _ended, end)  # not here, where any lock may be held

    def __repr__(self) -> str:
        return f"<ObjectRefGenerator {self.id} {self._whole.state}, {self._requests.read} values read>"

    def __reduce__(self) -> NoReturn:
        raise TaskSubmissionError(
            f"The generator {self.id} cannot be pickled: its values are read in the program that submitted it.",
            task_id=self.id,
            next_step="pass the handles that it yields",
        )
