"""NativeScheduler: the verbs inside a job, task or actor, as plain Ray calls on the cluster where it runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Self

from ray_multicluster_scheduler.app.client_api.argument_names import also_named
from ray_multicluster_scheduler.app.client_api.in_cluster import (
    actors,
    cluster_info,
    get_wait,
    options,
    runtime_context,
)
from ray_multicluster_scheduler.app.client_api.in_cluster.actors import NativeActorHandle
from ray_multicluster_scheduler.app.client_api.in_cluster.generators import NativeDynamicHandle
from ray_multicluster_scheduler.app.client_api.in_cluster.handle import NativeObjectHandle, NativeTaskHandle, put_object
from ray_multicluster_scheduler.app.client_api.in_cluster.jobs import NativeJobHandle, NativeJobs
from ray_multicluster_scheduler.app.client_api.in_cluster.ray_callables import (
    DETACHED_NAMESPACE,
    RemoteCallable,
    RemoteCallables,
    own_namespace,
    parent_fields,
    submission_error,
)
from ray_multicluster_scheduler.app.client_api.in_cluster.unsupported import UnsupportedVerbs
from ray_multicluster_scheduler.app.client_api.job_verbs import JobVerbs
from ray_multicluster_scheduler.app.client_api.ray_shape.ray_arguments import (
    check_namespace,
    check_recursive,
    check_what_to_cancel,
)
from ray_multicluster_scheduler.common.current_item import CurrentItem
from ray_multicluster_scheduler.common.exception import ConfigurationError, TaskTimeoutError, UnknownItemError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model.decision import SchedulingDecision
from ray_multicluster_scheduler.common.notices import notify
from ray_multicluster_scheduler.common.several_returns import check_can_wait, check_num_returns
from ray_multicluster_scheduler.control_plane.runtime.job_status import ENDED

_log = get_logger(__name__)
READY_TIMEOUT_S = 300.0


class NativeScheduler(UnsupportedVerbs, NativeJobs, JobVerbs):
    """UnifiedScheduler inside a cluster, where Ray schedules: without a control plane, an agent or limits. It accepts a
    configuration, so that a program runs unchanged, and ignores it: all items stay on this cluster."""

    def __init__(self, config: object = None, *, clusters: object = None) -> None:
        item = runtime_context.item()
        _log.info("inside cluster %s, in item %s: the verbs are plain Ray calls here", item.cluster, item.id)
        self._remotes = RemoteCallables()
        self._children: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()

    # Verbs ----------------------------------------------------------------------------------------------

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
        **more: Any,
    ) -> Any:
        """Run ``fn`` as a task of this cluster and return its value; raises what it raised, or a SchedulerError."""
        plain = getattr(fn, "function", fn)
        declared = getattr(fn, "submit_options", {}).get("num_returns")
        check_can_wait(check_num_returns(num_returns or declared, plain), getattr(plain, "__qualname__", repr(plain)))
        handles = self.submit_task_async(fn, args, kwargs, resource_requirements, tags, num_returns=num_returns, **more)
        return None if handles is None else get_wait.get(handles)

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
        **more: Any,
    ) -> Any:
        """The same without waiting: a handle; with ``num_returns`` above 1 a list of them, with 0 None."""
        if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
            raise ConfigurationError(
                f"args is {type(args).__name__}, not a tuple or list.", next_step="write args=(x,) for one argument"
            )
        item = runtime_context.item()
        if num_returns is not None:
            more["num_returns"] = num_returns
        remote = self._remotes.of_function(fn, resource_requirements, more, item.cluster)
        refs = _submit(remote, item, args, kwargs)
        dynamic = (num_returns or getattr(fn, "submit_options", {}).get("num_returns")) == "dynamic"
        kind = NativeDynamicHandle if dynamic else NativeTaskHandle
        return self._track(actors.wrap_refs(refs, remote.name, item, kind))

    def submit_gang(self, members: object, *, strategy: str = "PACK", tags: object = None, **more: Any) -> NoReturn:
        """Raises ConfigurationError: not supported inside a cluster."""
        raise ConfigurationError(
            "submit_gang is not supported inside a cluster, where Ray schedules.",
            next_step="use ray.util.placement_group, or submit the gang from the program outside",
        )

    submit_gang_async = submit_gang

    @also_named(actor_class="cls")
    def submit_actor(
        self,
        cls: type,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        **more: Any,
    ) -> NativeActorHandle:
        """Make an actor on this cluster and wait until it is ready. Raises the constructor's exception.
        ``ready_timeout`` counts from now: Ray does not report when it has resources."""
        actor = self.submit_actor_async(cls, args, kwargs, resource_requirements, tags, **more)
        try:
            return NativeActorHandle.ready(actor, more.get("ready_timeout", READY_TIMEOUT_S))
        except TaskTimeoutError:
            NativeActorHandle.kill(actor)  # or it would start later, without a handle
            raise

    @also_named(actor_class="cls")
    def submit_actor_async(
        self,
        cls: type,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        **more: Any,
    ) -> NativeActorHandle:
        """The same without waiting. Unless detached, the actor ends with its last handle, as in Ray."""
        item = runtime_context.item()
        remote = self._remotes.of_class(cls, resource_requirements, more, item.cluster)
        actor = NativeActorHandle(_submit(remote, item, args, kwargs), remote.name, item, remote.methods)
        self._children[actor._id()] = actor
        return actor

    def get_actor(self, name: str, namespace: str | None = None) -> NativeActorHandle:
        """Find an actor of this cluster by name: of this item, or detached, made inside or outside. Raises
        UnknownItemError."""
        check_namespace(namespace)
        ray, item = runtime_context.connected_ray(), runtime_context.item()
        for place in (own_namespace(), DETACHED_NAMESPACE):
            try:
                return NativeActorHandle(ray.get_actor(name, place), name, item, {})
            except ValueError:
                continue
        return actors.find_actor(name)

    def kill(self, actor: Any, *, no_restart: bool = True) -> None:
        """Kill an actor."""
        if not isinstance(actor, NativeActorHandle):
            raise ConfigurationError(f"{actor!r} is not an actor.", next_step="pass what submit_actor returned")
        actor.kill(no_restart=no_restart)

    def list_actors(self) -> list[dict[str, Any]]:
        """The actors that this process created and still has handles of."""
        held = [one for one in list(self._children.values()) if isinstance(one, NativeActorHandle)]
        return [NativeActorHandle.explain(one) for one in held]

    def put(self, value: Any) -> NativeObjectHandle:
        """Store a value in the object store of this cluster."""
        return put_object(value, f"a {type(value).__name__}")

    def get(self, handles: Any, timeout: float | None = None, *, progress: bool | None = None) -> Any:
        """Return the value of one handle, or of many in order. Raises the first error; TaskTimeoutError. ``progress``
        is ignored."""
        return get_wait.get(handles, timeout)

    def wait(
        self,
        handles: Sequence[Any],
        num_returns: int = 1,
        timeout: float | None = None,
        *,
        progress: bool | None = None,
    ) -> tuple[list[Any], list[Any]]:
        """Wait until ``num_returns`` have ended, or the timeout; returns (up to so many that ended, the rest)."""
        return get_wait.wait(handles, num_returns, timeout)

    def cancel(self, item: Any, *, force: bool = False, recursive: bool = True) -> bool:
        """Cancel a child by its handle or id, with its own children. False: it had ended already. Raises
        UnknownItemError."""
        check_recursive(recursive)
        check_what_to_cancel(item)
        target = self.handle(item) if isinstance(item, str) else item
        if isinstance(target, NativeActorHandle):
            return target._rmcs_end()
        return bool(target.cancel(force=force))

    def explain(self, item_id: Any) -> dict[str, Any]:
        """Return its parent item, cluster and state. Raises UnknownItemError unless this process submitted it."""
        child = self.handle(item_id) if isinstance(item_id, str) else item_id
        if isinstance(child, NativeActorHandle):
            return NativeActorHandle.explain(child)
        if isinstance(child, (NativeTaskHandle, NativeJobHandle)):
            return child.explain()
        raise ConfigurationError(
            f"explain was given {item_id!r}, which is not an item.",
            next_step="give a handle that a verb returned, or its id",
        )

    def plan(
        self, resource_requirements: Mapping[str, Any] | None = None, *, kind: str = "task", **more: Any
    ) -> SchedulingDecision:
        """Decide whether this cluster has the resources for such a task, actor or job now."""
        item = runtime_context.item()
        options.check_place(more, item.cluster)
        if kind == "task":
            options.task_options(resource_requirements, more, item.cluster)
        elif kind == "actor":
            options.actor_options(resource_requirements, more, item.cluster)
        elif kind != "job":
            raise ConfigurationError(f"kind is {kind!r}.", next_step='give "task", "actor" or "job"')
        needs = options.requested(resource_requirements) if kind == "job" else options.task_needs(resource_requirements)
        return cluster_info.plan(needs, item.cluster)

    # This cluster ---------------------------------------------------------------------------------------

    def list_clusters(self, *, refresh: bool = False) -> list[dict[str, Any]]:
        """The row of this cluster, read now."""
        return [cluster_info.row(runtime_context.item().cluster)]

    def cluster_info(self, name: str) -> dict[str, Any]:
        """The row of this cluster. Raises ConfigurationError for another name."""
        own = runtime_context.item().cluster
        cluster_info.check_name(name, own)
        return cluster_info.row(own)

    def fleet_resources(self) -> dict[str, dict[str, float]]:
        """Total and free resources of this cluster."""
        row = cluster_info.row(runtime_context.item().cluster)
        return {"total": row["total"], "free": row["free"]}

    def nodes(self) -> list[dict[str, Any]]:
        """Every node of this cluster, as Ray reports it."""
        return cluster_info.nodes(runtime_context.item().cluster)

    def use_runtime_env(self, runtime_env: Mapping[str, Any]) -> None:
        """Set a runtime_env for all later tasks and actors; their own takes precedence."""
        self._remotes = RemoteCallables(runtime_env)

    # The program ----------------------------------------------------------------------------------------

    def unfinished(self) -> list[NativeJobHandle]:
        """The unfinished jobs of this item; tasks and actors end with this program."""
        item = runtime_context.item()
        rows = [row for row in self.list_jobs() if row["status"] not in ENDED]
        return [NativeJobHandle(row["job_id"], self, item) for row in rows]

    def shutdown(self, *, drain: bool = False) -> None:
        """Stop the jobs of this item, or with ``drain`` wait for them. Ray itself stays connected."""
        for job in self.unfinished():
            if drain:
                notify(f"waiting for {job.id} to end")
                job.exception()
            else:
                job.cancel()
                notify(f"{job.id} on {job.cluster}: stop requested")

    def cleanup(self) -> None:
        """Leave the submitted items running: they belong to Ray."""

    def handle(self, item_id: str) -> Any:
        """The handle of a child of this process. Raises UnknownItemError."""
        known = self._children.get(item_id)
        if known is not None:
            return known
        if any(row["job_id"] == item_id for row in self.list_jobs()):
            return NativeJobHandle(item_id, self, runtime_context.item())
        raise UnknownItemError(
            f"This process, inside cluster {runtime_context.item().cluster!r}, has no child {item_id!r}.",
            task_id=item_id,
            cluster=runtime_context.item().cluster,
            next_step="keep and use its handle; query items of programs from outside",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the submitted items running: they belong to Ray."""

    # Inside ---------------------------------------------------------------------------------------------

    def _check_cluster(self, name: str | None) -> None:
        if name is not None:
            cluster_info.check_name(name, runtime_context.item().cluster)

    def _track(self, handles: Any) -> Any:
        for one in handles if isinstance(handles, list) else () if handles is None else (handles,):
            self._children[one.id] = one
        return handles


def _submit(remote: RemoteCallable, item: CurrentItem, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
    """Call ``.remote()``. Raises TaskSubmissionError."""
    parent = (parent_fields(item),) if remote.takes_parent else ()
    given = [actors.as_argument(value) for value in args]
    named = {key: actors.as_argument(value) for key, value in (kwargs or {}).items()}
    try:
        return remote.target.remote(*parent, *given, **named)
    except Exception as error:
        raise submission_error(remote.name, item.cluster, error) from error
