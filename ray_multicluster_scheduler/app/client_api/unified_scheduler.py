"""UnifiedScheduler: one object that owns the fleet's connections; the module's functions use a shared one."""

from __future__ import annotations

import asyncio
import atexit
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

from ray_multicluster_scheduler.app.client_api import explanation, job_logs, shutdown_story
from ray_multicluster_scheduler.app.client_api.handle import JobHandle, TaskHandle
from ray_multicluster_scheduler.app.client_api.item import Item
from ray_multicluster_scheduler.app.client_api.options import ItemOptions, JobOptions
from ray_multicluster_scheduler.app.client_api.runtime import Runtime, when_done
from ray_multicluster_scheduler.app.client_api.submission import Submission, new_control_plane_id
from ray_multicluster_scheduler.common.exception import ConfigurationError, UnknownItemError
from ray_multicluster_scheduler.common.model import SchedulingDecision, TaskDescription
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, ConfigArgument, FleetConfig, load_config

_ACCEPT_TIMEOUT_S = 30.0


class UnifiedScheduler:
    """Submits tasks and jobs to the best cluster of a fleet. Safe from any thread; also a context manager.

    Embedded: the control plane lives in this process, and what was submitted lives and dies with it. Raises
    ConfigurationError when the configuration is missing or wrong; nothing is contacted before it is needed.
    """

    def __init__(
        self, config: ConfigArgument = None, *, clusters: Sequence[ClusterConfig | Mapping[str, Any]] | None = None
    ) -> None:
        if config is not None and clusters is not None:
            raise ConfigurationError("Both config and clusters were given.", next_step="give one of them")
        self.config: FleetConfig = load_config(clusters if clusters is not None else config)
        self._control_plane = new_control_plane_id()
        self._lock = threading.Lock()
        self._runtime: Runtime | None = None
        self._submission: Submission | None = None
        self._keys: dict[tuple[str, str], str] = {}

    # Verbs ----------------------------------------------------------------------------------------------

    def submit_task(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        **options: Unpack[ItemOptions],
    ) -> Any:
        """Run ``fn`` on the best cluster and return its value; raises what it raised, or a SchedulerError."""
        return self.submit_task_async(fn, args, kwargs, resource_requirements, tags, **options).result()

    def submit_task_async(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        **options: Unpack[ItemOptions],
    ) -> TaskHandle:
        """The same without waiting. Raises ConfigurationError, TaskSubmissionError for what is wrong at once."""
        runtime, submission = self._started()
        task = submission.task(fn, args, kwargs, resource_requirements, tags, **options)
        return TaskHandle(self._submit(runtime, task), self)

    def submit_job(self, entrypoint: str, **options: Unpack[JobOptions]) -> str:
        """Submit a Ray job and return its id once it is accepted; see :meth:`submit_job_async`."""
        handle = self.submit_job_async(entrypoint, **options)
        runtime, _ = self._started()
        handle._item.accepted.wait(_ACCEPT_TIMEOUT_S)
        runtime.run(asyncio.sleep(0))  # the turn that accepted it may also have refused it: let it end
        if handle.done() and handle.attempt == 0 and (error := handle.exception()) is not None:
            raise error
        return handle.id

    def submit_job_async(self, entrypoint: str, **options: Unpack[JobOptions]) -> JobHandle:
        """Submit a Ray job. The same ``submission_id`` again is the same job. Raises ConfigurationError."""
        runtime, submission = self._started()
        return JobHandle(self._submit(runtime, submission.job(entrypoint, **options)), self)

    def plan(self, resource_requirements: Mapping[str, Any] | None = None, **options: Any) -> SchedulingDecision:
        """Where a task like this would go now, and why; nothing is submitted."""
        runtime, submission = self._started()
        task = submission.task(_nothing, (), None, resource_requirements, **options)
        runtime.run(runtime.health.check_all())

        async def dry_run() -> SchedulingDecision:
            return runtime.machine.plan(task, runtime.clock.now())

        try:
            return runtime.run(dry_run())
        finally:
            runtime.shelf.release(task.function_digest)
            runtime.shelf.release(task.arguments_digest)

    def cancel(self, item_id: str, *, force: bool = False) -> None:
        """Ask for the end of an item by its id, in whatever state. Raises UnknownItemError."""
        runtime, _ = self._started()
        if runtime.item(item_id) is None:
            self.explain(item_id)  # raises for an id that was never issued
        runtime.cancel(item_id, "cancelled by the caller", force=force)

    def explain(self, item_id: str) -> dict[str, Any]:
        """Why an item is where it is, as data. Raises UnknownItemError."""
        runtime, _ = self._started()
        return runtime.run(explanation.explain_item(runtime, item_id))

    # Jobs -----------------------------------------------------------------------------------------------

    def job_info(self, job_id: str) -> dict[str, Any]:
        """What is known of a job. Raises UnknownItemError."""
        runtime, _ = self._started()
        item = runtime.item(job_id)
        if item is not None:
            item.accepted.wait(_ACCEPT_TIMEOUT_S)
        return runtime.run(explanation.job_info(runtime, job_id))

    def list_jobs(self, status: str | None = None) -> list[dict[str, Any]]:
        """Every job of this control plane, oldest first; of one status if asked."""
        runtime, _ = self._started()

        async def collect() -> list[dict[str, Any]]:
            ids = [record.task.id for record in runtime.machine.records() if record.task.kind == "job"]
            return [await explanation.job_info(runtime, job_id) for job_id in ids]

        return [row for row in runtime.run(collect()) if status in (None, row["status"])]

    def job_logs(self, job_id: str) -> str:
        """Output of a job's newest attempt; empty while it waits. Raises ClusterConnectionError."""
        runtime, _ = self._started()
        return runtime.run(job_logs.whole(runtime, job_id))

    def follow_job_logs(self, job_id: str) -> Iterator[str]:
        """A job's output as it comes, until the job is over."""
        runtime, _ = self._started()
        return job_logs.follow(runtime, job_id)

    # The fleet ------------------------------------------------------------------------------------------

    def list_clusters(self, *, refresh: bool = False) -> list[dict[str, Any]]:
        """One row per cluster; ``refresh`` asks every cluster first, side by side."""
        runtime, _ = self._started()
        if refresh:
            runtime.run(runtime.health.check_all())
        return runtime.run(explanation.cluster_rows(runtime))

    def cluster_info(self, name: str) -> dict[str, Any]:
        """One cluster, asked now. Raises ConfigurationError for an unknown name."""
        runtime, _ = self._started()
        runtime.machine.registry.get(name)
        runtime.run(runtime.health.check(name))
        return next(row for row in self.list_clusters() if row["name"] == name)

    def fleet_resources(self) -> dict[str, dict[str, float]]:
        """Total and free over all clusters that answer now."""
        sums: dict[str, dict[str, float]] = {"total": {}, "free": {}}
        for row in self.list_clusters(refresh=True):
            for part, amounts in sums.items():
                for name, amount in (row[part] or {}).items() if row["state"] == "UP" else ():
                    amounts[name] = amounts.get(name, 0.0) + amount
        return sums

    # The program ----------------------------------------------------------------------------------------

    def unfinished(self) -> list[Item]:
        """What this program submitted and is not over."""
        return [] if self._runtime is None else self._runtime.unfinished()

    def shutdown(self, *, drain: bool = False) -> None:
        """End it: with ``drain`` after everything is over, else what is unfinished is cancelled. Idempotent."""
        with self._lock:
            runtime, self._runtime, self._submission = self._runtime, None, None
        if runtime is None:
            return
        if drain:
            shutdown_story.drain(runtime)
        else:
            shutdown_story.cancel_all(runtime)
        runtime.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.shutdown(drain=kind is None)

    # Used by handles ------------------------------------------------------------------------------------

    def call_back_when_done(self, item: Item, work: Callable[[], object]) -> None:
        runtime, _ = self._started()
        when_done(item, runtime, work)

    def task_output(self, item: Item, stream: str | None) -> str:
        runtime, _ = self._started()
        return runtime.output.text(item.id, item.attempt, stream)

    def follow_task_output(self, item: Item) -> Iterator[str]:
        runtime, _ = self._started()
        return runtime.output.follow(item.id, max(item.attempt, 1))

    def handle(self, item_id: str) -> TaskHandle | JobHandle:
        """The handle of an item in progress. Raises UnknownItemError."""
        runtime, _ = self._started()
        item = runtime.item(item_id)
        if item is None:
            raise UnknownItemError(f"There is no item {item_id!r} in progress here.", task_id=item_id)
        return JobHandle(item, self) if item.task.kind == "job" else TaskHandle(item, self)

    def _submit(self, runtime: Runtime, task: TaskDescription) -> Item:
        """A repeated id or key is the first item again."""
        with self._lock:
            first = task.id
            if task.idempotency_key is not None:
                first = self._keys.setdefault((task.owner, task.idempotency_key), task.id)
            known = runtime.item(first)
            if known is None:
                return runtime.submit(task)
        runtime.shelf.release(task.function_digest)
        runtime.shelf.release(task.arguments_digest)
        return known

    def _started(self) -> tuple[Runtime, Submission]:
        with self._lock:
            if self._runtime is None or self._submission is None:
                self._runtime = Runtime(self.config, self._control_plane)
                self._submission = Submission(
                    self.config.settings,
                    self._runtime.shelf,
                    self._runtime.clock,
                    self._control_plane,
                    self._runtime.preparation.homes,
                )
                _at_exit.add(self)
            return self._runtime, self._submission


def _nothing() -> None:
    """What `plan` pretends to run."""


_at_exit: weakref.WeakSet[UnifiedScheduler] = weakref.WeakSet()
_shared: UnifiedScheduler | None = None
_shared_lock = threading.Lock()


def _end_with_the_program() -> None:
    """Work lives and dies with the program: finish it, unless the program was interrupted."""
    interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
    for scheduler in list(_at_exit):
        scheduler.shutdown(drain=not interrupted)


def _before_threads_end(work: Callable[[], None]) -> None:
    """Plain atexit comes too late: by then no thread pool takes work, and name look-ups need one."""
    getattr(threading, "_register_atexit", atexit.register)(work)


_before_threads_end(_end_with_the_program)


def initialize_scheduler_environment(config_file_path: str | Path | None = None) -> UnifiedScheduler:
    """Make the shared scheduler from this configuration, in place of an earlier one. Raises ConfigurationError."""
    global _shared
    fresh = UnifiedScheduler(config_file_path)
    with _shared_lock:
        before, _shared = _shared, fresh
    if before is not None:
        before.shutdown(drain=True)
    return fresh


def get_unified_scheduler() -> UnifiedScheduler:
    """The shared scheduler, made from the usual places if there is none. Raises ConfigurationError."""
    global _shared  # noqa: PLW0603 - the module-level verbs need one shared object
    with _shared_lock:
        if _shared is None:
            _shared = UnifiedScheduler()
        return _shared


def shutdown(*, drain: bool = False) -> None:
    """End the shared scheduler, if there is one."""
    global _shared
    with _shared_lock:
        before, _shared = _shared, None
    if before is not None:
        before.shutdown(drain=drain)


def explain(item_id: str) -> dict[str, Any]:
    """Why an item is where it is. Raises UnknownItemError."""
    return get_unified_scheduler().explain(item_id)


def plan(resource_requirements: Mapping[str, Any] | None = None, **options: Any) -> SchedulingDecision:
    """Where a task like this would go now, and why; nothing is submitted."""
    return get_unified_scheduler().plan(resource_requirements, **options)


def list_clusters(*, refresh: bool = False) -> list[dict[str, Any]]:
    """One row per cluster."""
    return get_unified_scheduler().list_clusters(refresh=refresh)


def cluster_info(name: str) -> dict[str, Any]:
    """One cluster, asked now. Raises ConfigurationError for an unknown name."""
    return get_unified_scheduler().cluster_info(name)


def fleet_resources() -> dict[str, dict[str, float]]:
    """Total and free over all clusters that answer now."""
    return get_unified_scheduler().fleet_resources()
