"""UnifiedScheduler: submits tasks, actors, jobs and gangs to the best cluster, and controls them.

It drives a control plane in this process (embedded) or uses that of a service (remote). Users import it from
``unified_scheduler``, which is light; this module loads the whole control plane. Inside a cluster ``NativeScheduler``
takes its place. ``verbs.py`` and ``async_verbs.py`` are generated from this class by ``scripts/generate_verbs.py``.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, Unpack, overload

from ray_multicluster_scheduler.app.client_api import program
from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.actors.actor_submission import ActorSubmission
from ray_multicluster_scheduler.app.client_api.actors.actors import Actors, EmbeddedActors
from ray_multicluster_scheduler.app.client_api.actors.child_actors import ChildActors
from ray_multicluster_scheduler.app.client_api.argument_names import also_named
from ray_multicluster_scheduler.app.client_api.arguments.arguments import check_arguments, pickled
from ray_multicluster_scheduler.app.client_api.arguments.objects import ObjectHandle
from ray_multicluster_scheduler.app.client_api.cluster_rows import ClusterRows
from ray_multicluster_scheduler.app.client_api.deployment import Deployment
from ray_multicluster_scheduler.app.client_api.gangs.gang_submission import GangSubmission, handles_of
from ray_multicluster_scheduler.app.client_api.handles import collecting
from ray_multicluster_scheduler.app.client_api.handles.handle import Handle, JobHandle, TaskHandle
from ray_multicluster_scheduler.app.client_api.handles.object_ref_generator import (
    ObjectRefGenerator,
    abandon_generators,
    returned_handles,
)
from ray_multicluster_scheduler.app.client_api.job_verbs import JobVerbs
from ray_multicluster_scheduler.app.client_api.options import (
    ActorOptions,
    GangOptions,
    JobOptions,
    TaskOptions,
    absolute_paths,
    item_id_of,
)
from ray_multicluster_scheduler.app.client_api.queue_verbs import ItemRef, QueueVerbs
from ray_multicluster_scheduler.app.client_api.ray_shape.ray_arguments import (
    check_namespace,
    check_recursive,
    check_what_to_cancel,
)
from ray_multicluster_scheduler.app.client_api.remote.credentials import find_credentials
from ray_multicluster_scheduler.app.client_api.remote.remote_actors import RemoteActors
from ray_multicluster_scheduler.app.client_api.remote.remote_runtime import RemoteRuntime
from ray_multicluster_scheduler.app.client_api.remote.service_address import find_service
from ray_multicluster_scheduler.app.client_api.submission.submission import (
    PlaceholderActor,
    Submission,
    new_control_plane_id,
    placeholder_task,
)
from ray_multicluster_scheduler.app.client_api.submit_actor import kill
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError, UnknownItemError
from ray_multicluster_scheduler.common.model import SchedulingDecision, TaskDescription
from ray_multicluster_scheduler.common.model.gang_description import Strategy
from ray_multicluster_scheduler.common.several_returns import check_can_wait
from ray_multicluster_scheduler.control_plane.config import (
    ClusterConfig,
    ConfigArgument,
    FleetConfig,
    Settings,
    load_config,
)
from ray_multicluster_scheduler.control_plane.runtime import explanation
from ray_multicluster_scheduler.control_plane.runtime.event_iterator import EventCallback, EventIterator, EventListener
from ray_multicluster_scheduler.control_plane.runtime.idempotency import check_own_id
from ray_multicluster_scheduler.control_plane.runtime.input_checks import checked_name, checked_reason
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.control_plane.runtime.item import Item, wait_for
from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime
from ray_multicluster_scheduler.scheduler.cluster.environment import merge_runtime_env
from ray_multicluster_scheduler.scheduler.lifecycle import events as scheduler_events
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import EventFilter

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.deployments import EmbeddedDeployments, RemoteDeployments

H = TypeVar("H", bound=Handle)
TextOrTexts: TypeAlias = str | Iterable[str] | None
_POLL_S = 0.05


class UnifiedScheduler(JobVerbs, QueueVerbs):
    """Submits tasks, actors, jobs and gangs to the best cluster of a fleet. Safe from any thread; a context manager.

    Embedded: the control plane runs in this process, and the work ends with it. With the address of a service (given,
    in ``RMCS_ADDRESS``, or of one that runs on this machine) the work continues when the program has ended. Raises
    ConfigurationError when the configuration is missing or wrong; connections are made on first use.
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
        """``token`` and ``tls_ca`` (a CA file) are for a service; see docs/service.md for the defaults."""
        given = [name for name, one in (("config", config), ("clusters", clusters), ("address", address)) if one]
        if len(given) > 1:
            raise ConfigurationError(f"Both {given[0]} and {given[1]} were given.", next_step="give one of them")
        own = config is not None or clusters is not None
        self.address = None if own else find_service(address, os.environ)
        self._proof = None if self.address is None else find_credentials(self.address, os.environ, token, tls_ca)
        self._config = load_config(clusters if clusters is not None else config) if self.address is None else None
        self._lock = threading.Lock()
        self._runtime: ControlPlane | None = None
        self._submission: Submission | None = None
        self._actors: Actors | None = None
        self._deployments: EmbeddedDeployments | RemoteDeployments | None = None
        self._control_plane: str | None = None
        self._runtime_env: Mapping[str, Any] = {}

    @property
    def config(self) -> FleetConfig:
        """The configuration. Raises ConfigurationError if it uses a service."""
        if self._config is None:
            raise ConfigurationError(f"The service {self.address} has the configuration.", next_step="read it there")
        return self._config

    @property
    def settings(self) -> Settings:
        """The settings of this scheduler, or of its service."""
        return self._config.settings if self._config is not None else self._started()[0].settings

    # Tasks ----------------------------------------------------------------------------------------------

    @also_named(func="fn")
    def submit_task(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        *,
        num_returns: int | str | None = None,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Run ``fn`` on the best cluster and return its value; raises what it raised, or a SchedulerError."""
        handle, number = self._submit(fn, args, kwargs, resource_requirements, tags, num_returns, options, True)
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
        num_returns: int | str | None,
        **options: Unpack[TaskOptions],
    ) -> Any: ...
    @also_named(func="fn")
    def submit_task_async(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        *,
        num_returns: int | str | None = None,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """The same without waiting: a handle; with ``num_returns`` above 1 a list of handles, with 0 None, for a
        generator an ObjectRefGenerator. Raises ConfigurationError, TaskSubmissionError."""
        handle, number = self._submit(fn, args, kwargs, resource_requirements, tags, num_returns, options, False)
        handle._runtime.throttle()
        return handle if number == 1 else returned_handles(handle, number)

    def _submit(
        self, fn: Any, args: Any, kwargs: Any, needs: Any, tags: Any, returns: Any, options: TaskOptions, waits: bool
    ) -> tuple[TaskHandle, int]:
        """The handle of the item, and how many values it returns."""
        runtime, submission = self._started()
        template = submission.template(fn, needs, tags, returns, options)
        if waits:
            check_can_wait(template.num_returns, template.name)
        task, arguments = submission.build_task(template, *check_arguments(args, kwargs, template.name))
        return TaskHandle(runtime.submit(task, arguments), runtime), template.num_returns

    def put(self, value: object) -> ObjectHandle:
        """Store a value for tasks and actors: pickled once, shipped once to each cluster that needs it. Home paths in
        it are not converted, unlike in arguments. Raises TaskSubmissionError if it cannot be pickled."""
        if isinstance(value, Handle):
            raise ConfigurationError(f"put was given the handle {value.id}.", next_step="pass the handle itself on")
        runtime, _ = self._started()
        return ObjectHandle(*pickled(value, f"the value given to put, a {type(value).__qualname__},"), runtime)

    def get(
        self, handles: Handle | Sequence[Handle], timeout: float | None = None, *, progress: bool | None = None
    ) -> Any:
        """Return the value of one handle, or of many in order; ``timeout`` is for all together. Raises the first error
        at once; TaskTimeoutError. ``progress`` shows a progress bar on stderr."""
        return collecting.get(handles, timeout, progress=progress)

    def wait(
        self, handles: Sequence[H], num_returns: int = 1, timeout: float | None = None, *, progress: bool | None = None
    ) -> tuple[list[H], list[H]]:
        """Wait until ``num_returns`` items have ended, or the timeout; returns (up to so many that ended, the rest)."""
        return collecting.wait(handles, num_returns, timeout, progress=progress)

    def cancel(self, item: str | Handle | ActorHandle, *, force: bool = False, recursive: bool = True) -> bool:
        """Cancel an item by its id or handle, in any state; an actor is killed. False: it had ended already. Raises
        UnknownItemError, ConfigurationError for anything else."""
        check_recursive(recursive)
        check_what_to_cancel(item)
        if isinstance(item, (Handle, ObjectRefGenerator)):
            return item.cancel(force=force)
        if isinstance(item, ActorHandle):
            return item._rmcs_end()
        runtime = self._running_control_plane(item)
        actor = None if self._actors is None else self._actors.find(item)
        if actor is not None:
            return actor._rmcs_end()
        if runtime.is_call(item):
            return runtime.cancel_call(item, force=force)
        item = runtime.scheduled_item_id(item)
        runtime.check_known(item)
        return runtime.cancel(item, "cancelled by the caller", force=force)

    def explain(self, item_id: str | Handle | ActorHandle) -> dict[str, Any]:
        """Return state, reason and history of an item or actor call, given by id or handle; prints as text. Raises
        UnknownItemError, ConfigurationError for anything else."""
        if isinstance(item_id, Handle):
            return item_id.explain()
        if isinstance(item_id, ActorHandle):
            return type(item_id).explain(item_id)
        item_id = item_id_of(item_id, "explain")
        return self._running_control_plane(item_id).explain(item_id)

    def plan(
        self, resource_requirements: Mapping[str, Any] | None = None, *, kind: str = "task", **options: Any
    ) -> SchedulingDecision:
        """Decide where a task, an actor or a job (``kind``) would be placed now, and why, without submitting it.
        Queries every cluster first. The decision prints as a table. Raises ConfigurationError."""
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
                return submission.task(placeholder_task, **options)[0]
            case "actor":
                needs, tags = options.pop("resource_requirements"), options.pop("tags", None)
                return self._with_actors().describe(PlaceholderActor, needs, tags, options)
            case "job":
                return submission.job("true", **options)
        raise ConfigurationError(f"kind is {kind!r}.", next_step='give "task", "actor" or "job"')

    # Jobs -----------------------------------------------------------------------------------------------

    @also_named(job_id="submission_id")
    def submit_job(self, entrypoint: str, **options: Unpack[JobOptions]) -> str:
        """Submit a Ray job and return its id once it is accepted; see :meth:`submit_job_async`."""
        handle = self.submit_job_async(entrypoint, **options)
        handle._runtime.accepted_item(handle.id)
        if handle.state.terminal and handle.attempt == 0 and (error := handle.exception()) is not None:
            raise error  # e.g. refused by the service
        return handle.id

    @also_named(job_id="submission_id")
    def submit_job_async(self, entrypoint: str, **options: Unpack[JobOptions]) -> JobHandle:
        """Submit a Ray job. The same ``submission_id`` again is the same job. Raises ConfigurationError."""
        runtime, submission = self._started()
        return JobHandle(check_own_id(runtime.submit(submission.job(entrypoint, **options)), options), runtime)

    def _check_cluster(self, name: str | None) -> None:
        if name is not None:
            self._started()[0].check_cluster(checked_name(name, "cluster_name"))

    def job_info(self, job_id: str) -> dict[str, Any]:
        """Status, cluster, attempt and times of a job. Raises UnknownItemError."""
        return self._running_control_plane(job_id).job_info(job_id)

    def list_jobs(self, status: str | None = None) -> list[dict[str, Any]]:
        """All jobs of this control plane, oldest first; ``status`` selects one status."""
        runtime = self._running()
        rows = [] if runtime is None else runtime.job_rows()
        return [row for row in rows if status in (None, row["status"])]

    def job_logs(self, job_id: str) -> str:
        """Output of the newest attempt of a job; empty while it waits. Raises ClusterConnectionError."""
        return self._running_control_plane(job_id).job_log(job_id)

    def follow_job_logs(self, job_id: str) -> Iterator[str]:
        """Iterate over the output of a job until it ends."""
        return self._running_control_plane(job_id).follow_job_log(job_id)

    def wait_for_a_job(self, job_ids: Sequence[str], timeout: float) -> None:
        """Wait until one of these jobs has ended, or the timeout."""
        wait_for([self.handle(job_id)._item for job_id in job_ids], 1, timeout)

    # Actors and gangs -----------------------------------------------------------------------------------

    @also_named(actor_class="cls")
    def submit_actor(
        self,
        cls: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        **options: Unpack[ActorOptions],
    ) -> ActorHandle:
        """Create an actor on the best cluster and return its handle once it is ready. Raises the constructor's error, a
        SchedulerError, or TaskTimeoutError: it is ended if not ready ``ready_timeout`` seconds after its dispatch."""
        return self._with_actors().submit(cls, args, kwargs, resource_requirements, tags, options, wait=True)

    @also_named(actor_class="cls")
    def submit_actor_async(
        self,
        cls: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        **options: Unpack[ActorOptions],
    ) -> ActorHandle:
        """The same without waiting; methods can be called at once. With lifetime="detached" it first checks, for a few
        seconds at most, that the name is free. Raises ConfigurationError, TaskSubmissionError."""
        return self._with_actors().submit(cls, args, kwargs, resource_requirements, tags, options)

    def get_actor(self, name: str, namespace: str | None = None) -> ActorHandle:
        """A living actor by its name: of this program, or detached on any cluster. Raises UnknownItemError."""
        check_namespace(namespace)
        return self._with_actors().get(name)

    def kill(self, actor: ActorHandle, *, no_restart: bool = True) -> None:
        """End an actor now; unanswered calls fail. Raises ConfigurationError for anything else."""
        kill(actor, no_restart=no_restart)

    def list_actors(self) -> list[dict[str, Any]]:
        """All actors of this program within retention, oldest first."""
        runtime = self._running()
        return [] if runtime is None else runtime.actor_rows()

    @also_named(actor_class="cls")
    def deploy(
        self,
        cls: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        *,
        name: str,
        replicas: int = 1,
        max_batch: int = 1,
        batch_wait_ms: float = 5.0,
        concurrency: int = 1,
        **options: Any,
    ) -> Deployment:
        """Serve a class with ``infer`` or ``__call__`` by replicas, which are actors with these ``options``; returns at
        once. With ``max_batch`` above 1 the class takes a list of inputs and returns a list. A replica that dies is
        replaced. In a service the deployment outlives the program. Raises ConfigurationError, TaskSubmissionError."""
        from ray_multicluster_scheduler.app.client_api import deployments  # noqa: PLC0415 - loads the serving layer

        made = deployments.deployment_options(
            name=name, replicas=replicas, max_batch=max_batch, batch_wait_ms=batch_wait_ms, concurrency=concurrency
        )
        runtime, submission = self._started()
        actors = ActorSubmission(runtime.settings, runtime.clock, runtime.homes, submission.new_id)
        new = deployments.replica_template(actors, cls, args, kwargs, resource_requirements, tags, made, options)
        with self._lock:
            mine = self._deployments = self._deployments or deployments.deployments_of(runtime)
        mine.start(mine.deploy(made, new)).result()
        return Deployment(name, mine)

    def submit_gang(
        self,
        members: Iterable[Any],
        *,
        strategy: Strategy = "PACK",
        tags: Sequence[str] | None = None,
        **options: Unpack[GangOptions],
    ) -> list[Any]:
        """Start all ``members`` together on one cluster, in one placement group, or none of them.

        Functions: waits for all and returns their values in order; the first failure ends the others and is raised.
        Classes: waits until all actors are ready and returns their handles; when one ends, all end. Raises
        SchedulerError.
        """
        made = self.submit_gang_async(members, strategy=strategy, tags=tags, **options)
        if isinstance(made, TaskHandle):
            values: list[Any] = made.result()
            return values
        return [ActorHandle.ready(handle) for handle in made]

    def submit_gang_async(
        self,
        members: Iterable[Any],
        *,
        strategy: Strategy = "PACK",
        tags: Sequence[str] | None = None,
        **options: Unpack[GangOptions],
    ) -> Any:
        """The same without waiting: for functions one handle, whose result is the list; for classes the actor handles,
        which accept calls at once. Raises ConfigurationError, TaskSubmissionError."""
        runtime, submission = self._started()
        described = GangSubmission(runtime.settings, runtime.clock, runtime.homes, submission.new_id)
        new = described.describe(members, strategy, tags, options)
        gang = new.task.gang
        item = runtime.submit(new.put_payloads(runtime.payload_cache), new.arguments)
        if gang is not None and gang.of == "actor":
            return handles_of(item, runtime, [part.methods for part in new.parts])
        handle = TaskHandle(item, runtime)
        runtime.throttle()
        return handle

    # Clusters -------------------------------------------------------------------------------------------

    def list_clusters(self, *, refresh: bool = False) -> list[dict[str, Any]]:
        """One row per cluster; ``refresh`` queries all clusters first, in parallel."""
        return ClusterRows(self._started()[0].cluster_rows(None if refresh else ()))

    def cluster_info(self, name: str) -> dict[str, Any]:
        """The row of one cluster, queried now. Raises ConfigurationError for an unknown name."""
        runtime, _ = self._started()
        runtime.check_cluster(name)
        return next(row for row in ClusterRows(runtime.cluster_rows([name])) if row["name"] == name)

    def fleet_resources(self) -> dict[str, dict[str, float]]:
        """Total and free resources of all clusters that answer now."""
        sums: dict[str, dict[str, float]] = {"total": {}, "free": {}}
        for row in self.list_clusters(refresh=True):
            for part, amounts in sums.items():
                for name, amount in (row[part] or {}).items() if row["state"] in explanation.ANSWERING else ():
                    amounts[name] = amounts.get(name, 0.0) + amount
        return sums

    def nodes(self) -> list[dict[str, Any]]:
        """Every node of the clusters that answer now, with its cluster, in Ray's format."""
        up = [row["name"] for row in self.list_clusters(refresh=True) if row["state"] in explanation.ANSWERING]
        return self._started()[0].node_rows(up)

    def use_runtime_env(self, runtime_env: Mapping[str, Any]) -> None:
        """Set a runtime_env for all later submissions, merged between the cluster's and the item's own.

        Raises ConfigurationError; also after the first submission.
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

    def cordon(self, cluster: str, reason: str = "") -> None:
        """Close a cluster for new work until :meth:`uncordon`; prefetched items are recalled, running ones continue.
        ``reason`` is shown to users. Raises ConfigurationError for an unknown cluster, as the next methods do."""
        self._cordon(cluster, cordoned=True, reason=reason)

    def uncordon(self, cluster: str) -> None:
        """Undo :meth:`cordon` and :meth:`drain`."""
        self._cordon(cluster, cordoned=False)

    def drain(self, cluster: str, timeout: float | None = None, reason: str = "") -> bool:
        """Cordon a cluster and wait until it has none of our items: True, or False after ``timeout`` seconds. Raises
        SchedulerError when the cluster is uncordoned before that."""
        if timeout is not None and (type(timeout) not in (int, float) or not timeout >= 0):
            raise ConfigurationError(
                f"timeout is {timeout!r}.", next_step="give seconds, 0 or more, or None for no limit"
            )
        runtime = self._cordon(cluster, cordoned=True, reason=reason)
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while not (drained := runtime.is_drained(cluster)):
            if time.monotonic() >= deadline:
                return False
            if drained is None:
                raise SchedulerError(
                    f"Cluster {cluster!r} was not drained: it was uncordoned meanwhile.",
                    cluster=cluster,
                    next_step="drain it again, if it should stay empty",
                )
            time.sleep(_POLL_S)
        return True

    def declare_dead(self, cluster: str, reason: str = "", *, force: bool = False) -> list[str]:
        """Declare that a cluster is dead: settle its items now instead of after ``lost_after_s``; returns their ids.

        Items that may run again go elsewhere; others (a job without ``retry_lost``) fail with ClusterLostError. The
        cluster takes no work before it answers again; superseded attempts that still run there are then cancelled.
        Raises SchedulerError for a cluster that answers, unless ``force``; ConfigurationError for an unknown one.
        """
        checked_name(cluster, "cluster")
        return self._started()[0].declare_dead(cluster, checked_reason(reason), force=force)

    def _cordon(self, cluster: str, *, cordoned: bool, reason: str = "") -> ControlPlane:
        runtime, _ = self._started()
        runtime.check_cluster(checked_name(cluster, "cluster"))
        runtime.post_user_event(scheduler_events.CordonChanged(cluster, cordoned, checked_reason(reason)))
        return runtime

    def events(
        self,
        *,
        types: TextOrTexts = None,
        id: TextOrTexts = None,  # noqa: A002 - the name of the field
        owner: TextOrTexts = None,
        cluster: TextOrTexts = None,
        state: TextOrTexts = None,
        kind: TextOrTexts = None,
        since: int | None = None,
    ) -> EventIterator:
        """Live events: iterate with `for` or `async for`. Every filter given has to match, each by any of its words;
        ``types`` are transition, decision, cluster, action, pool_changed (the default), telemetry, preempted and
        resumed (see docs/events.md). With ``since``,
        the number of an event, known events after it come first. Raises ConfigurationError."""
        given = {"types": types, "id": id, "owner": owner, "cluster": cluster, "state": state, "kind": kind}
        if since is not None and (isinstance(since, bool) or not isinstance(since, int) or since < 0):
            raise ConfigurationError(f"since is {since!r}.", next_step="give the number of an event")
        return self._started()[0].events(EventFilter.parse(given), since)

    def on_event(self, hear: EventCallback, *, since: int | None = None, **wanted: TextOrTexts) -> EventListener:
        """Call ``hear`` (or await its result) with each matching event (see :meth:`events`) until the scheduler ends or
        the returned listener is closed. An exception of ``hear`` is logged and ends the listener."""
        if not callable(hear):
            raise ConfigurationError(f"{hear!r} cannot be called.", next_step="give a function")
        return EventListener(self.events(since=since, **wanted), hear)

    # The program ----------------------------------------------------------------------------------------

    def unfinished(self) -> list[Item]:
        """The items that this program submitted and that have not ended."""
        return [] if (runtime := self._runtime) is None else runtime.unfinished()

    def shutdown(self, *, drain: bool = False) -> None:
        """End this scheduler: with ``drain`` after all work has ended, else unfinished work is cancelled. Idempotent.

        Items submitted during the shutdown are drained, too, or refused; later ones start a new control plane.
        """
        runtime = self._runtime
        if runtime is None:
            return
        try:
            if self._deployments is not None:
                self._deployments.close()
            if drain:
                abandon_generators(runtime)
            runtime.shutdown(drain=drain, interrupted=program.interrupted)
        finally:
            with self._lock:
                if self._runtime is runtime:
                    self._runtime = self._submission = self._actors = self._deployments = None
                    program.running.discard(self)

    def cleanup(self) -> None:
        """Wait for all work and end this scheduler; work of a service continues. As at the end of a ``with`` block."""
        self._leave(drain=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._leave(drain=kind is None)

    def _leave(self, *, drain: bool) -> None:
        """End the scheduler: embedded, wait for its work (``drain``) or cancel it (after an exception); with a service,
        leave it running."""
        self.shutdown(drain=drain and not (self._runtime is not None and self._runtime.outlives_program))

    def handle(self, item_id: str) -> TaskHandle | JobHandle | ActorHandle:
        """The handle of an unfinished item. Raises UnknownItemError."""
        runtime = self._running_control_plane(item_id)
        actor = None if self._actors is None else self._actors.find(item_id)
        if actor is not None:
            return actor
        item = runtime.item(item_id)
        if item is None or item.task.kind == "actor":
            raise UnknownItemError(f"There is no item {item_id!r} in progress here.", task_id=item_id)
        return JobHandle(item, runtime) if item.task.kind == "job" else TaskHandle(item, runtime)

    def _running_control_plane(self, item_id: str) -> ControlPlane:
        """Return the running control plane; a new one would not know the item. Raises UnknownItemError."""
        runtime = self._running()
        if runtime is None:
            raise explanation.unknown_item(item_id)
        return runtime

    def _running(self) -> ControlPlane | None:
        """Return the control plane if it runs; connects to a service if needed."""
        return self._runtime if self.address is None else self._started()[0]

    def _started(self) -> tuple[ControlPlane, Submission]:
        if program.exiting():
            raise SchedulerError(
                "The interpreter is shutting down, so no work can be submitted.",
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
                self._runtime.children = ChildActors(self._runtime, self._with_actors)
                self._submission = Submission(
                    self._runtime.settings,
                    self._runtime.payload_cache,
                    self._runtime.clock,
                    self._control_plane,
                    self._runtime.homes,
                )
                program.running.add(self)
            return self._runtime, self._submission

    def _forked(self) -> None:
        """In the child of a fork the threads do not exist: the next call starts a new control plane."""
        self._lock = threading.Lock()
        self._runtime = self._submission = self._actors = self._deployments = None

    def _with_actors(self) -> Actors:
        runtime, submission = self._started()
        with self._lock:
            if self._actors is not None:
                return self._actors
            new = ActorSubmission(runtime.settings, runtime.clock, runtime.homes, submission.new_id)
            if isinstance(runtime, RemoteRuntime):
                self._actors = RemoteActors(runtime, new)
            else:
                assert isinstance(runtime, Runtime)
                self._actors = EmbeddedActors(runtime, new)
            return self._actors

    def _item(self, item: ItemRef, verb: str) -> tuple[ControlPlane, str]:
        task_id = item_id_of(item, verb)
        if isinstance(item, Handle):
            return item._runtime, task_id
        if isinstance(item, ActorHandle):
            return item._rmcs_runtime, task_id
        runtime = self._running_control_plane(task_id)
        if runtime.is_call(task_id):
            raise ConfigurationError(
                f"{task_id} is a call of an actor's method, which waits with its actor and not in a queue.",
                task_id=task_id,
                next_step=f"use {verb} with items: tasks, actors and jobs",
            )
        task_id = runtime.scheduled_item_id(task_id)
        if runtime.accepted_item(task_id) is None:
            runtime.check_known(task_id)
        return runtime, task_id


# Pickled by this name, which is NativeScheduler inside a cluster.
UnifiedScheduler.__module__ = "ray_multicluster_scheduler.app.client_api.unified_scheduler"
