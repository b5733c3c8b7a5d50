"""The embedded UnifiedScheduler: one object that owns the fleet's connections, in the user's own process.

Users import it from ``unified_scheduler``, which stays light; this module loads the whole control plane.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack, overload

from ray_multicluster_scheduler.app.client_api import program
from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.arguments.arguments import check_arguments, pickled
from ray_multicluster_scheduler.app.client_api.arguments.objects import ObjectHandle
from ray_multicluster_scheduler.app.client_api.cluster_rows import ClusterRows
from ray_multicluster_scheduler.app.client_api.embedded.cluster_verbs import ClusterVerbs
from ray_multicluster_scheduler.app.client_api.embedded.event_verbs import EventVerbs
from ray_multicluster_scheduler.app.client_api.embedded.job_verbs import JobVerbs
from ray_multicluster_scheduler.app.client_api.embedded.placeholder_function import Nothing, nothing
from ray_multicluster_scheduler.app.client_api.embedded.queue_verbs import QueueVerbs
from ray_multicluster_scheduler.app.client_api.embedded.submission import Submission, new_control_plane_id
from ray_multicluster_scheduler.app.client_api.gangs.gang_verbs import GangVerbs
from ray_multicluster_scheduler.app.client_api.handles import collecting
from ray_multicluster_scheduler.app.client_api.handles.handle import Handle, JobHandle, PartHandle, TaskHandle
from ray_multicluster_scheduler.app.client_api.options import JobOptions, TaskOptions, absolute_paths, item_id_of
from ray_multicluster_scheduler.app.client_api.ray_shape.ray_arguments import check_recursive, check_what_to_cancel
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_function import RemoteFunction
from ray_multicluster_scheduler.app.client_api.remote.credentials import find_credentials
from ray_multicluster_scheduler.app.client_api.remote.find_service import find_service
from ray_multicluster_scheduler.app.client_api.remote.remote_runtime import RemoteRuntime
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError, UnknownItemError
from ray_multicluster_scheduler.common.model import SchedulingDecision, TaskDescription
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, ConfigArgument, FleetConfig, Settings
from ray_multicluster_scheduler.control_plane.config import load_config as load
from ray_multicluster_scheduler.control_plane.runtime import explanation
from ray_multicluster_scheduler.control_plane.runtime.idempotency import with_own_id
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime
from ray_multicluster_scheduler.scheduler.cluster.environment import merge_runtime_env

H = TypeVar("H", bound=Handle)


class UnifiedScheduler(GangVerbs, JobVerbs, QueueVerbs, ClusterVerbs, EventVerbs):
    """Submits tasks and jobs to the best cluster of a fleet. Safe from any thread; also a context manager.

    Embedded: the control plane lives in this process, and what was submitted lives and dies with it. With the address
    of a service (given, in ``RMCS_ADDRESS``, or of one that runs here) what was submitted is the service's, and goes on
    when the program has ended. Raises ConfigurationError when the configuration is missing or wrong; nothing is
    contacted before it is needed.
    """

    def __init__(
        self,
        config: ConfigArgument = None,
        *,
        clusters: Sequence[ClusterConfig | Mapping[str, Any]] | None = None,
        address: str | None = None,
        token: str | None = None,
        tls_ca: str | Path | None = None,
    ) -> None:
        """``token``: what a service knows us by; ``tls_ca``: a file with whom we trust. Else they are looked for."""
        given = [name for name, one in (("config", config), ("clusters", clusters), ("address", address)) if one]
        if len(given) > 1:
            raise ConfigurationError(f"Both {given[0]} and {given[1]} were given.", next_step="give one of them")
        own = config is not None or clusters is not None
        self.address = None if own else find_service(address, os.environ)
        self._proof = None if self.address is None else find_credentials(self.address, os.environ, token, tls_ca)
        self._config = load(clusters if clusters is not None else config) if self.address is None else None
        self._lock = threading.Lock()
        self._runtime: ControlPlane | None = None
        self._submission: Submission | None = None
        self._control_plane: str | None = None
        self._runtime_env: Mapping[str, Any] = {}

    @property
    def config(self) -> FleetConfig:
        """What this scheduler was made from. Raises ConfigurationError where a service has it."""
        if self._config is None:
            raise ConfigurationError(
                f"The configuration is that of the service {self.address}.", next_step="look at it there"
            )
        return self._config

    @property
    def settings(self) -> Settings:
        """Those of this scheduler, or of its service."""
        return self._config.settings if self._config is not None else self._started()[0].settings

    # Verbs ----------------------------------------------------------------------------------------------

    def submit_task(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        *,
        num_returns: int | None = None,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Run ``fn`` on the best cluster and return its value; raises what it raised, or a SchedulerError."""
        handle, number = self._submit(fn, args, kwargs, resource_requirements, tags, num_returns, options)
        value = handle.result()
        return list(value) if number > 1 else value

    @overload
    def submit_task_async(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        *,
        num_returns: None = None,
        **options: Unpack[TaskOptions],
    ) -> TaskHandle: ...
    @overload
    def submit_task_async(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        *,
        num_returns: int | None,
        **options: Unpack[TaskOptions],
    ) -> Any: ...
    def submit_task_async(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        *,
        num_returns: int | None = None,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """The same without waiting: a handle; with ``num_returns`` above 1 a list of as many, with 0 None. Raises
        ConfigurationError, TaskSubmissionError for what is wrong at once."""
        handle, number = self._submit(fn, args, kwargs, resource_requirements, tags, num_returns, options)
        handle._runtime.let_catch_up()
        if number == 1:
            return handle
        return PartHandle.split(handle, number) if number else None

    def _submit(
        self, fn: Any, args: Any, kwargs: Any, needs: Any, tags: Any, num_returns: int | None, options: TaskOptions
    ) -> tuple[TaskHandle, int]:
        """The whole item, and how many values it returns."""
        runtime, submission = self._started()
        if isinstance(fn, RemoteFunction) and (needs, tags, num_returns) == (None, None, None) and not options:
            template = submission.template_of(fn)
        else:
            template = submission.template(fn, needs, tags, num_returns, options)
        task, arguments = submission.of(template, *check_arguments(args, kwargs, template.name))
        return TaskHandle(runtime.submit(task, arguments), runtime), template.num_returns

    def put(self, value: object) -> ObjectHandle:
        """Keep a value to be given to tasks and actors: pickled once, shipped once to each cluster that needs it.

        It is shipped as it is: paths under a home directory are moved in plain arguments only, not in here.

        Raises TaskSubmissionError if it cannot be pickled.
        """
        if isinstance(value, Handle):
            raise ConfigurationError(f"put was given the handle {value.id}.", next_step="pass the handle itself on")
        runtime, _ = self._started()
        return ObjectHandle(*pickled(value, f"the value given to put, a {type(value).__qualname__},"), runtime)

    def submit_job(self, entrypoint: str, **options: Unpack[JobOptions]) -> str:
        """Submit a Ray job and return its id once it is accepted; see :meth:`submit_job_async`."""
        handle = self.submit_job_async(entrypoint, **options)
        handle._runtime.settled(handle.id)
        if handle.state.terminal and handle.attempt == 0 and (error := handle.exception()) is not None:
            raise error  # of which a service tells a moment later
        return handle.id

    def submit_job_async(self, entrypoint: str, **options: Unpack[JobOptions]) -> JobHandle:
        """Submit a Ray job. The same ``submission_id`` again is the same job. Raises ConfigurationError."""
        runtime, submission = self._started()
        return JobHandle(with_own_id(runtime.submit(submission.job(entrypoint, **options)), options), runtime)

    def plan(
        self, resource_requirements: Mapping[str, Any] | None = None, *, kind: str = "task", **options: Any
    ) -> SchedulingDecision:
        """Where a task, or an actor or a job if ``kind`` says so, would go now, and why; nothing is submitted.

        Every cluster is asked first. The decision prints itself as a table. Raises ConfigurationError.
        """
        runtime, submission = self._started()
        task = self._planned(submission, kind, {**options, "resource_requirements": resource_requirements})
        try:
            return runtime.plan(task)
        finally:
            runtime.payload_cache.release(task.function_digest)
            runtime.payload_cache.release(task.arguments_digest)

    def _planned(self, submission: Submission, kind: str, options: dict[str, Any]) -> TaskDescription:
        match kind:
            case "task":
                return submission.task(nothing, **options)[0]
            case "actor":
                needs, tags = options.pop("resource_requirements"), options.pop("tags", None)
                return self._with_actors().describe(Nothing, needs, tags, options)
            case "job":
                return submission.job("true", **options)
        raise ConfigurationError(f"kind is {kind!r}.", next_step='give "task", "actor" or "job"')

    def get(
        self, handles: Handle | Sequence[Handle], timeout: float | None = None, *, progress: bool | None = None
    ) -> Any:
        """The value of one handle, or the values of many in their order; the time is for all of them together. Raises
        the first error as soon as it is known; TaskTimeoutError."""
        return collecting.get(handles, timeout, progress=progress)

    def wait(
        self, handles: Sequence[H], num_returns: int = 1, timeout: float | None = None, *, progress: bool | None = None
    ) -> tuple[list[H], list[H]]:
        """Wait until ``num_returns`` of them are over, or the time is; returns (so many that are over, the rest)."""
        return collecting.wait(handles, num_returns, timeout, progress=progress)

    def cancel(self, item: str | Handle | ActorHandle, *, force: bool = False, recursive: bool = True) -> None:
        """Ask for the end of an item by its id or handle, in whatever state; an actor is killed. Raises
        UnknownItemError, ConfigurationError for what is neither."""
        check_recursive(recursive)
        check_what_to_cancel(item)
        if isinstance(item, Handle):
            item.cancel(force=force)
            return
        if isinstance(item, ActorHandle):
            ActorHandle.kill(item)
            return
        runtime = self._that_knows(item)
        actor = None if self._actors is None else self._actors.find(item)
        if actor is not None:
            ActorHandle.kill(actor)
            return
        if runtime.is_call(item):
            runtime.cancel_call(item, force=force)
            return
        item = runtime.whole_id(item)
        runtime.check_known(item)
        runtime.cancel(item, "cancelled by the caller", force=force)

    def explain(self, item_id: str | Handle | ActorHandle) -> dict[str, Any]:
        """Why an item or a call of an actor's method, given by its id or handle, is where it is, as data. Raises
        UnknownItemError, ConfigurationError for what is neither."""
        if isinstance(item_id, Handle):
            return item_id.explain()
        if isinstance(item_id, ActorHandle):
            return ActorHandle.explain(item_id)
        item_id = item_id_of(item_id, "explain")
        return self._that_knows(item_id).explain(item_id)

    # The fleet ------------------------------------------------------------------------------------------

    def list_clusters(self, *, refresh: bool = False) -> list[dict[str, Any]]:
        """One row per cluster; ``refresh`` asks every cluster first, side by side."""
        runtime, _ = self._started()
        return ClusterRows(runtime.cluster_rows(None if refresh else ()))

    def cluster_info(self, name: str) -> dict[str, Any]:
        """One cluster, asked now. Raises ConfigurationError for an unknown name."""
        runtime, _ = self._started()
        runtime.check_cluster(name)
        return next(row for row in ClusterRows(runtime.cluster_rows([name])) if row["name"] == name)

    def fleet_resources(self) -> dict[str, dict[str, float]]:
        """Total and free over all clusters that answer now."""
        sums: dict[str, dict[str, float]] = {"total": {}, "free": {}}
        for row in self.list_clusters(refresh=True):
            for part, amounts in sums.items():
                for name, amount in (row[part] or {}).items() if row["state"] in explanation.ANSWERING else ():
                    amounts[name] = amounts.get(name, 0.0) + amount
        return sums

    def nodes(self) -> list[dict[str, Any]]:
        """Every node of the clusters that answer now, in Ray's words, with its cluster."""
        up = [row["name"] for row in self.list_clusters(refresh=True) if row["state"] in explanation.ANSWERING]
        runtime, _ = self._started()
        return runtime.node_rows(up)

    def use_runtime_env(self, runtime_env: Mapping[str, Any]) -> None:
        """For everything that is submitted from now on, above each cluster's and below each item's own.

        Raises ConfigurationError; also once something was submitted, which has gone without it.
        """
        env = absolute_paths(runtime_env)
        with self._lock:
            if self._runtime is not None:
                raise ConfigurationError(
                    "The runtime_env comes too late: the scheduler is in use.", next_step="give it with init()"
                )
            if self.address is not None:
                self._runtime_env = env
                return
            merged = [{"runtime_env": merge_runtime_env(one.runtime_env, env)} for one in self.config.clusters]
            clusters = [one.model_copy(update=new) for one, new in zip(self.config.clusters, merged, strict=True)]
            self._config = self.config.model_copy(update={"clusters": tuple(clusters)})

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
        try:
            runtime.shutdown(drain=drain, interrupted=program.interrupted)
        finally:
            with self._lock:
                if self._runtime is runtime:
                    self._runtime = self._submission = self._actors = None
                    program.ended(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._leave(drain=kind is None)

    def _leave(self, *, drain: bool) -> None:
        """The program has no more to say. What dies with it is ended as by :meth:`shutdown`; what a service has
        accepted goes on."""
        runtime = self._runtime
        self.shutdown(drain=drain and not (runtime is not None and runtime.lives_on))

    # Inside ---------------------------------------------------------------------------------------------

    def handle(self, item_id: str) -> TaskHandle | JobHandle | ActorHandle:
        """The handle of an item in progress. Raises UnknownItemError."""
        runtime = self._that_knows(item_id)
        actor = None if self._actors is None else self._actors.find(item_id)
        if actor is not None:
            return actor
        item = runtime.item(item_id)
        if item is None or item.task.kind == "actor":
            raise UnknownItemError(f"There is no item {item_id!r} in progress here.", task_id=item_id)
        return JobHandle(item, runtime) if item.task.kind == "job" else TaskHandle(item, runtime)

    def _that_knows(self, item_id: str) -> ControlPlane:
        """Only one that runs can know an item: none is started to find out that it does not."""
        runtime = self._running()
        if runtime is None:
            raise explanation.unknown_item(item_id)
        return runtime

    def _running(self) -> ControlPlane | None:
        """A service runs whether we have asked it anything or not."""
        return self._runtime if self.address is None else self._started()[0]

    def _started(self) -> tuple[ControlPlane, Submission]:
        if program.exiting():
            raise SchedulerError(
                "The interpreter is shutting down, so nothing can be submitted any more.",
                next_step="submit from the program itself, not from an atexit handler",
            )
        with self._lock:
            if self._runtime is None or self._submission is None:
                # A new id each time: an id that was issued before must never be issued again.
                self._control_plane = new_control_plane_id(lasting=self.address is not None)
                if self.address is None:
                    self._runtime = Runtime(self.config, self._control_plane)
                else:
                    self._runtime = RemoteRuntime(self.address, self._control_plane, self._runtime_env, self._proof)
                self._submission = Submission(
                    self._runtime.settings,
                    self._runtime.payload_cache,
                    self._runtime.clock,
                    self._control_plane,
                    self._runtime.homes,
                )
                program.started(self)
            return self._runtime, self._submission

    def _forked(self) -> None:
        """In the child of a fork: the threads stayed in the parent, so the next call makes a new control plane."""
        self._lock = threading.Lock()
        self._runtime = self._submission = self._actors = None


# Pickled by this name, which a worker of a cluster can import: there it is the native one.
UnifiedScheduler.__module__ = "ray_multicluster_scheduler.app.client_api.unified_scheduler"
