"""An embedded control plane: the brain, its hands and its loop, on one thread of the user's process."""

from __future__ import annotations

import asyncio
import platform
import threading
import weakref
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from ray_multicluster_scheduler.app.client_api.item import Item, Outcome
from ray_multicluster_scheduler.common.clock import SystemClock
from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model import TaskDescription, TaskState
from ray_multicluster_scheduler.control_plane.config import FleetConfig
from ray_multicluster_scheduler.scheduler.connection.connection_lifecycle import ConnectionLifecycleManager
from ray_multicluster_scheduler.scheduler.connection.job_client_pool import JobClientPool
from ray_multicluster_scheduler.scheduler.connection.ray_client_pool import RayClientPool
from ray_multicluster_scheduler.scheduler.connection.runtime_env_upload import PackageCache
from ray_multicluster_scheduler.scheduler.health.health_checker import HealthChecker
from ray_multicluster_scheduler.scheduler.lifecycle.events import CancelRequested, Submitted
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, Transition
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.task_lifecycle_manager import TaskLifecycleManager
from ray_multicluster_scheduler.scheduler.lifecycle.transition_log import MemoryTransitionLog
from ray_multicluster_scheduler.scheduler.monitor.cluster_monitor import ClusterMonitor
from ray_multicluster_scheduler.scheduler.policy.catalog import PolicyCatalog
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from ray_multicluster_scheduler.scheduler.scheduler_core.dispatcher import Dispatcher
from ray_multicluster_scheduler.scheduler.scheduler_core.installed_policies import load_entry_points
from ray_multicluster_scheduler.scheduler.scheduler_core.job_runner import JobRunner
from ray_multicluster_scheduler.scheduler.scheduler_core.output_store import OutputStore
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_shelf import PayloadShelf
from ray_multicluster_scheduler.scheduler.scheduler_core.preparation import Preparation
from ray_multicluster_scheduler.scheduler.scheduler_core.result_collector import ResultCollector

T = TypeVar("T")
_log = get_logger(__name__)
KEPT_FINISHED = 10_000
KEPT_EXPIRED = 100_000


class Runtime:
    """Starts its thread when it is made; :meth:`close` ends it. Public methods are safe from any thread."""

    def __init__(self, config: FleetConfig, control_plane: str) -> None:
        self.config, self.control_plane = config, control_plane
        self.clock, self.shelf, self.output = SystemClock(), PayloadShelf(), OutputStore()
        self._live: dict[str, Item] = {}
        self._over: weakref.WeakValueDictionary[str, Item] = weakref.WeakValueDictionary()
        self._kept: dict[str, Item] = {}
        self._finished: deque[str] = deque()
        self.expired: deque[str] = deque(maxlen=KEPT_EXPIRED)
        self._callbacks = ThreadPoolExecutor(2, thread_name_prefix="rmcs-callback")
        self._failure: BaseException | None = None
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="rmcs-control-plane", daemon=True)
        self._thread.start()
        try:
            self.run(self._build())
        except BaseException:
            self._end_thread()
            raise

    # From any thread ------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for it."""
        if not self.loop.is_running() and not self._thread.is_alive():
            work.close()
            raise SchedulerError("The scheduler was shut down.", next_step="make a new UnifiedScheduler")
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def submit(self, task: TaskDescription) -> Item:
        """Hand an item to the brain; returns at once."""
        if self._failure is not None:
            raise SchedulerError(f"The scheduler has a defect and stopped: {self._failure!r}.")
        item = Item(task)
        self._live[task.id] = item
        self.manager.post(Submitted(task))
        return item

    def item(self, task_id: str) -> Item | None:
        """The item, while it is in progress, can be asked for again, or somebody holds its handle."""
        return self._live.get(task_id) or self._over.get(task_id)

    def unfinished(self) -> list[Item]:
        """What is not over, oldest first."""
        return list(self._live.values())

    def cancel(self, task_id: str, reason: str, *, force: bool) -> None:
        self.manager.post(CancelRequested(task_id, reason, force))

    def call_back(self, work: Any) -> None:
        """Run user code off the loop."""
        self._callbacks.submit(_guarded, work)

    def close(self) -> None:
        """End agents, connections and the thread. What is unfinished is answered. Idempotent."""
        if not self._thread.is_alive():
            return
        self.run(self._close())
        self._end_thread()

    def _end_thread(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self._callbacks.shutdown(wait=False)

    # On the loop ----------------------------------------------------------------------------------------

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    async def _build(self) -> None:
        """The one place where the parts of an embedded control plane are put together."""
        settings = self.config.settings
        clusters = {cluster.name: cluster for cluster in self.config.clusters}
        catalog = PolicyCatalog()
        load_entry_points(catalog)
        self.machine = SchedulerMachine(
            settings,
            [cluster.metadata() for cluster in self.config.clusters],
            policy=PolicyEngine(settings, local_python=platform.python_version(), catalog=catalog),
        )
        self.manager = TaskLifecycleManager(self.machine, MemoryTransitionLog(), self.clock, self)
        post = self.manager.post
        self.collector = ResultCollector(post, self.output)
        self.packages = PackageCache()
        self.clients = JobClientPool(clusters)
        self.links = RayClientPool(
            clusters, settings, self.clients, self.collector, self.clock, self.control_plane, self.packages
        )
        self.preparation = Preparation(self.clients, self.packages, str(Path.home()))
        self.preparation.update(clusters)
        monitor = ClusterMonitor(self.links, self.clients, self.clock, post)
        self.health = HealthChecker(monitor, lambda: list(clusters))
        self.jobs = JobRunner(self._describe, post, self.clients, self.preparation, self.clock, self.control_plane)
        self.dispatcher = Dispatcher(
            self._describe,
            post,
            self.shelf,
            self.links,
            self.jobs,
            monitor,
            self.preparation,
            platform.python_version(),
        )
        self.connections = ConnectionLifecycleManager(self.links, settings.agent_idle_s)
        self.manager.use(self.dispatcher, self._defect)

    async def _close(self) -> None:
        self.manager.stop_timers()
        await self.connections.close()
        await self.dispatcher.close()
        await self.jobs.close()
        await self.links.close()
        await self.clients.close()
        await asyncio.to_thread(self.packages.close)
        await asyncio.sleep(0)  # let the last answers of the links reach the machine
        for item in list(self._live.values()):
            self._end_abandoned(item, "TaskCancelledError", "the scheduler was shut down before it was over")

    def _describe(self, task_id: str) -> TaskDescription:
        return self.machine.record(task_id).task

    # Audience of the lifecycle manager --------------------------------------------------------------------

    def transition(self, transition: Transition) -> None:
        item = self._live.get(transition.task_id)
        if item is not None:
            item.moved(transition)

    def completed(self, completion: Complete) -> None:
        """The item is over: its payload goes, its answer stays with whoever holds the handle."""
        task_id = completion.task_id
        item = self._live.pop(task_id, None)
        if item is None:
            return
        result = self.collector.result(task_id)
        self.collector.forget(task_id)
        self.shelf.release(item.task.function_digest)
        self.shelf.release(item.task.arguments_digest)
        self.output.close(task_id, completion.attempt)
        self._over[task_id] = item
        if item.task.kind == "job" or item.task.idempotency_key is not None:
            self._kept[task_id] = item  # these can be asked for again by id or key, without a handle
        self._finished.append(task_id)
        while len(self._finished) > KEPT_FINISHED:
            self._forget(self._finished.popleft())
        item.ended(Outcome(completion, result))

    def _forget(self, task_id: str) -> None:
        self.machine.forget(task_id)
        self.manager.log.forget(task_id)
        self.dispatcher.forget(task_id)
        self._kept.pop(task_id, None)
        self.expired.append(task_id)

    def _defect(self, error: BaseException) -> None:
        self._failure = error
        for item in list(self._live.values()):
            self._end_abandoned(item, "SchedulerError", f"the scheduler has a defect and stopped: {error!r}")

    def _end_abandoned(self, item: Item, kind: str, why: str) -> None:
        state = TaskState.CANCELLED if kind == "TaskCancelledError" else TaskState.FAILED
        message = f"{item.id} did not end by itself: {why}."
        self.completed(Complete(item.id, state, item.attempt, item.cluster, kind, message))


def _guarded(work: Any) -> None:
    try:
        work()
    except Exception:  # noqa: BLE001 - user code; said in the log, and the other callbacks go on
        _log.exception("a done-callback raised")


def when_done(item: Item, runtime: Runtime, work: Any) -> None:
    """Run user code once the item is over, off the loop."""

    def pass_on(_: Future[Outcome]) -> None:
        runtime.call_back(work)

    item.future.add_done_callback(pass_on)
