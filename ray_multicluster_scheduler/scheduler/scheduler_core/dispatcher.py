"""Dispatcher: carries out the machine's instructions about attempts, each by the runner of its item's kind.

``LinkRunner`` sends calls over links, ``JobRunner`` submits jobs over HTTP; :class:`AttemptRunner` is what both offer.
The lifecycle manager calls it, on the control plane's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.common.process import crash_point
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    AdoptAttempt,
    CancelAttempt,
    Dispatch,
    PreemptAttempt,
    RecallAttempt,
    StartAttempt,
)
from ray_multicluster_scheduler.scheduler.monitor.cluster_monitor import ClusterMonitor

_FINISH_TIMEOUT_S = 5.0


class AttemptRunner(Protocol):
    """Runs attempts on clusters. Every method returns at once; outcomes are posted as events."""

    def dispatch(self, cluster: str, orders: list[Dispatch]) -> None:
        """Send attempts to one cluster, in this order. They can be cancelled from this call on."""

    def start(self, order: StartAttempt) -> None:
        """Start an attempt that was prefetched, at whatever stage it is: a slot is free for it."""

    def recall(self, order: RecallAttempt) -> None:
        """Take back a prefetched attempt, unless it has started."""

    def cancel(self, order: CancelAttempt) -> None:
        """Cancel an attempt, at whatever stage it is."""

    def adopt(self, order: AdoptAttempt) -> None:
        """Watch an attempt that the previous process sent, and that had started."""


class BackgroundTasks:
    """Holds running asyncio tasks until they end; a failure goes to the loop's exception handler."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._to_finish: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        """Run this in a task of its own."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def finish(self, task: asyncio.Task[Any]) -> None:
        """Let :meth:`close` wait for this task, for a limited time."""
        self._to_finish.add(task)
        task.add_done_callback(self._to_finish.discard)

    async def close(self) -> None:
        """Cancel all tasks and wait for their end."""
        if self._to_finish:
            await asyncio.wait(self._to_finish, timeout=_FINISH_TIMEOUT_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a background task of the dispatcher failed", "exception": error, "task": task}
            )


class Dispatcher:
    """Passes instructions to the runners."""

    def __init__(
        self,
        describe: Callable[[str], TaskDescription],
        runners: Mapping[str, AttemptRunner],
        monitor: ClusterMonitor,
        background: BackgroundTasks,
    ) -> None:
        """``runners`` has the runner of each kind of item; ``background`` is what they spawn their tasks in."""
        self._describe, self._runners, self._monitor, self._background = describe, runners, monitor, background

    def dispatch(self, instructions: list[Dispatch]) -> None:
        """Send attempts, in one batch for each runner and cluster."""
        crash_point("before send")
        batches: dict[tuple[AttemptRunner, str], list[Dispatch]] = {}
        for order in instructions:
            batches.setdefault((self._runner(order.task_id), order.cluster), []).append(order)
        for (runner, cluster), orders in batches.items():
            runner.dispatch(cluster, orders)

    def start(self, order: StartAttempt) -> None:
        self._runner(order.task_id).start(order)

    def recall(self, order: RecallAttempt) -> None:
        self._runner(order.task_id).recall(order)

    def cancel(self, order: CancelAttempt) -> None:
        self._runner(order.task_id).cancel(order)

    def preempt(self, order: PreemptAttempt) -> None:
        """Stop an attempt that gives way to another item. It is cancelled, and cannot save its state yet."""
        self.cancel(CancelAttempt(order.task_id, order.attempt, order.cluster, force=False))

    def adopt(self, order: AdoptAttempt) -> None:
        self._runner(order.task_id).adopt(order)

    def refresh(self, cluster: str) -> None:
        """Take a snapshot of a cluster now."""
        self._background.spawn(self._monitor.refresh(cluster))

    def check_dashboard(self, cluster: str) -> None:
        """Check whether the dashboard of a cluster answers."""
        self._background.spawn(self._monitor.check_dashboard(cluster))

    async def close(self) -> None:
        """Stop preparing and watching attempts; what runs on a cluster is not touched."""
        await self._background.close()

    def _runner(self, task_id: str) -> AttemptRunner:
        return self._runners[self._describe(task_id).kind]
