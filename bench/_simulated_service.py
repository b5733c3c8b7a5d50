"""A service with simulated clusters: real store, HTTP and scheduler, and an executor that answers at once.

python -m bench._simulated_service FOLDER [--clusters 20] [--run-ms 5]

Prints its address on stdout, writes its token to its folder, and runs until its stdin is closed. The command "rss"
prints its memory in KiB; "decided" prints the median milliseconds from a request until its dispatch was sent, since the
last "decided".
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import pickle
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.model import NodeSnapshot, ResourceSnapshot
from ray_multicluster_scheduler.common.process import reduce_gc
from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access
from ray_multicluster_scheduler.control_plane.admin_api.access.tokens import TokenStore, ensure_first_token
from ray_multicluster_scheduler.control_plane.admin_api.http.app import create_app
from ray_multicluster_scheduler.control_plane.admin_api.http.http_server import http_server, listen
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, FleetConfig, Settings
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime, SubmitRequest
from ray_multicluster_scheduler.control_plane.store import SqliteStore, Store
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    AdoptAttempt,
    CancelAttempt,
    Dispatch,
    RecallAttempt,
    StartAttempt,
)

_NONE = pickle.dumps(None)
_CPUS = 64.0


class InstantExecutor:
    """Every dispatch starts at once and succeeds after ``run_s``."""

    runtime: SimulatedService

    def __init__(self, run_s: float) -> None:
        self._run_s = run_s

    def dispatch(self, orders: list[Dispatch]) -> None:
        post, now = self.runtime.manager.post, self.runtime.clock.now()
        self.runtime.sent(orders)
        loop = asyncio.get_running_loop()
        for order in orders:
            post(events.DispatchAccepted(order.task_id, order.attempt))
            if not order.ahead:
                post(events.Started(order.task_id, order.attempt, now, "n1"))
        loop.call_later(self._run_s, self._finish, orders)

    def _finish(self, orders: list[Dispatch]) -> None:
        collector = self.runtime.collector
        for order in orders:
            result = CallResult(order.task_id, order.attempt, "succeeded", _NONE, took=self._run_s)
            collector.finished(order.cluster, result)
        collector.when_durable(lambda: None)

    def start(self, order: StartAttempt) -> None: ...

    def recall(self, order: RecallAttempt) -> None: ...

    def adopt(self, order: AdoptAttempt) -> None:
        asyncio.get_running_loop().call_later(
            self._run_s, self._finish, [Dispatch(order.task_id, order.attempt, order.fence, order.cluster)]
        )

    def cancel(self, order: CancelAttempt) -> None:
        self.runtime.manager.post(events.AttemptFinished(order.task_id, order.attempt, "cancelled"))

    def refresh(self, cluster: str) -> None:
        node = NodeSnapshot("n1", {"CPU": _CPUS}, {"CPU": _CPUS})
        now = self.runtime.clock.now()
        self.runtime.manager.post(events.SnapshotTaken(ResourceSnapshot(cluster, now, (node,), "http", "s1")))

    def check_dashboard(self, cluster: str) -> None:
        self.runtime.manager.post(events.DashboardChecked(cluster))


class _WithInstantExecutor(Runtime):
    instant_executor: InstantExecutor

    async def _build(self) -> None:
        await super()._build()
        self.manager.connect_executor(self.instant_executor, self._defect)


class SimulatedService(ServiceRuntime, _WithInstantExecutor):
    """Replaces the executor before anything is restored."""

    def __init__(self, instant_executor: InstantExecutor, config: FleetConfig, store: Store) -> None:
        self.instant_executor, instant_executor.runtime = instant_executor, self
        self._came: dict[str, float] = {}
        self.took: list[float] = []
        super().__init__(config, store)

    async def take(self, wanted: Sequence[SubmitRequest], blobs: Mapping[str, bytes]) -> list[Item | SchedulerError]:
        now = time.perf_counter()
        self._came.update((one.task.id, now) for one in wanted)
        return await super().take(wanted, blobs)

    def sent(self, orders: list[Dispatch]) -> None:
        now = time.perf_counter()
        self.took += [now - self._came.pop(order.task_id, now) for order in orders]

    def median_ms(self) -> float:
        took, self.took = self.took, []
        return 1000 * statistics.median(took or [0.0])


def fleet(clusters: int) -> FleetConfig:
    """Clusters at closed ports: they are never contacted."""
    settings = Settings(
        resource_threshold=1,
        submission_interval_s=0,
        prefetch_ms=0,
        max_queue=10_000_000,
        snapshot_interval_s=3600,
        health_check_interval_s=3600,
    )
    names = [f"c{number:02d}" for number in range(clusters)]
    return FleetConfig(
        settings=settings, clusters=tuple(ClusterConfig(name=name, dashboard="http://127.0.0.1:9") for name in names)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--run-ms", type=float, default=5.0)
    given = parser.parse_args()
    store = SqliteStore(given.folder)
    runtime = SimulatedService(InstantExecutor(given.run_ms / 1000), fleet(given.clusters), store)
    book = TokenStore(store)
    ensure_first_token(book, given.folder, getpass.getuser())
    listener = listen("127.0.0.1", 0)
    server = http_server(create_app(runtime, Access(book)))
    reduce_gc()
    serving = runtime.start(server.serve(sockets=[listener]))
    while not server.started:
        if serving.done():
            serving.result()
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    for line in sys.stdin:
        if line.strip() == "rss":
            # The current value: the peak may be that of the parent process.
            print(psutil.Process().memory_info().rss // 1024, flush=True)
        elif line.strip() == "decided":
            print(runtime.call_and_wait(runtime.median_ms), flush=True)
    runtime.call_and_wait(runtime.event_publisher.close)
    runtime.call_and_wait(lambda: setattr(server, "should_exit", True))
    serving.result()
    runtime.park()
    store.close()


if __name__ == "__main__":
    main()
