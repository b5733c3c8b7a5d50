"""NativeJobHandle: a job that was submitted inside a cluster."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, Self

from ray_multicluster_scheduler.app.client_api.in_cluster.handle import child_story
from ray_multicluster_scheduler.app.client_api.in_cluster.jobs import POLL_S, NativeJobs
from ray_multicluster_scheduler.app.client_api.in_cluster.unsupported import HandleWithoutQueue
from ray_multicluster_scheduler.common.current_item import CurrentItem
from ray_multicluster_scheduler.common.exception import (
    RemoteError,
    SchedulerError,
    TaskCancelledError,
    TaskTimeoutError,
)
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model.states import TaskState
from ray_multicluster_scheduler.control_plane.runtime.job_status import ENDED, JOB_STATUS

_log = get_logger(__name__)
_STATES = {word: state for state, word in JOB_STATUS.items()}


class NativeJobHandle(HandleWithoutQueue):
    """A Ray job of the cluster where this code runs; its value is its last status word. Awaitable."""

    def __init__(self, job_id: str, jobs: NativeJobs, parent: CurrentItem) -> None:
        self.id, self._jobs, self._parent = job_id, jobs, parent

    @property
    def accepted(self) -> bool:
        """The dashboard took it when it was made."""
        return True

    @property
    def state(self) -> TaskState:
        """As its status says, asked now."""
        return _STATES[str(self._jobs.info(self.id)["status"])]

    @property
    def cluster(self) -> str:
        """The one that this code runs on."""
        return self._parent.cluster

    @property
    def attempt(self) -> int:
        """1: Ray does not repeat jobs."""
        return 1

    def done(self) -> bool:
        """Is it over, one way or another?"""
        return self._jobs.info(self.id)["status"] in ENDED

    def result(self, timeout: float | None = None) -> str:
        """Wait for the end; returns SUCCEEDED. Raises RemoteError, TaskCancelledError, TaskTimeoutError."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return str(TaskState.SUCCEEDED)

    def exception(self, timeout: float | None = None) -> SchedulerError | None:
        """Wait for the end and return what :meth:`result` would raise. Raises TaskTimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (info := self._jobs.info(self.id))["status"] not in ENDED:
            if deadline is not None and time.monotonic() >= deadline:
                raise TaskTimeoutError(
                    f"Job {self.id} on cluster {self.cluster!r} is {info['status']} and not over after {timeout:g} s.",
                    task_id=self.id,
                    cluster=self.cluster,
                    next_step="wait longer, or stop it",
                )
            time.sleep(POLL_S)
        if info["status"] == "SUCCEEDED":
            return None
        kind = TaskCancelledError if info["status"] == "STOPPED" else RemoteError
        return kind(
            f"Job {self.id} on cluster {self.cluster!r} ended as {info['status']}: {info['message']}",
            task_id=self.id,
            cluster=self.cluster,
            next_step="see its logs",
        )

    def cancel(self, *, force: bool = False) -> None:
        """Ask for its end. Ray forces it by itself when asking does not help, so ``force`` changes nothing."""
        if not self.done():
            self._jobs.stop(self.id)

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call ``callback(handle)`` when it is over, on a thread of its own."""

        def watch() -> None:
            try:
                self.exception()
                callback(self)
            except Exception:  # noqa: BLE001 - nobody waits for this thread: its error goes to the log
                _log.exception("a callback of %s failed", self.id)

        threading.Thread(target=watch, name="rmcs-callback", daemon=True).start()

    def explain(self) -> dict[str, Any]:
        """Whose child it is, where, and in what state."""
        info = self._jobs.info(self.id)
        return child_story(self.id, "job", str(info["entrypoint"]), _STATES[str(info["status"])], self._parent)

    def logs(self) -> str:
        """Its output so far."""
        return self._jobs.logs(self.id)

    def follow_logs(self) -> Iterator[str]:
        """Its output as it comes, until it is over."""
        return self._jobs.follow(self.id)

    def __await__(self) -> Generator[Any, None, str]:
        return asyncio.to_thread(self.result).__await__()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} on {self.cluster!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.id, self._parent)


def _rebuild(job_id: str, parent: CurrentItem) -> NativeJobHandle:
    return NativeJobHandle(job_id, NativeJobs(), parent)
