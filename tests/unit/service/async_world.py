"""An AsyncScheduler with a control plane of its own, or with a service, and a cluster that a test moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from ray_multicluster_scheduler.app.client_api.async_scheduler import AsyncScheduler
from ray_multicluster_scheduler.app.client_api.handles.handle import Handle
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle import events
from tests.unit.client_api.actor_plane import ActorPlane
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService

Ending = Literal["succeeded", "failed"]


class World:
    """A scheduler, and the executor of a cluster."""

    def __init__(self, plain: UnifiedScheduler, runtime: Any) -> None:
        self.plain, self.runtime = plain, runtime
        self.scheduler = AsyncScheduler(scheduler=plain)

    def finish(self, handle: Handle, value: object) -> None:
        self._end(handle, CallResult(handle.id, 1, "succeeded", pickling.dumps(value)))

    def fail(self, handle: Handle, error: Exception) -> None:
        output = {"error_type": type(error).__name__, "message": str(error)}
        self._end(handle, CallResult(handle.id, 1, "failed", pickling.dumps(error), FailureClass.USER, **output))

    def end_job(self, job_id: str, how: Ending = "succeeded") -> None:
        until(lambda: self.plain.job_info(job_id)["status"] == "RUNNING")
        failure = FailureClass.USER if how == "failed" else None
        self.runtime._post(events.AttemptFinished(job_id, 1, how, failure))

    def _end(self, handle: Handle, result: CallResult) -> None:
        until(lambda: handle.state is TaskState.RUNNING)
        self.runtime.call_and_wait(lambda: self.runtime.collector.finished("mac", result))


@contextmanager
def async_world(folder: Path | None) -> Iterator[World]:
    """With a service in this folder, or a control plane of its own."""
    if folder is not None:
        with HttpService(folder, auth="token", submission_interval_s=0) as service:
            plain = UnifiedScheduler(address=service.address, token=service.token)
            made = World(plain, service.plane.runtime)
            yield made
            plain.shutdown()
            made.scheduler._threads.close()
        return
    with ActorPlane(submission_interval_s=0) as plane:
        plain = UnifiedScheduler(plane.runtime.config)
        plain._runtime, plain._submission = plane.runtime, plane.submission
        made = World(plain, plane.runtime)
        yield made
        made.scheduler._threads.close()
