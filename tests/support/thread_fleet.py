"""ThreadFleet: the scheduler interface that FleetExecutor uses, on threads instead of clusters, with real pickling."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from ray_multicluster_scheduler.app.client_api.ray_shape.remote_function import RemoteFunction
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.context_manager import ClusterContextManager
from ray_multicluster_scheduler.common.exception import SchedulerError, TaskCancelledError, TaskSubmissionError
from ray_multicluster_scheduler.common.exception import TaskTimeoutError as Late
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.config import Settings


class Steps:
    """Reports the states of a handle to watchers, as an item does."""

    def __init__(self) -> None:
        self.state = TaskState.QUEUED
        self._over = Future[None]()
        self._watchers: list[Callable[[Any], object]] = []

    def watch(self, watcher: Callable[[Any], object]) -> None:
        self._over.add_done_callback(lambda _: watcher(self))

    def watch_transitions(self, watcher: Callable[[Any], object]) -> None:
        self._watchers.append(watcher)

    def moved(self, state: TaskState) -> None:
        self.state = state
        for watcher in list(self._watchers):
            watcher(self)

    def ended(self) -> None:
        self._over.set_result(None)


class ThreadHandle:
    """Behaves as a TaskHandle does. ``add_done_callback`` is for users: two threads for all of them, as there are."""

    def __init__(self, fleet: ThreadFleet, number: int, payload: bytes, options: dict[str, Any]) -> None:
        self.id, self.options = f"task-{number}", options
        self._steps, self.attempt, self.cluster = Steps(), 0, None
        self.preferred = options.get("preferred_cluster") or ClusterContextManager.get()
        self.payload = payload
        self.cancelled_while_running = False
        self._fleet, self._future = fleet, Future[bytes]()
        self.looked = 0
        if not fleet.native:
            self._item = self._steps

    @property
    def state(self) -> TaskState:
        """Inside a cluster it costs a query to Ray, and shows only whether it has ended."""
        self.looked += 1
        state = self._steps.state
        return TaskState.DISPATCHING if self._fleet.native and not state.terminal else state

    def done(self) -> bool:
        return self._future.done()

    def result(self, timeout: float | None = None) -> Any:
        return pickling.loads(self._wait(timeout).result())

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._wait(timeout).exception()

    def cancel(self) -> None:
        self._fleet.cancel(self)

    def add_done_callback(self, callback: Callable[[ThreadHandle], object]) -> None:
        self._future.add_done_callback(lambda _: self._fleet.callbacks.submit(callback, self))

    def move(self, state: TaskState) -> None:
        self._steps.moved(state)

    def end(self, state: TaskState, value: bytes = b"", error: BaseException | None = None) -> None:
        self._steps.moved(state)
        if error is None:
            self._future.set_result(value)
        else:
            self._future.set_exception(error)
        self._steps.ended()

    def _wait(self, timeout: float | None) -> Future[bytes]:
        try:
            self._future.exception(timeout)
        except TimeoutError:
            raise Late(f"{self.id} is not over") from None
        return self._future


class ThreadFleet:
    """``slots`` threads per cluster take items in order; ``gate`` holds all of them back while it is cleared.

    ``native`` is as inside a cluster: handles report only their end.
    """

    def __init__(self, settings: Settings | None = None, *, native: bool = False, **slots: int) -> None:
        self.native = native
        self.callbacks = ThreadPoolExecutor(2)
        self.settings = settings or Settings()
        self.config = SimpleNamespace(settings=self.settings)
        self.gate = threading.Event()
        self.gate.set()
        self.handles: list[ThreadHandle] = []
        self.crashes: deque[SchedulerError] = deque()
        """Each is the end of one item that begins."""
        self.refusal: SchedulerError | None = None
        self._numbers = itertools.count(1)
        self._queue: deque[ThreadHandle] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(name,)) for name, count in slots.items() for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit_task_async(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        **options: Any,
    ) -> ThreadHandle:
        if self.refusal is not None:
            raise self.refusal
        try:
            fn = fn.shipped if isinstance(fn, RemoteFunction) else fn
            payload, _ = pickling.dumps_with_modules((fn, tuple(args), dict(kwargs or {})))
        except Exception as error:
            raise TaskSubmissionError(f"cannot be pickled: {error}") from error
        given = {**options, "resource_requirements": resource_requirements, "tags": tags}
        handle = ThreadHandle(self, next(self._numbers), payload, given)
        with self._changed:
            self.handles.append(handle)
            self._queue.append(handle)
            self._changed.notify()
        return handle

    def cancel(self, handle: ThreadHandle) -> None:
        with self._changed:
            waits = handle in self._queue
            if waits:
                self._queue.remove(handle)
            elif not handle.done():
                handle.cancelled_while_running = True
        if waits:
            handle.end(TaskState.CANCELLED, error=TaskCancelledError(f"{handle.id} was cancelled"))

    def _work(self, cluster: str) -> None:
        while True:
            self.gate.wait()
            with self._changed:
                self._changed.wait_for(lambda: self._closed or (self._queue and self.gate.is_set()))
                if self._closed:
                    return
                handle = self._queue.popleft()
                handle.cluster, handle.attempt = cluster, handle.attempt + 1
                crash = self.crashes.popleft() if self.crashes else None
            handle.move(TaskState.RUNNING)
            if crash is not None:
                handle.end(TaskState.FAILED, error=crash)
                continue
            try:
                fn, args, kwargs = pickling.loads(handle.payload)
                value = pickling.dumps(fn(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - as a worker does
                handle.end(TaskState.FAILED, error=error)
            else:
                if handle.cancelled_while_running:
                    handle.end(TaskState.CANCELLED, error=TaskCancelledError(f"{handle.id} was cancelled"))
                else:
                    handle.end(TaskState.SUCCEEDED, value)

    def open(self) -> None:
        """Let the threads work."""
        self.gate.set()
        with self._changed:
            self._changed.notify_all()

    def __enter__(self) -> ThreadFleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.refusal = self.refusal or SchedulerError("the fleet was shut down")
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.gate.set()
        for thread in self._threads:
            thread.join()
        for handle in list(self._queue):  # as a scheduler does at its end, so that no caller waits for ever
            self.cancel(handle)
        self.callbacks.shutdown()
