"""TaskTracker: the state, result and timing of every task of a serving scheduler. Thread-safe and bounded."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ray_multicluster_scheduler.serving.errors import not_finished, result_of, unknown_task
from ray_multicluster_scheduler.serving.models import TaskStatus
from ray_multicluster_scheduler.serving.router.ledger import Task

_TASK_OVERHEAD_BYTES = 600
"""Memory of a record without its result and error."""
_RECENT_TIMES = 512
_MAX_TIMINGS = 1_000
_MAX_REQUESTS = 10_000
"""Pairs of model and instance; the oldest ones are forgotten, since instances come and go."""


@dataclass(slots=True)
class TaskInfo:
    """One task. Times are seconds since the epoch; durations are milliseconds."""

    task_id: str
    model_name: str
    ti_uuid: str | None
    task_status: TaskStatus
    submit_time: float
    scheduled_time: float | None = None
    completion_time: float | None = None
    execution_ms: float | None = None
    result: Any = None
    error: str | None = None
    reason: str = ""
    """Why it waits, or why its instance was chosen."""
    decision: Any = None
    """How its instance was chosen, for `explain`."""
    fingerprint: int = 0
    """Of the request, by which a repeated submission is recognised."""
    size: int = 0
    owner: str = ""
    """The user who submitted it; empty where callers are not told apart."""
    number: int = 0
    """Of the tasks of this process, from 1, in the order in which they were submitted or restored."""

    def place(self, task: Task) -> None:
        """Copy where a request is now, and why."""
        self.ti_uuid = task.instance.uuid if task.instance is not None else None
        self.decision, self.reason = task.decision, task.decision.reason if task.decision is not None else ""


@dataclass(slots=True)
class Timing:
    """Count, mean and recent values of one duration, in milliseconds."""

    count: int = 0
    total: float = 0.0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_TIMES))

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.recent.append(value)

    def summary(self) -> dict[str, float]:
        if not self.count:
            return {"count": 0}
        ordered = sorted(self.recent)
        return {
            "count": self.count,
            "mean_ms": self.total / self.count,
            "p50_ms": ordered[len(ordered) // 2],
            "p95_ms": ordered[len(ordered) * 95 // 100],
        }


class TaskTracker:
    """Records tasks until they are pruned: finished ones only, the oldest first, when there are more than
    ``max_finished``, when they are older than ``max_age_s``, or when they take more than ``max_bytes``."""

    def __init__(
        self,
        *,
        max_finished: int = 100_000,
        max_age_s: float = 24 * 3600.0,
        max_bytes: int = 256 * 1024**2,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._max_finished, self._max_age_s, self._max_bytes = max_finished, max_age_s, max_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._live: dict[str, TaskInfo] = {}
        self._finished: dict[str, TaskInfo] = {}
        """In the order in which they finished."""
        self._finished_bytes = 0
        self._numbers = itertools.count(1)
        self._counts: Counter[TaskStatus] = Counter()
        self._queued: dict[str, int] = {}
        """By model; without those that have none."""
        self._callbacks: dict[str, list[Callable[[TaskInfo], object]]] = {}
        self._ended = False
        self.on_forgotten: Callable[[list[str]], object] | None = None
        """Called with the ids of finished tasks that were pruned or removed; must not block, or call the tracker."""
        self._requests: dict[str, TaskInfo] = {}
        """The newest requests that are no tasks."""
        self._timings: dict[tuple[str, str], dict[str, Timing]] = {}
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """Ended requests by model and outcome."""
        self.overhead_ms: defaultdict[str, float] = defaultdict(float)
        """By model: the time of all completed requests besides their execution."""
        self.on_change: Callable[[TaskInfo], object] = lambda _: None
        """Called with each task that waits, runs or ends, with the lock held."""

    # ---- transitions

    def register_task(
        self, task_id: str, ti_uuid: str | None, model_name: str, *, reason: str = "", owner: str = ""
    ) -> TaskInfo:
        """Record a new task as queued. Raises ValueError if the id is taken."""
        info = TaskInfo(task_id, model_name, ti_uuid, TaskStatus.QUEUED, self._clock(), reason=reason, owner=owner)
        with self._lock:
            if task_id in self._live or task_id in self._finished:
                raise ValueError(f"the task id {task_id!r} is taken")
            info.number = next(self._numbers)
            self._live[task_id] = info
            self._count(info, 1)
            self._prune()
        return info

    def restore(self, info: TaskInfo) -> None:
        """Record a task of an earlier process; finished ones in the order in which they finished."""
        with self._lock:
            info.number = next(self._numbers)
            self._count(info, 1)
            if info.task_status.finished:
                info.size = _TASK_OVERHEAD_BYTES + len(info.error or "") + _size_of(info.result)
                self._finished[info.task_id] = info
                self._finished_bytes += info.size
            else:
                self._live[info.task_id] = info

    def assign(self, task_id: str, ti_uuid: str | None, reason: str = "", decision: Any = None) -> None:
        """Record that a live task waits at an instance, or for any (None)."""
        with self._lock:
            info = self._live.get(task_id)
            if info is not None:
                self._move(info, TaskStatus.QUEUED)
                info.ti_uuid, info.reason, info.decision = ti_uuid, reason, decision
                self.on_change(info)

    def mark_scheduled(self, task_id: str) -> bool:
        """The task was forwarded to its instance. False if it is unknown, forwarded already or finished."""
        with self._lock:
            info = self._live.get(task_id)
            if info is None or info.task_status is not TaskStatus.QUEUED:
                return False
            self._move(info, TaskStatus.SCHEDULED)
            info.scheduled_time = self._clock()
            self.on_change(info)
            return True

    def mark_completed(self, task_id: str, result: Any = None, *, execution_ms: float | None = None) -> bool:
        """The task has a result. False if it is unknown, or finished before: the first result counts."""
        return self._finish(task_id, TaskStatus.COMPLETED, result, None, execution_ms)

    def mark_failed(self, task_id: str, error: str, *, execution_ms: float | None = None) -> bool:
        """The task failed. False if it is unknown, or finished before."""
        return self._finish(task_id, TaskStatus.FAILED, None, error, execution_ms)

    def remove(self, task_id: str) -> bool:
        """Forget a finished task. False if it is unknown or not finished."""
        with self._lock:
            info = self._finished.pop(task_id, None)
            if info is not None:
                self._forget([info])
            return info is not None

    def clear(self) -> int:
        """Forget all finished tasks; returns how many."""
        with self._lock:
            cleared = list(self._finished.values())
            self._finished.clear()
            self._forget(cleared)
            return len(cleared)

    # ---- queries

    @property
    def waiting(self) -> int:
        """The number of queued tasks."""
        return self._counts[TaskStatus.QUEUED]

    def waiting_for(self, model: str) -> int:
        """The number of queued tasks of a model."""
        return self._queued.get(model, 0)

    def get_task_info(self, task_id: str) -> TaskInfo | None:
        with self._lock:
            self._prune()
            return self._live.get(task_id) or self._finished.get(task_id)

    def find(self, request_id: str) -> TaskInfo | None:
        """A task, or a request that is no task."""
        return self.get_task_info(request_id) or self._requests.get(request_id)

    def counts(self) -> dict[TaskStatus, int]:
        """The number of tasks in each state."""
        with self._lock:
            self._prune()
            return {status: self._counts[status] for status in TaskStatus}

    def list_tasks(self, limit: int = 1000, after: int = 0, owner: str | None = None) -> list[TaskInfo]:
        """A page of all tasks (of one owner), by number: those after this one."""
        with self._lock:
            self._prune()
            wanted = (info for info in self._all() if info.number > after and owner in {None, info.owner})
            return heapq.nsmallest(limit, wanted, key=lambda info: info.number)

    def on_finished(self, task_id: str, callback: Callable[[TaskInfo], object]) -> bool:
        """Call back once when the task has finished, now if it has. False if it is unknown."""
        with self._lock:
            info = self._finished.get(task_id)
            if info is None:
                if task_id not in self._live:
                    return False
                if not self._ended:
                    self._callbacks.setdefault(task_id, []).append(callback)
                    return True
                info = self._live[task_id]
        callback(info)
        return True

    def discard_callback(self, task_id: str, callback: Callable[[TaskInfo], object]) -> None:
        with self._lock:
            waiting = self._callbacks.get(task_id, [])
            if callback in waiting:
                waiting.remove(callback)
            if not waiting:
                self._callbacks.pop(task_id, None)

    def end_callbacks(self) -> None:
        """Call back for all tasks that are not finished, now and later: nobody will finish them any more."""
        with self._lock:
            self._ended = True
            waiting = [(self._live[task_id], one) for task_id, some in self._callbacks.items() for one in some]
            self._callbacks.clear()
        for info, callback in waiting:
            callback(info)

    def count_tasks(self, owner: str | None = None) -> int:
        """The number of all tasks (of one owner)."""
        if owner is None:
            return sum(self.counts().values())
        with self._lock:
            return sum(info.owner == owner for info in self._all())

    def wait(self, task_id: str, timeout: float | None = None) -> Any:
        """Wait for the result and return it. Raises InferenceError, TaskTimeoutError or UnknownItemError."""
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
        """State and instance of a task, and how that was chosen. Raises UnknownItemError."""
        info = self.find(task_id)
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
        if not self.on_finished(task_id, callback):
            raise unknown_task(task_id)
        try:
            yield
        finally:
            self.discard_callback(task_id, callback)

    def keep_request(self, task: Task, owner: str) -> None:
        """Remember a request that is no task, for queries; in memory only, and the newest only."""
        state = TaskStatus.QUEUED if task.started is None else TaskStatus.SCHEDULED
        info = TaskInfo(task.id, task.model, None, state, self._clock(), owner=owner)
        info.place(task)
        with self._lock:
            self._requests[task.id] = info
            if len(self._requests) > _MAX_REQUESTS:
                del self._requests[next(iter(self._requests))]

    def end_request(self, task: Task, *, completed: bool, problem: str) -> None:
        """A request that is no task has ended; without a result or problem its client left, or it was refused."""
        with self._lock:
            self.outcomes[task.model, "completed" if completed else "failed" if problem else "abandoned"] += 1
            info = self._requests.get(task.id)
            if info is not None:
                info.place(task)
                info.task_status = TaskStatus.COMPLETED if completed else TaskStatus.FAILED
                info.error = None if completed else problem or "the client left, or the instance refused the request"

    def record_times(self, model: str, instance: str, total: float, execution: float) -> None:
        """Add the times (ms) of a request that is no task."""
        with self._lock:
            self._add_times(model, instance, total, execution)

    def timing_statistics(self) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
        """By model and instance: total (submission to end), execution (as the instance reports it, or as measured
        from outside) and overhead (the difference)."""
        with self._lock:
            found: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
            for (model, instance), timings in self._timings.items():
                found.setdefault(model, {})[instance] = {name: one.summary() for name, one in timings.items()}
            return found

    # ---- with the lock held

    def _all(self) -> Iterator[TaskInfo]:
        yield from self._finished.values()
        yield from self._live.values()

    def _move(self, info: TaskInfo, status: TaskStatus) -> None:
        if status is not info.task_status:
            self._count(info, -1)
            info.task_status = status
            self._count(info, 1)

    def _count(self, info: TaskInfo, change: int) -> None:
        self._counts[info.task_status] += change
        if info.task_status is TaskStatus.QUEUED:
            queued = self._queued[info.model_name] = self._queued.get(info.model_name, 0) + change
            if not queued:
                del self._queued[info.model_name]

    def _finish(
        self, task_id: str, status: TaskStatus, result: Any, error: str | None, execution_ms: float | None
    ) -> bool:
        size = _TASK_OVERHEAD_BYTES + len(error or "") + _size_of(result)
        with self._lock:
            info = self._live.pop(task_id, None)
            if info is None:
                return False
            self._move(info, status)
            now = info.completion_time = self._clock()
            if info.decision is not None:
                size += info.decision.size()
            info.result, info.error, info.size, info.execution_ms = result, error, size, execution_ms
            self._finished[task_id] = info
            self._finished_bytes += size
            self.outcomes[info.model_name, str(status)] += 1
            if status is TaskStatus.COMPLETED:
                self._record_times(info, now)
            self.on_change(info)
            self._prune()
            callbacks = self._callbacks.pop(task_id, ())
        for callback in callbacks:
            callback(info)
        return True

    def _record_times(self, info: TaskInfo, now: float) -> None:
        total = (now - info.submit_time) * 1000
        execution = info.execution_ms
        if execution is None:
            execution = (now - (info.scheduled_time or now)) * 1000
        self._add_times(info.model_name, info.ti_uuid or "", total, execution)

    def _add_times(self, model: str, instance: str, total: float, execution: float) -> None:
        self.overhead_ms[model] += max(0.0, total - execution)
        timings = self._timings.get((model, instance))
        if timings is None:
            if len(self._timings) >= _MAX_TIMINGS:
                del self._timings[next(iter(self._timings))]
            timings = self._timings[model, instance] = {name: Timing() for name in ("total", "execution", "overhead")}
        for name, value in (("total", total), ("execution", execution), ("overhead", total - execution)):
            timings[name].add(value)

    def _prune(self) -> None:
        oldest_allowed = self._clock() - self._max_age_s
        while self._finished:
            oldest = next(iter(self._finished.values()))
            if (
                len(self._finished) <= self._max_finished
                and self._finished_bytes <= self._max_bytes
                and (oldest.completion_time or 0) >= oldest_allowed
            ):
                return
            del self._finished[oldest.task_id]
            self._forget([oldest])

    def _forget(self, infos: list[TaskInfo]) -> None:
        for info in infos:
            self._counts[info.task_status] -= 1
            self._finished_bytes -= info.size
        if self.on_forgotten is not None:
            self.on_forgotten([info.task_id for info in infos])


def _size_of(result: Any) -> int:
    """Bytes of a result, as JSON; of what is not JSON, of its representation."""
    if result is None:
        return 0
    if isinstance(result, (bytes, str)):
        return len(result)
    try:
        return len(json.dumps(result))
    except (TypeError, ValueError):
        return len(repr(result))
