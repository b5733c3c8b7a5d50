"""An event loop on a thread of its own, and the ways in from other threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.logging import get_logger

T = TypeVar("T")
_log = get_logger(__name__)


class LoopThread:
    """Runs from when it is made until :meth:`end_loop`. Nobody who waits for it is left waiting after that."""

    def __init__(self) -> None:
        # Reentrant, because the garbage collector may end a forgotten follower in the middle of it. Taken by `with` and
        # nothing around it: Ctrl+C between the two would leave it taken for as long as the interrupt is handled.
        self.gate = threading.RLock()
        self._over = False
        self._process = os.getpid()
        self._asked: set[Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="rmcs-control-plane", daemon=True)
        self._thread.start()

    @property
    def loop_ended(self) -> bool:
        """Does nothing run here any more?"""
        return self._over

    @property
    def on_loop_thread(self) -> bool:
        """Does whoever asks run there?"""
        return threading.get_ident() == self._thread.ident

    @property
    def in_forked_child(self) -> bool:
        """Are we in the child of a fork, where this thread does not exist?"""
        return os.getpid() != self._process

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it; whoever gives up waiting ends it.

        Raises SchedulerError when the scheduler is or gets shut down.
        """
        future = self._schedule(work)
        self._asked.add(future)
        try:
            return future.result()
        except CancelledError:
            raise shut_down_error() from None
        finally:
            future.cancel()
            self._asked.discard(future)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop beside all else. Raises SchedulerError when the scheduler is shut down."""
        return self._schedule(work)

    def call_and_wait(self, function: Callable[[], T]) -> T:
        """Read what the loop writes: on the loop while there is one, then as it was left."""
        if self.on_loop_thread:
            return function()
        answer: Future[T] = Future()

        def on_the_loop() -> None:  # no coroutine: one that Ctrl+C keeps from the loop would be complained about
            try:
                answer.set_result(function())
            except Exception as error:  # noqa: BLE001 - it is the answer
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
        """Let it run on the loop and do not wait; nothing happens after the end, or in the child of a fork."""
        if self.in_forked_child:
            work.close()
            return
        with self.gate:
            if self._over:
                work.close()
            else:
                self._schedule(work).add_done_callback(_say_if_it_failed)

    def call_soon(self, work: Callable[..., object], *args: object) -> None:
        """From any thread: call it on the loop; nothing happens after the end, or in the child of a fork."""
        if self.in_forked_child:
            return
        with self.gate:
            if not self._over:
                self._loop.call_soon_threadsafe(work, *args)

    def check_process(self) -> None:
        """Before the gate, which in the child of a fork may be held by a thread that is not there. Raises
        SchedulerError in such a child."""
        if self.in_forked_child:
            raise shut_down_error("belongs to the process that this one was forked from")

    def check_open(self) -> None:
        """Inside the gate: the loop has not ended, and will not before the gate is left. Raises SchedulerError."""
        if self._over:
            raise shut_down_error()

    def cancel_waiters(self) -> None:
        """End what other threads wait for in :meth:`run`."""
        for future in list(self._asked):
            future.cancel()

    def end_loop(self) -> None:
        """Stop the loop and wait for its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _schedule(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self.in_forked_child:
            work.close()
        self.check_process()
        with self.gate:
            if self._over:
                work.close()
            self.check_open()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

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
        await asyncio.sleep(0)  # what was handed over last becomes a task
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()


def shut_down_error(why: str = "was shut down") -> SchedulerError:
    """What everybody gets who comes too late."""
    return SchedulerError(
        f"The scheduler {why}.", next_step="make a new UnifiedScheduler, or use this one again after its shutdown()"
    )


def _say_if_it_failed(done: Future[Any]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        _log.warning("something that nobody waits for failed: %r", error)
