"""A control plane with a real machine and an executor that the test controls; no cluster is contacted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ray_multicluster_scheduler.app.client_api.handles.handle import Handle, JobHandle, TaskHandle
from ray_multicluster_scheduler.common.model import FailureClass, TaskDescription, TaskState
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, FleetConfig, Settings
from ray_multicluster_scheduler.control_plane.config.pool_config import PoolConfig
from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import CancelAttempt, Dispatch
from tests.unit.lifecycle.driver import FREE, job, snapshot, task

CLOSED_PORT = "http://127.0.0.1:9"


def until(condition: Callable[[], object], timeout: float = 30.0) -> None:
    """Wait for what another thread does; fails the test when it does not."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


def fleet(*, pools: Sequence[Mapping[str, Any]] = (), **settings: Any) -> FleetConfig:
    """One cluster, at a port where nobody listens."""
    backoff = {"base_s": 0.01, "max_s": 0.01}
    return FleetConfig(
        settings=Settings(**{**FREE, "retry_backoff": backoff, **settings}),
        clusters=(ClusterConfig(name="mac", dashboard=CLOSED_PORT),),
        pools=tuple(PoolConfig(**one) for one in pools),
    )


class ControlPlane:
    """A Runtime whose one cluster has room for eight; what is placed there starts at once and ends when asked."""

    def __init__(self, *, kept_finished: int = 100, obedient: bool = True, **settings: Any) -> None:
        self.runtime = Runtime(fleet(**settings), "cp1", kept_finished=kept_finished)
        self.obedient = obedient
        self.placed: list[Dispatch] = []
        self.runtime.call_and_wait(lambda: self.runtime.manager.connect_executor(self, self.runtime._defect))

    # ---- the machine's executor

    def dispatch(self, orders: list[Dispatch]) -> None:
        for order in orders:
            self.placed.append(order)
            self.post(events.DispatchAccepted(order.task_id, order.attempt))
            self.post(events.Started(order.task_id, order.attempt, self.runtime.clock.now()))

    def cancel(self, order: CancelAttempt) -> None:
        if self.obedient or order.force:
            self.post(events.AttemptFinished(order.task_id, order.attempt, "cancelled"))

    def refresh(self, cluster: str, *, requested: bool = True) -> None:
        self.post(events.SnapshotTaken(snapshot(cluster, self.runtime.clock.now(), 8)))

    def check_dashboard(self, cluster: str) -> None:
        self.post(events.DashboardChecked(cluster))

    # ---- what a test does

    def post(self, event: events.Event) -> None:
        self.runtime.manager.post(event)

    def submit(self, what: TaskDescription) -> Any:
        item = self.runtime.submit(what)
        return (JobHandle if what.kind == "job" else TaskHandle)(item, self.runtime)

    def task(self, task_id: str, **values: Any) -> TaskHandle:
        """A task that runs."""
        return self._running(self.submit(self.with_payload(task(task_id, **values))))

    def job(self, task_id: str, **values: Any) -> JobHandle:
        """A job that runs."""
        return self._running(self.submit(job(task_id, **values)))

    def with_payload(self, what: TaskDescription) -> TaskDescription:
        put = self.runtime.payload_cache.put
        return replace(what, function_digest=put(b"f"), arguments_digest=put(b"a"))

    def finish(self, handle: Handle, attempt: int = 1) -> None:
        self.post(events.AttemptFinished(handle.id, attempt, "succeeded"))
        until(handle.done)

    def fail(self, handle: Handle, attempt: int = 1) -> None:
        self.post(events.AttemptFinished(handle.id, attempt, "failed", FailureClass.USER, code="USER", sentence="bad"))

    def _running(self, handle: Any) -> Any:
        until(lambda: handle.state is TaskState.RUNNING)
        return handle

    def __enter__(self) -> ControlPlane:
        return self

    def __exit__(self, *_: object) -> None:
        self.runtime.close()
