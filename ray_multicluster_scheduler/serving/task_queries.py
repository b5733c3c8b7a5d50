"""TaskQueries: waiting for tasks of a scheduler, and explaining where they went."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from ray_multicluster_scheduler.serving.errors import not_finished, result_of, unknown_task
from ray_multicluster_scheduler.serving.task_tracker import TaskInfo, TaskTracker


class TaskQueries:
    """Reads ``task_tracker`` only; from any thread."""

    task_tracker: TaskTracker

    def wait(self, task_id: str, timeout: float | None = None) -> Any:
        """Wait for the result and return it. Raises InferenceError if the task failed, TaskTimeoutError after
        ``timeout`` seconds (the task goes on), UnknownItemError for an unknown id."""
        finished: Future[TaskInfo] = Future()
        with self._watching(task_id, finished.set_result):
            try:
                return result_of(finished.result(timeout))
            except TimeoutError:
                raise not_finished(task_id, timeout) from None

    async def wait_async(self, task_id: str, timeout: float | None = None) -> Any:
        """As :meth:`wait`, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[TaskInfo] = loop.create_future()

        def set_result(info: TaskInfo) -> None:
            if not finished.done():
                finished.set_result(info)

        with self._watching(task_id, lambda info: loop.call_soon_threadsafe(set_result, info)):
            try:
                async with asyncio.timeout(timeout):
                    return result_of(await finished)
            except TimeoutError:
                raise not_finished(task_id, timeout) from None

    def explain(self, task_id: str) -> dict[str, Any]:
        """State and instance of a task, and why that one: each candidate with its expected wait, the task's own
        predicted time there and its queue. Raises UnknownItemError."""
        info = self.task_tracker.get_task_info(task_id)
        if info is None:
            raise unknown_task(task_id)
        decision = info.decision
        return {
            "task_id": task_id,
            "model": info.model_name,
            "state": str(info.task_status),
            "instance": info.ti_uuid,
            "reason": info.reason,
            "decision": decision.to_dict() if decision is not None else None,
        }

    @contextmanager
    def _watching(self, task_id: str, callback: Callable[[TaskInfo], object]) -> Iterator[None]:
        if not self.task_tracker.on_finished(task_id, callback):
            raise unknown_task(task_id)
        try:
            yield
        finally:
            self.task_tracker.discard_callback(task_id, callback)
