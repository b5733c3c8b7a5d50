"""LoopThread runs an event loop on its own thread; CallbackThreads runs user callbacks."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.logging import get_logger

T = TypeVar("T")
_log = get_logger(__name__)


class LoopThread:
    """Runs from construction until :meth:`end_loop`, which also releases every thread that waits for a result."""

    def __init__(self) -> None:
        # Reentrant, because the garbage collector may close an abandoned iterator while it is held. Acquire it only
        # with a plain `with`: otherwise Ctrl+C could leave it locked while the interrupt is handled.
        self.gate = threading.RLock()
        self._over = False
        self._process = os.getpid()
        self._pending: set[Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="rmcs-control-plane", daemon=True)
        self._thread.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    @property
    def loop_ended(self) -> bool:
        return self._over

    @property
    def on_loop_thread(self) -> bool:
        return threading.get_ident() == self._thread.ident

    @property
    def in_forked_child(self) -> bool:
        """Whether this process is a forked child, in which the loop thread does not exist."""
        return os.getpid() != self._process

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it; an interrupted wait cancels it.

        Raises SchedulerError if the scheduler is shut down before or during the wait.
        """
        future = self.start(work)
        self._pending.add(future)
        try:
            return future.result()
        except CancelledError:
            raise shut_down_error() from None
        finally:
            future.cancel()
            self._pending.discard(future)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop and return its future. Raises SchedulerError when the scheduler is shut down."""
        if self.in_forked_child:
            work.close()
        self.check_process()
        with self.gate:
            if self._over:
                work.close()
            self.check_open()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call_and_wait(self, function: Callable[[], T]) -> T:
        """Call a function on the loop and return its result; after the loop has ended, call it here."""
        if self.on_loop_thread:
            return function()
        answer: Future[T] = Future()

        def on_the_loop() -> None:  # not a coroutine: Ctrl+C before it starts would cause a warning
            try:
                answer.set_result(function())
            except Exception as error:  # noqa: BLE001 - raised in the calling thread
                answer.set_exception(error)

        try:
            self.check_process()
            with self.gate:
                self.check_open()
                self._loop.call_soon_threadsafe(on_the_loop)
            return answer.result()
        except SchedulerError:
            if not self._over:
                raise
            self._thread.join()
            return function()

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine on the loop without waiting; does nothing after the loop has ended and in a forked child."""
        if self.in_forked_child:
            work.close()
            return
        with self.gate:
            if self._over:
                work.close()
            else:
                self.start(work).add_done_callback(_log_failure)

    def call_soon(self, work: Callable[..., object], *args: object) -> None:
        """From any thread: call it on the loop; does nothing after the loop has ended and in a forked child."""
        if self.in_forked_child:
            return
        with self.gate:
            if not self._over:
                self._loop.call_soon_threadsafe(work, *args)

    def call_later(self, seconds: float, work: Callable[[], object]) -> None:
        """From any thread: call it on the loop after a while; does nothing after the loop has ended."""
        self.call_soon(self._loop.call_later, seconds, work)

    def check_process(self) -> None:
        """Raises SchedulerError in a forked child. Call it before taking the gate: in a forked child a thread that no
        longer exists may hold it."""
        if self.in_forked_child:
            raise shut_down_error("belongs to the process that this one was forked from")

    def check_open(self) -> None:
        """Raises SchedulerError if the loop has ended. While the caller holds the gate, the loop cannot end."""
        if self._over:
            raise shut_down_error()

    def cancel_waiters(self) -> None:
        """Cancel what other threads wait for in :meth:`run`."""
        for future in list(self._pending):
            future.cancel()

    def end_loop(self) -> None:
        """Stop the loop and wait for its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            with self.gate:
                self._over = True
            self._loop.run_until_complete(self._end_tasks())
            self._loop.close()

    async def _end_tasks(self) -> None:
        await asyncio.sleep(0)  # coroutines scheduled last become tasks
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()


def shut_down_error(why: str = "was shut down") -> SchedulerError:
    """The error for calls after the shutdown."""
    return SchedulerError(
        f"The scheduler {why}.", next_step="make a new UnifiedScheduler, or use this one again after its shutdown()"
    )


def _log_failure(done: Future[Any]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        _log.warning("a background coroutine failed: %r", error)


class CallbackThreads:
    """Thread pool for user callbacks, so that they do not run on the thread that reports the end of an item.

    After :meth:`close`, and in a forked child, each callback runs on a new thread.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="rmcs-callback")
        self._process = os.getpid()

    def run(self, work: Callable[[], object]) -> None:
        if os.getpid() == self._process:
            with suppress(RuntimeError):  # the pool was shut down
                self._pool.submit(_guarded, work)
                return
        threading.Thread(target=_guarded, args=(work,), name="rmcs-callback").start()

    def close(self) -> None:
        """Finish the callbacks that were accepted, without waiting for them."""
        self._pool.shutdown(wait=False)


def _guarded(work: Callable[[], object]) -> None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - user code: reported like an error of any thread; other callbacks run
        report = (type(error), error, error.__traceback__, threading.current_thread())
        threading.excepthook(threading.ExceptHookArgs(report))
