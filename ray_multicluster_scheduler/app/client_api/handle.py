"""TaskHandle and JobHandle: what the async verbs return."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any, NoReturn, Self

from ray_multicluster_scheduler.app.client_api import explanation, job_logs
from ray_multicluster_scheduler.app.client_api.item import Item, Outcome
from ray_multicluster_scheduler.app.client_api.outcome import error_of, value_of
from ray_multicluster_scheduler.app.client_api.runtime import Runtime
from ray_multicluster_scheduler.common.exception import SchedulerError, TaskSubmissionError, TaskTimeoutError
from ray_multicluster_scheduler.common.model import TaskState


class Handle:
    """An item in progress or over. Safe from any thread; awaitable.

    It stays with the control plane that took the item: after that one's end it tells what was known, and starts
    nothing.
    """

    def __init__(self, item: Item, runtime: Runtime) -> None:
        self._item = item
        self._runtime = runtime

    @property
    def id(self) -> str:
        """One id from submission to the end."""
        return self._item.id

    @property
    def accepted(self) -> bool:
        """Has the control plane recorded it?"""
        return self._item.accepted.is_set()

    @property
    def state(self) -> TaskState:
        return self._item.state

    @property
    def cluster(self) -> str | None:
        """Where it is, or was last; None before it was placed."""
        return self._item.cluster

    @property
    def attempt(self) -> int:
        """1 for the first; 0 before it was placed."""
        return self._item.attempt

    def done(self) -> bool:
        """Is it over, one way or another?"""
        return self._item.future.done()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the end and return the value. Raises the user's exception, or a SchedulerError;
        TaskTimeoutError when it is not over after ``timeout`` seconds (it goes on)."""
        return self._value(self._wait(timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end and return what :meth:`result` would raise. Raises TaskTimeoutError."""
        return error_of(self._wait(timeout))

    def cancel(self, *, force: bool = False) -> None:
        """Ask for its end, in whatever state it is; an item that is over stays as it is."""
        if not self.done():
            self._runtime.cancel(self.id, "cancelled by the caller", force=force)

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call ``callback(handle)`` when it is over, on a thread of its own kind; at once if it is over."""
        self._runtime.when_done(self._item, lambda: callback(self))

    def explain(self) -> dict[str, Any]:
        """Why it is where it is: state, reason, decision table, history."""
        return explanation.explain_item(self._runtime, self.id)

    def _value(self, outcome: Outcome) -> Any:
        return value_of(outcome)

    def _wait(self, timeout: float | None) -> Outcome:
        if not self.done() and self._runtime.in_another_process:
            raise SchedulerError(
                f"{self.id} was submitted by the process that this one was forked from.",
                task_id=self.id,
                next_step="wait for it there, or submit it again here",
            )
        try:
            return self._item.future.result(timeout)
        except FutureTimeout:
            raise _still_going(self, timeout) from None

    def __await__(self) -> Generator[Any, None, Any]:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()

        def tell() -> None:
            with suppress(RuntimeError):  # whoever awaited it is gone with his loop
                loop.call_soon_threadsafe(over.set)

        self._item.watch(tell)
        try:
            yield from over.wait().__await__()
        finally:
            self._item.unwatch(tell)
        return self.result()

    def __repr__(self) -> str:
        where = f" on {self.cluster!r}" if self.cluster else ""
        return f"<{type(self).__name__} {self.id} {self.state}{where}>"

    def __reduce__(self) -> NoReturn:
        raise TaskSubmissionError(
            f"The handle of {self.id} cannot be sent to another process.",
            task_id=self.id,
            next_step="wait for its result and pass that",
        )


class TaskHandle(Handle):
    """A task."""

    def logs(self, *, stream: str | None = None) -> str:
        """What the newest attempt printed; ``stream`` is "stdout", "stderr", or None for both in order."""
        return self._runtime.output.text(self.id, self.attempt, stream)

    def follow_logs(self) -> Iterator[str]:
        """Its output as it comes, from the newest attempt on, until it is over."""
        return self._runtime.output.follow(self.id, lambda: (max(self.attempt, 1), self.done()))


class JobHandle(Handle):
    """A Ray job; its value is its last status word."""

    def logs(self) -> str:
        """Output of its newest attempt, as the cluster has it. Raises ClusterConnectionError; SchedulerError after
        the scheduler's end."""
        return job_logs.whole(self._runtime, self.id)

    def follow_logs(self) -> Iterator[str]:
        """Its output as it comes, over all attempts, until it is over."""
        return job_logs.follow(self._runtime, self.id)

    def _value(self, outcome: Outcome) -> Any:
        error = error_of(outcome)
        if error is not None:
            raise error
        return str(outcome.completion.state)


def _still_going(handle: Handle, timeout: float | None) -> TaskTimeoutError:
    reason = handle.explain().get("sentence") or ""
    return TaskTimeoutError(
        f"{handle.id} is not over after {timeout:g} s; it is {handle.state}: {reason}",
        task_id=handle.id,
        cluster=handle.cluster,
        next_step="wait longer, or cancel it",
    )
