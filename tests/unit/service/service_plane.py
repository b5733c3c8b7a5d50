"""A service's control plane on a real store, with a cluster that a test moves; nothing is contacted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.model import FailureClass, TaskDescription, TaskState
from ray_multicluster_scheduler.common.object_argument import fill_in
from ray_multicluster_scheduler.control_plane.config import FleetConfig
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime, SubmitRequest
from ray_multicluster_scheduler.control_plane.store import SqliteStore, Store
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.health.health_checker import HealthChecker
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    AdoptAttempt,
    CancelAttempt,
    Dispatch,
    PreemptAttempt,
)
from tests.unit.client_api.control_plane import fleet, until
from tests.unit.lifecycle.driver import job, snapshot, task

CPUS = 8
F, A = digest_of(b"f"), digest_of(b"a")
BLOBS = {F: b"f", A: b"a"}


class _Moved(Runtime):
    """Between the runtime and the service's: the executor is the test's before anything is restored."""

    executor: ServicePlane

    async def _build(self) -> None:
        await super()._build()
        self.manager.connect_executor(self.executor, self._defect)
        self.health = HealthChecker(self.executor, lambda: ["mac"])  # type: ignore[arg-type]


class _Service(ServiceRuntime, _Moved):
    def __init__(self, executor: ServicePlane, config: FleetConfig, store: Store, kept_finished: int) -> None:
        self.executor = executor
        executor.runtime = self
        super().__init__(config, store, kept_finished=kept_finished)


class ServicePlane:
    """One cluster "mac" with eight CPUs. What is placed there starts at once. It ends when asked, or by itself with
    ``works``: the function is really called then, and a job simply succeeds."""

    runtime: _Service

    def __init__(
        self,
        folder: Path,
        *,
        kept_finished: int = 100,
        works: bool = False,
        limits: Mapping[str, Any] = {},
        **settings: Any,
    ) -> None:
        self.folder, self.kept_finished, self.works = folder, kept_finished, works
        self.config = fleet(**settings)
        self.limits = dict(limits)
        self.cpus: float | Mapping[str, float] = CPUS
        self.placed: list[Dispatch] = []
        self.adopted: list[AdoptAttempt] = []
        self.cancelled: list[CancelAttempt] = []
        self.preempted: list[PreemptAttempt] = []
        self.start()

    def start(self) -> None:
        """A process begins with what is in the folder."""
        self.store = SqliteStore(self.folder, **self.limits)
        _Service(self, self.config, self.store, self.kept_finished)

    def stop(self) -> None:
        """Everything is left where it is."""
        self.runtime.park()
        self.store.close()

    def restart(self) -> None:
        self.stop()
        self.placed, self.adopted, self.preempted = [], [], []
        self.start()

    # ---- the machine's executor

    def dispatch(self, orders: list[Dispatch]) -> None:
        for order in orders:
            self.placed.append(order)
            self.post(events.DispatchAccepted(order.task_id, order.attempt))
            self.post(events.Started(order.task_id, order.attempt, self.runtime.clock.now()))
            if self.works:
                self.work(order.task_id)

    def adopt(self, order: AdoptAttempt) -> None:
        self.adopted.append(order)

    def cancel(self, order: CancelAttempt) -> None:
        self.cancelled.append(order)
        self.post(events.AttemptFinished(order.task_id, order.attempt, "cancelled"))

    def preempt(self, order: PreemptAttempt) -> None:
        """It leaves when the test calls :meth:`leave`."""
        self.preempted.append(order)

    def leave(self) -> None:
        """All that were asked to give way have stopped."""
        for order in self.preempted:
            self.post(events.AttemptFinished(order.task_id, order.attempt, "cancelled"))
        self.preempted = []

    def refresh(self, cluster: str, *, requested: bool = True) -> Any:
        """For the machine, which does not wait, and for health checks, which do."""
        taken = events.SnapshotTaken(snapshot(cluster, self.runtime.clock.now(), self.cpus))
        self.post(taken)
        answer = self.runtime._loop.create_future()
        answer.set_result(taken)
        return answer

    def is_queryable(self, cluster: str) -> bool:
        return self.runtime.clients.has_dashboard(cluster)

    def check_dashboard(self, cluster: str) -> None:
        self.post(events.DashboardChecked(cluster))

    # ---- what a test does

    def post(self, event: events.Event) -> None:
        self.runtime._mask_and_post(event)

    def accept(
        self, *wanted: TaskDescription | SubmitRequest, blobs: Mapping[str, bytes] = BLOBS
    ) -> list[Item | SchedulerError]:
        """Submit these, and wait for the answer."""
        whole = [one if isinstance(one, SubmitRequest) else SubmitRequest(one) for one in wanted]
        return self.runtime.run(self.runtime.accept(whole, blobs))

    def taken(self, wanted: TaskDescription, objects: Sequence[str] = (), **values: Any) -> Item:
        """The same for one that is accepted."""
        (item,) = self.accept(SubmitRequest(wanted, objects), **values)
        assert isinstance(item, Item), item
        return item

    def find_item(self, item_id: str) -> Item | None:
        return self.runtime.run(self.runtime.find_item(item_id))

    def finish(self, item: Item, payload: bytes | None = None, attempt: int = 1) -> None:
        """Its attempt ends with this pickled value."""
        self.end(CallResult(item.id, attempt, "succeeded", payload))
        until(item.done)

    def end(self, result: CallResult) -> None:
        self.runtime.call_and_wait(lambda: self.runtime.collector.finished("mac", result))

    def finish_soon(self, task_id: str) -> None:
        """On the loop: it ends without a value."""
        self.runtime.collector.finished("mac", CallResult(task_id, 1, "succeeded"))

    def work(self, task_id: str) -> None:
        """On the loop: do what a worker would."""
        described, payload_cache = self.runtime._describe(task_id), self.runtime.payload_cache
        attempt = self.runtime.machine.record(task_id).attempt
        if described.kind == "job":
            self.post(events.AttemptFinished(task_id, attempt, "succeeded"))
            return
        objects = payload_cache.objects_of(task_id)
        try:
            function = pickling.loads(payload_cache.get(described.function_digest or ""))
            given = pickling.loads(payload_cache.get(described.arguments_digest or ""))
            args, kwargs = fill_in(given[0], given[1], lambda at: pickling.loads(objects[at][1]))
            done = CallResult(task_id, attempt, "succeeded", pickling.dumps(function(*args, **kwargs)))
        except Exception as error:  # noqa: BLE001 - as a worker does
            done = CallResult(
                task_id,
                attempt,
                "failed",
                pickling.dumps(error),
                failure=FailureClass.USER,
                error_type=type(error).__name__,
                message=str(error),
                traceback="the remote traceback",
            )
        self.runtime.collector.finished("mac", done)

    def __enter__(self) -> ServicePlane:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def a_task(task_id: str, cpus: float = 1, **values: Any) -> TaskDescription:
    """With the payload that BLOBS has."""
    return task(task_id, cpus, **{"function_digest": F, "arguments_digest": A, **values})


def a_job(task_id: str, **values: Any) -> TaskDescription:
    return job(task_id, **values)


def running(item: Item) -> Item:
    until(lambda: item.state is TaskState.RUNNING)
    return item
