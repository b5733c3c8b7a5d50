"""Handles of tasks and objects inside a cluster: Ray references with the interface of the handles outside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from typing import Any, Self

from ray_multicluster_scheduler.app.client_api.handles.as_completed import WaitableHandle
from ray_multicluster_scheduler.app.client_api.in_cluster import runtime_context
from ray_multicluster_scheduler.app.client_api.in_cluster.errors import translate
from ray_multicluster_scheduler.app.client_api.in_cluster.unsupported import refuse_queue_verb
from ray_multicluster_scheduler.common.current_item import CurrentItem
from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    TaskCancelledError,
    TaskSubmissionError,
    TaskTimeoutError,
    WorkerCrashedError,
)
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model.states import CANCEL_GRACE_S, TaskState

_log = get_logger(__name__)


class NativeHandle(WaitableHandle):
    """Base of the handles inside a cluster, where Ray queues and retries. Each kind implements the methods that raise
    NotImplementedError here."""

    __slots__ = ("__weakref__", "parent")

    parent: CurrentItem

    def accepted(self, timeout: float | None = None) -> bool:
        """True: Ray accepted it at once."""
        return True

    @property
    def cluster(self) -> str:
        """The cluster that this code runs on."""
        return self.parent.cluster

    @property
    def attempt(self) -> int:
        """Always 1: retries by Ray do not count."""
        return 1

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call ``callback(handle)`` on a new thread when it has ended, or now if it has."""
        raise NotImplementedError

    def _watch_end(self, callback: Callable[[Any], object]) -> None:
        self.add_done_callback(callback)

    def hold(self, reason: str = "") -> None:
        """Not supported by Ray. Raises ConfigurationError."""
        refuse_queue_verb("hold")

    def release(self) -> None:
        """Not supported by Ray. Raises ConfigurationError."""
        refuse_queue_verb("release")

    def set_priority(self, priority: float) -> None:
        """Not supported by Ray. Raises ConfigurationError."""
        refuse_queue_verb("set_priority")


class NativeTaskHandle(NativeHandle):
    """A Ray task on the cluster where this code runs. Awaitable. As an argument it is replaced by its value. It can be
    sent to other tasks and actors of this cluster."""

    __slots__ = ("_cancelled", "name", "ref")

    _owns_worker = True
    """Does it have its own worker, which can be killed to cancel it?"""

    def __init__(self, ref: Any, name: str, parent: CurrentItem) -> None:
        self.ref, self.name, self.parent, self._cancelled = ref, name, parent, False

    @property
    def id(self) -> str:
        """Ray's id of the task."""
        return str(self.ref.task_id().hex())

    @property
    def state(self) -> TaskState:
        """DISPATCHING until it has ended: Ray does not report whether it runs already."""
        if not self.done():
            return TaskState.DISPATCHING
        error = self.exception()
        if error is None:
            return TaskState.SUCCEEDED
        return TaskState.CANCELLED if isinstance(error, TaskCancelledError) else TaskState.FAILED

    def done(self) -> bool:
        """True if it has succeeded, failed or been cancelled."""
        over, _ = runtime_context.connected_ray().wait([self.ref], timeout=0, fetch_local=False)
        return bool(over)

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the end and return the value. Raises the user's exception, or a SchedulerError;
        TaskTimeoutError when it has not ended after ``timeout`` seconds (it continues)."""
        ray = runtime_context.connected_ray()
        try:
            return ray.get(self.ref, timeout=timeout)
        except ray.exceptions.GetTimeoutError:
            raise self.timeout_error(timeout) from None
        except ray.exceptions.RayError as error:
            ours = self._translated(error)
            raise ours from ours.__cause__

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end and return what :meth:`result` would raise. Raises TaskTimeoutError."""
        ray = runtime_context.connected_ray()
        try:
            ray.get(self.ref, timeout=timeout)
        except ray.exceptions.GetTimeoutError:
            raise self.timeout_error(timeout) from None
        except ray.exceptions.RayError as error:
            return self._translated(error)
        return None

    def cancel(self, *, force: bool = False) -> bool:
        """Cancel it: interrupt the task, and kill its worker 2 s later, with ``force`` at once. False: it had ended
        already."""
        if self.done():
            return False
        self._cancelled = True
        try:
            runtime_context.connected_ray().cancel(self.ref, force=force, recursive=True)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"{self.name} ({self.id}) cannot be cancelled: {error}.",
                task_id=self.id,
                next_step="kill the actor instead, or leave out force",
            ) from error
        if not force and self._owns_worker:
            timer = threading.Timer(CANCEL_GRACE_S, self._force)
            timer.daemon = True
            timer.start()
        return True

    def _force(self) -> None:
        if not self.done():
            runtime_context.connected_ray().cancel(self.ref, force=True, recursive=True)

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call ``callback(handle)`` on a new thread when it has ended, or now if it has."""

        def run() -> None:
            try:
                callback(self)
            except Exception:  # noqa: BLE001 - nothing joins this thread: log its error
                _log.exception("a callback of %s raised", self.id)

        def on_done(_: Future[Any]) -> None:
            # Not on Ray's own thread, where a callback that waits for another handle would never return.
            threading.Thread(target=run, name="rmcs-callback", daemon=True).start()

        self.ref.future().add_done_callback(on_done)

    def explain(self) -> dict[str, Any]:
        """Return its parent item, cluster and state."""
        return explain_child(self.id, "task", self.name, self.state, self.parent)

    def logs(self, *, stream: str | None = None) -> str:
        """Return where to find its output, which Ray keeps."""
        return (
            f"(the output of {self.name} is kept by Ray on cluster {self.cluster!r}: see task {self.id} in the "
            f"cluster's dashboard, or `ray logs task --id {self.id}` there)"
        )

    def follow_logs(self) -> Iterator[str]:
        """As :meth:`logs`."""
        return iter([self.logs()])

    def __await__(self) -> Generator[Any, None, Any]:
        ray = runtime_context.connected_ray()
        try:
            return (yield from asyncio.wrap_future(self.ref.future()).__await__())
        except ray.exceptions.RayError as error:
            ours = self._translated(error)
            raise ours from ours.__cause__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NativeTaskHandle) and other.ref == self.ref

    def __hash__(self) -> int:
        return hash(self.ref)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.name} on {self.cluster!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if not runtime_context.is_ray_pickling():
            raise TaskSubmissionError(
                f"The handle of {self.name} ({self.id}) cannot leave cluster {self.cluster!r}, where it was made.",
                task_id=self.id,
                cluster=self.cluster,
                next_step="return its value: get(handle)",
            )
        return type(self), (self.ref, self.name, self.parent)

    def _translated(self, error: BaseException) -> BaseException:
        ours = translate(error, self.name, self.id, self.cluster)
        if not self._cancelled or not isinstance(ours, WorkerCrashedError):
            return ours
        # A forced cancel looks like a crash to Ray.
        sentence = f"{self.name} ({self.id}) on cluster {self.cluster!r} was cancelled; its worker was ended."
        return TaskCancelledError(sentence, task_id=self.id, cluster=self.cluster)

    def timeout_error(self, timeout: float | None) -> TaskTimeoutError:
        """Return the exception for a timeout."""
        return TaskTimeoutError(
            f"{self.name} ({self.id}) on cluster {self.cluster!r} has not ended after {timeout:g} s.",
            task_id=self.id,
            cluster=self.cluster,
            next_step="wait longer, or cancel it",
        )


class NativeCallHandle(NativeTaskHandle):
    """A call of an actor's method. A running one cannot be cancelled: it shares the actor's process."""

    __slots__ = ()

    _owns_worker = False


class NativeObjectHandle(NativeTaskHandle):
    """A value in this cluster's object store, or a plain Ray reference."""

    __slots__ = ()

    _owns_worker = False

    @property
    def id(self) -> str:
        """Ray's id of the object."""
        return str(self.ref.hex())

    def cancel(self, *, force: bool = False) -> bool:
        """False: the value exists already."""
        return False

    def logs(self, *, stream: str | None = None) -> str:
        """Empty: an object has no output."""
        return ""


def put_object(value: Any, name: str) -> NativeObjectHandle:
    """Store a value in the object store of this cluster."""
    return NativeObjectHandle(runtime_context.connected_ray().put(value), name, runtime_context.item())


def explain_child(child: str, kind: str, name: str, state: TaskState, parent: CurrentItem) -> dict[str, Any]:
    """Return the result of `explain` for an item that was submitted inside a cluster."""
    return {
        "id": child,
        "kind": kind,
        "name": name,
        "state": str(state),
        "cluster": parent.cluster,
        "attempt": 1,
        "code": "CHILD",
        "sentence": (
            f"it was submitted inside cluster {parent.cluster!r} by {parent.id} (attempt {parent.attempt}): "
            "Ray schedules it there, without our placement, queue and retries"
        ),
        "parent": parent.id,
        "unblocked_by": None,
        "decision": None,
        "history": [],
    }
