"""UnifiedScheduler: one object that owns the fleet's connections; the module's functions use a shared one."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, Unpack

from ray_multicluster_scheduler.app.client_api import explanation, job_logs, shutdown_story
from ray_multicluster_scheduler.app.client_api.handle import JobHandle, TaskHandle
from ray_multicluster_scheduler.app.client_api.item import Item
from ray_multicluster_scheduler.app.client_api.options import ItemOptions, JobOptions
from ray_multicluster_scheduler.app.client_api.runtime import ACCEPT_TIMEOUT_S, Runtime
from ray_multicluster_scheduler.app.client_api.submission import Submission, new_control_plane_id
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError, UnknownItemError
from ray_multicluster_scheduler.common.model import SchedulingDecision
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, ConfigArgument, FleetConfig, load_config


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
        self._lock = threading.Lock()
        self._runtime: Runtime | None = None
        self._submission: Submission | None = None
        self._control_plane: str | None = None

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
        return TaskHandle(runtime.submit(task), runtime)

    def submit_job(self, entrypoint: str, **options: Unpack[JobOptions]) -> str:
        """Submit a Ray job and return its id once it is accepted; see :meth:`submit_job_async`."""
        handle = self.submit_job_async(entrypoint, **options)
        handle._item.accepted.wait(ACCEPT_TIMEOUT_S)
        handle._runtime.ask(lambda: None)  # the turn that accepted it may also have refused it: let it end
        if handle.done() and handle.attempt == 0 and (error := handle.exception()) is not None:
            raise error
        return handle.id

    def submit_job_async(self, entrypoint: str, **options: Unpack[JobOptions]) -> JobHandle:
        """Submit a Ray job. The same ``submission_id`` again is the same job. Raises ConfigurationError."""
        runtime, submission = self._started()
        return JobHandle(runtime.submit(submission.job(entrypoint, **options)), runtime)

    def plan(self, resource_requirements: Mapping[str, Any] | None = None, **options: Any) -> SchedulingDecision:
        """Where a task like this would go now, and why; nothing is submitted."""
        runtime, submission = self._started()
        task = submission.task(_nothing, (), None, resource_requirements, **options)
        try:
            runtime.run(runtime.health.check_all())
            return runtime.ask(lambda: runtime.machine.plan(task, runtime.clock.now()))
        finally:
            runtime.shelf.release(task.function_digest)
            runtime.shelf.release(task.arguments_digest)

    def cancel(self, item_id: str, *, force: bool = False) -> None:
        """Ask for the end of an item by its id, in whatever state. Raises UnknownItemError."""
        runtime = self._that_knows(item_id)
        if runtime.item(item_id) is None:
            explanation.explain_item(runtime, item_id)  # raises for an id that was never issued
        runtime.cancel(item_id, "cancelled by the caller", force=force)

    def explain(self, item_id: str) -> dict[str, Any]:
        """Why an item is where it is, as data. Raises UnknownItemError."""
        return explanation.explain_item(self._that_knows(item_id), item_id)

    # Jobs -----------------------------------------------------------------------------------------------

    def job_info(self, job_id: str) -> dict[str, Any]:
        """What is known of a job. Raises UnknownItemError."""
        return explanation.job_info(self._that_knows(job_id), job_id)

    def list_jobs(self, status: str | None = None) -> list[dict[str, Any]]:
        """Every job of this control plane, oldest first; of one status if asked."""
        runtime = self._runtime
        rows = [] if runtime is None else explanation.job_rows(runtime)
        return [row for row in rows if status in (None, row["status"])]

    def job_logs(self, job_id: str) -> str:
        """Output of a job's newest attempt; empty while it waits. Raises ClusterConnectionError."""
        return job_logs.whole(self._that_knows(job_id), job_id)

    def follow_job_logs(self, job_id: str) -> Iterator[str]:
        """A job's output as it comes, until the job is over."""
        return job_logs.follow(self._that_knows(job_id), job_id)

    # The fleet ------------------------------------------------------------------------------------------

    def list_clusters(self, *, refresh: bool = False) -> list[dict[str, Any]]:
        """One row per cluster; ``refresh`` asks every cluster first, side by side."""
        runtime, _ = self._started()
        if refresh:
            runtime.run(runtime.health.check_all())
        return explanation.cluster_rows(runtime)

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
        runtime = self._runtime
        return [] if runtime is None else runtime.unfinished()

    def shutdown(self, *, drain: bool = False) -> None:
        """End it: with ``drain`` after everything is over, else what is unfinished is cancelled. Idempotent.

        What is submitted meanwhile is drained, too, or refused; what is submitted later starts a new control plane.
        """
        runtime = self._runtime
        if runtime is None:
            return
        if drain:
            shutdown_story.drain(runtime)
        runtime.refuse()
        shutdown_story.cancel_all(runtime)
        try:
            runtime.close()
        finally:
            with self._lock:
                if self._runtime is runtime:
                    self._runtime = self._submission = None
                    _running.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.shutdown(drain=kind is None)

    # Inside ---------------------------------------------------------------------------------------------

    def handle(self, item_id: str) -> TaskHandle | JobHandle:
        """The handle of an item in progress. Raises UnknownItemError."""
        runtime = self._that_knows(item_id)
        item = runtime.item(item_id)
        if item is None:
            raise UnknownItemError(f"There is no item {item_id!r} in progress here.", task_id=item_id)
        return JobHandle(item, runtime) if item.task.kind == "job" else TaskHandle(item, runtime)

    def _that_knows(self, item_id: str) -> Runtime:
        """Only one that runs can know an item: none is started to find out that it does not."""
        runtime = self._runtime
        if runtime is None:
            raise explanation.unknown_item(item_id)
        return runtime

    def _started(self) -> tuple[Runtime, Submission]:
        if _exiting.is_set():
            raise SchedulerError(
                "The interpreter is shutting down, so nothing can be submitted any more.",
                next_step="submit from the program itself, not from an atexit handler",
            )
        with self._lock:
            if self._runtime is None or self._submission is None:
                # A new id each time: an id that was issued before must never be issued again.
                self._control_plane = new_control_plane_id()
                self._runtime = Runtime(self.config, self._control_plane)
                self._submission = Submission(
                    self.config.settings,
                    self._runtime.shelf,
                    self._runtime.clock,
                    self._control_plane,
                    self._runtime.preparation.homes,
                )
                _running.add(self)
            return self._runtime, self._submission

    def _forked(self) -> None:
        """In the child of a fork: the threads stayed in the parent, so the next call makes a new control plane."""
        self._lock = threading.Lock()
        self._runtime, self._submission = None, None


def _nothing() -> None:
    """What `plan` pretends to run."""


_running: set[UnifiedScheduler] = set()
"""Those with a control plane. Held here, or one that nobody else holds would take its work along unfinished."""
_interrupted = threading.Event()
_exiting = threading.Event()
_shared: UnifiedScheduler | None = None
_shared_lock = threading.Lock()


def stop_all() -> None:
    """Cancel what any scheduler of this program has in progress, and end them; each can be used again."""
    _shut_down_all(drain=False)


def end_without_draining() -> None:
    """The program was interrupted and ends: what is still submitted is not waited for at its exit."""
    _interrupted.set()


def _end_with_the_program() -> None:
    """Work lives and dies with the program: finish it, unless the program was interrupted."""
    interrupted = _interrupted.is_set() or getattr(sys, "last_type", None) is KeyboardInterrupt
    _shut_down_all(drain=not interrupted)


def _at_exit() -> None:
    try:
        _end_with_the_program()
    finally:
        _exiting.set()


def _in_the_child_of_a_fork() -> None:
    global _shared_lock  # noqa: PLW0603 - another thread of the parent may have held it
    _shared_lock = threading.Lock()
    for scheduler in {*_running, *([_shared] if _shared else [])}:
        scheduler._forked()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_the_child_of_a_fork)


def _shut_down_all(*, drain: bool) -> None:
    with ExitStack() as all_of_them:  # an error or an interrupt at one does not spare the others
        for scheduler in list(_running):
            all_of_them.callback(scheduler.shutdown, drain=drain)


def _before_threads_end(work: Callable[[], None]) -> None:
    """Plain atexit comes too late: by then no thread pool takes work, and name look-ups need one."""
    getattr(threading, "_register_atexit", atexit.register)(work)


_before_threads_end(_at_exit)


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
