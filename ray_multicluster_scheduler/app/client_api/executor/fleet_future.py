"""FleetFuture: a concurrent.futures.Future for one task of the fleet."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ray_multicluster_scheduler.app.client_api.executor.handle_status import is_queued, on_done
from ray_multicluster_scheduler.common.exception import SchedulerError, TaskTimeoutError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.notices import unread_failures

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.executor.background_worker import BackgroundWorker
    from ray_multicluster_scheduler.app.client_api.handles.handle import TaskHandle

T = TypeVar("T")
_ANSWER_S = 2.0
"""How long :meth:`FleetFuture.cancel` waits for the control plane to confirm; usually milliseconds."""
_log = logging.getLogger("concurrent.futures")  # the standard library logs callback errors there


class FleetFuture(Future[T]):
    """The future of one call. ``handle`` is the handle of its task, with state, explanation and logs.

    As with a ProcessPoolExecutor, :meth:`cancel` cancels a queued call but not one that was sent to a cluster;
    ``future.handle.cancel()`` cancels that too, and the result is then a TaskCancelledError.
    """

    def __init__(self, handle: TaskHandle, worker: BackgroundWorker) -> None:
        """``worker`` is the thread that unpickles the value."""
        super().__init__()
        self.handle = handle
        self._withdrawn_at: int | None = None
        self._concluding = False
        self._lock = threading.Lock()
        self._user_callbacks: list[Callable[[Future[T]], Any]] = []
        on_done(handle, lambda: worker.put(self._conclude))

    def cancel(self) -> bool:
        """Cancel the call if it is queued. True: it never runs; False: it is on a cluster, or done.

        If it is being dispatched at this moment, False is returned and it is cancelled on the cluster if possible.
        """
        if self.withdraw():
            with suppress(TaskTimeoutError):  # it was sent already, and its outcome will arrive
                self.handle.exception(_ANSWER_S)
            if self.handle.done():
                self._conclude()
                wait([self], _ANSWER_S)  # another thread may be concluding it
        return self.cancelled()

    def withdraw(self) -> bool:
        """Request the cancellation without waiting for it; False if it is too late."""
        attempt = self.handle.attempt  # read before the state: if unchanged at the end, it was not sent
        if self.done() or not is_queued(self.handle):
            return False
        self._withdrawn_at = attempt
        try:
            self.handle.cancel()
        except SchedulerError:  # the scheduler has shut down, which completes every item
            return self.handle.done()
        return True

    def result(self, timeout: float | None = None) -> T:
        """As that of a Future."""
        try:
            return super().result(timeout)
        finally:
            self._mark_read()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As that of a Future."""
        try:
            return super().exception(timeout)
        finally:
            self._mark_read()

    def _mark_read(self) -> None:
        if self.done():
            unread_failures.read(self.handle.id)

    def running(self) -> bool:
        """Has it started, and is not done?"""
        return not self.done() and self.handle.state is TaskState.RUNNING

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call ``fn(future)`` when it is done: on the callback threads, in the order of registration, or at once on
        this thread if it is done already. A callback that blocks does not delay other futures."""
        # The callback of an awaiting asyncio future only wakes the loop, and must not queue behind others.
        if self.done() or getattr(fn, "__module__", None) == "asyncio.futures":
            super().add_done_callback(fn)
            return
        with self._lock:
            first = not self._user_callbacks
            self._user_callbacks.append(fn)
        if first:
            super().add_done_callback(lambda _: self.handle.add_done_callback(self._run_user_callbacks))

    def _run_user_callbacks(self, _: object) -> None:
        with self._lock:
            callbacks, self._user_callbacks = self._user_callbacks, []
        for fn in callbacks:
            try:
                fn(self)
            except Exception:  # noqa: BLE001 - logged as concurrent.futures does
                _log.exception("exception calling callback for %r", self)

    def _conclude(self) -> None:
        with self._lock:
            first, self._concluding = not self._concluding, True
        if not first:
            return
        handle = self.handle
        unread = unread_failures.read(handle.id)
        if handle.attempt == self._withdrawn_at and handle.state is TaskState.CANCELLED:
            super().cancel()
            self.set_running_or_notify_cancel()
            return
        self.set_running_or_notify_cancel()
        try:
            value = handle.result()
        except BaseException as error:  # noqa: BLE001 - raised by result()
            if unread is not None:  # the future has read it, and its user not yet
                unread_failures.add(handle.id, unread)
            self.set_exception(error)
        else:
            self.set_result(value)
