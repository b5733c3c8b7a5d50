"""FleetFuture: a concurrent.futures.Future over an item of the fleet."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ray_multicluster_scheduler.app.client_api.executor.handle_watch import waits, when_over
from ray_multicluster_scheduler.common.exception import SchedulerError, TaskTimeoutError
from ray_multicluster_scheduler.common.model import TaskState

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.executor.background_worker import BackgroundWorker
    from ray_multicluster_scheduler.app.client_api.handles.handle import TaskHandle

T = TypeVar("T")
_ANSWER_S = 2.0
"""How long :meth:`FleetFuture.cancel` waits for the control plane's word; it comes within milliseconds."""
_log = logging.getLogger("concurrent.futures")  # where errors of such callbacks are looked for


class FleetFuture(Future[T]):
    """The future of one call. ``handle`` is that of its item: where it is, why, what it printed.

    As with a ProcessPoolExecutor, :meth:`cancel` withdraws a call that waits and leaves alone one that is with a
    cluster; ``future.handle.cancel()`` ends it there, too, and then the result is a TaskCancelledError.
    """

    def __init__(self, handle: TaskHandle, worker: BackgroundWorker) -> None:
        """``worker`` unpickles the value."""
        super().__init__()
        self.handle = handle
        self._withdrawn_at: int | None = None
        self._concluding = False
        self._turn = threading.Lock()
        self._users: list[Callable[[Future[T]], Any]] = []
        when_over(handle, lambda: worker.put(self._conclude))

    def cancel(self) -> bool:
        """Withdraw it. True: it does not run now and never will; False: it is with a cluster, or over.

        If it is being sent in this very moment, the answer is False and it is ended over there if it can be.
        """
        if self.withdraw():
            with suppress(TaskTimeoutError):  # it had been sent already; whoever waits will hear how it ends
                self.handle.exception(_ANSWER_S)
            if self.handle.done():
                self._conclude()
                wait([self], _ANSWER_S)  # another thread may be at it
        return self.cancelled()

    def withdraw(self) -> bool:
        """Ask for what :meth:`cancel` does without waiting for it; False if it is too late anyway."""
        attempt = self.handle.attempt  # before its state: if it is still the same at the end, it was not sent since
        if self.done() or not waits(self.handle):
            return False
        self._withdrawn_at = attempt
        try:
            self.handle.cancel()
        except SchedulerError:  # the scheduler has just ended, which answers every item
            return self.handle.done()
        return True

    def running(self) -> bool:
        """Was it seen to start, and is not over?"""
        return not self.done() and self.handle.state is TaskState.RUNNING

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call ``fn(future)`` when it is over, on a thread for such callbacks, in the order they were added; here and
        now if it is over. However long it takes or waits, the results of other futures do not depend on it."""
        if self.done() or _never_blocks(fn):
            super().add_done_callback(fn)
            return
        with self._turn:
            first = not self._users
            self._users.append(fn)
        if first:
            super().add_done_callback(lambda _: self.handle.add_done_callback(self._tell_users))

    def _tell_users(self, _: object) -> None:
        with self._turn:
            users, self._users = self._users, []
        for fn in users:
            try:
                fn(self)
            except Exception:  # noqa: BLE001 - the user's, told where concurrent.futures tells it
                _log.exception("exception calling callback for %r", self)

    def _conclude(self) -> None:
        with self._turn:
            first, self._concluding = not self._concluding, True
        if not first:
            return
        handle = self.handle
        if handle.attempt == self._withdrawn_at and handle.state is TaskState.CANCELLED:
            super().cancel()
            self.set_running_or_notify_cancel()
            return
        self.set_running_or_notify_cancel()
        try:
            value = handle.result()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to whoever asks for the result
            self.set_exception(error)
        else:
            self.set_result(value)


def _never_blocks(fn: Callable[..., object]) -> bool:
    """asyncio's own, by which a coroutine awaits a future: it only wakes the loop, and must not queue behind others."""
    return getattr(fn, "__module__", None) == "asyncio.futures"
