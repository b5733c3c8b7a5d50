"""``as_completed``, and what ``as_completed`` and ``wait`` of concurrent.futures need of a handle.

Standard library only: handles inside clusters use it too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ray_multicluster_scheduler.common.exception import ConfigurationError, TaskTimeoutError
from ray_multicluster_scheduler.common.model.states import TaskState

H = TypeVar("H")


def as_completed(handles: Iterable[H], timeout: float | None = None) -> Iterator[H]:
    """Iterate over handles as they end, those that have ended already first; a handle given twice comes once. The
    iterator raises TaskTimeoutError when some have not ended ``timeout`` seconds after this call; they continue.
    Raises ConfigurationError for what is not a handle. ``concurrent.futures.as_completed`` takes handles, too."""
    if isinstance(handles, (str, bytes, WaitableHandle)) or not isinstance(handles, Iterable):
        raise ConfigurationError(
            f"as_completed was given {handles!r}, not a list of handles.", next_step="write as_completed([handle])"
        )
    many: list[Any] = list(dict.fromkeys(handles))
    for one in many:
        if not isinstance(one, WaitableHandle):
            raise ConfigurationError(
                f"as_completed was given {one!r}, which is not a handle.",
                next_step="pass what .remote(), put, submit_task_async or submit_job_async returned",
            )
    return _in_order_of_end(many, timeout, None if timeout is None else time.monotonic() + timeout)


def _in_order_of_end(many: list[Any], timeout: float | None, until: float | None) -> Iterator[Any]:
    ended = [one for one in many if one.done()]
    yield from ended
    seen = set(ended)
    missing = dict.fromkeys(one for one in many if one not in seen)
    left = None if until is None else max(0.0, until - time.monotonic())
    try:
        for one in futures.as_completed(missing, left):
            del missing[one]
            yield one
    except TimeoutError:
        first = next(iter(missing))
        raise TaskTimeoutError(
            f"{len(missing)} of {len(many)} handles have not ended after {timeout:g} s, {first.id} the first.",
            task_id=first.id,
            next_step="wait longer, or cancel them",
        ) from None


class Waiter(Protocol):
    """Waiter object that concurrent.futures installs in each future that it waits for."""

    def add_result(self, future: Any) -> None: ...
    def add_exception(self, future: Any) -> None: ...
    def add_cancelled(self, future: Any) -> None: ...


class WaitableHandle:
    """Base of all handles: has the attributes that the functions of concurrent.futures use of a future.

    Those hold the future's lock while they read its state and install their waiter, so that it cannot end in between.
    A handle can, so the thread that holds its ``_condition`` sees the state of the moment when it took it.

    Each kind of handle implements the methods that raise NotImplementedError here.
    """

    __slots__ = ()

    @property
    def state(self) -> TaskState:
        raise NotImplementedError

    def done(self) -> bool:
        """Has it succeeded, failed or been cancelled?"""
        raise NotImplementedError

    def exception(self, timeout: float | None = None) -> BaseException | None:
        raise NotImplementedError

    def cancelled(self) -> bool:
        """Was it cancelled before it could end by itself?"""
        return self.state is TaskState.CANCELLED

    def _watch_end(self, callback: Callable[[Any], object]) -> None:
        """Call ``callback(x)`` when it has ended, or now if it has."""
        raise NotImplementedError

    def _unwatch_end(self, callback: Callable[[Any], object]) -> None:
        """Undo :meth:`_watch_end` if possible."""

    @property
    def _condition(self) -> _StateLock:
        return _StateLock(self)

    @property
    def _state(self) -> str:
        ended = _frozen_states().get(id(self))
        return "FINISHED" if (self.done() if ended is None else ended) else "PENDING"

    @property
    def _waiters(self) -> _Waiters:
        return _Waiters(self)


_of_thread = threading.local()


def _frozen_states() -> dict[int, bool]:
    """By ``id`` of a handle: whether it had ended when this thread took its lock."""
    frozen: dict[int, bool] | None = getattr(_of_thread, "states", None)
    if frozen is None:
        frozen = _of_thread.states = {}
    return frozen


class _StateLock:
    """Keeps the state that this thread sees of a handle."""

    def __init__(self, handle: WaitableHandle) -> None:
        self._handle = handle

    def acquire(self) -> bool:
        _frozen_states()[id(self._handle)] = self._handle.done()
        return True

    def release(self) -> None:
        _frozen_states().pop(id(self._handle), None)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Waiters:
    """The list of waiters of a handle."""

    def __init__(self, handle: WaitableHandle) -> None:
        self._handle = handle

    def append(self, waiter: Waiter) -> None:
        if not _frozen_states().get(id(self._handle)):  # else the caller has counted it already
            self._handle._watch_end(_Report(self._handle, waiter))

    def remove(self, waiter: Waiter) -> None:
        self._handle._unwatch_end(_Report(self._handle, waiter))


@dataclass(frozen=True, slots=True, eq=True)
class _Report:
    """Reports the end of a handle to a waiter; equal for the same two, so that it can be removed again."""

    handle: WaitableHandle
    waiter: Waiter

    def __call__(self, _: object) -> None:
        if self.handle.cancelled():
            self.waiter.add_cancelled(self.handle)
        elif self.handle.state is not TaskState.SUCCEEDED:
            self.waiter.add_exception(self.handle)
        else:
            self.waiter.add_result(self.handle)
