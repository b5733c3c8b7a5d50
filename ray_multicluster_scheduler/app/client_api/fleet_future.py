"""FleetFuture: a concurrent.futures.Future over an item of the fleet."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from ray_multicluster_scheduler.common.exception import SchedulerError, TaskTimeoutError
from ray_multicluster_scheduler.common.model import TaskState

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.handle import TaskHandle

T = TypeVar("T")
_ANSWER_S = 2.0
"""How long :meth:`FleetFuture.cancel` waits for the control plane's word; it comes within milliseconds."""


class FleetFuture(Future[T]):
    """The future of one call. ``handle`` is that of its item: where it is, why, what it printed.

    As with a ProcessPoolExecutor, :meth:`cancel` withdraws a call that waits and leaves alone one that was sent to a
    cluster; ``future.handle.cancel()`` ends it there, too, and then the result is a TaskCancelledError.
    """

    def __init__(self, handle: TaskHandle) -> None:
        super().__init__()
        self.handle = handle
        self._withdrawing = False
        self._concluding = False
        self._turn = threading.Lock()
        handle.add_done_callback(self._conclude)

    def cancel(self) -> bool:
        """Withdraw it. True: it never ran and never will; False: it was sent, or is over.

        If it is being sent in this very moment, the answer is False and it is ended over there if it can be.
        """
        if self.withdraw():
            with suppress(TaskTimeoutError):  # it had been sent already; whoever waits will hear how it ends
                self.handle.exception(_ANSWER_S)
            if self.handle.done():
                self._conclude(self.handle)
                wait([self], _ANSWER_S)  # another thread may be at it
        return self.cancelled()

    def withdraw(self) -> bool:
        """Ask for what :meth:`cancel` does without waiting for it; False if it is too late anyway."""
        if self.done() or self.handle.attempt > 0:
            return False
        self._withdrawing = True
        try:
            self.handle.cancel()
        except SchedulerError:  # the scheduler has just ended, which answers every item
            return self.handle.done()
        return True

    def running(self) -> bool:
        """Was it seen to start, and is not over?"""
        return not self.done() and self.handle.state is TaskState.RUNNING

    def _conclude(self, handle: TaskHandle) -> None:
        with self._turn:
            first, self._concluding = not self._concluding, True
        if not first:
            return
        if self._withdrawing and handle.state is TaskState.CANCELLED and handle.attempt == 0:
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
