"""The verbs of the package: each calls the method of the same name of the active scheduler.

That is the program's shared UnifiedScheduler, or inside a cluster the NativeScheduler. Generated from UnifiedScheduler
by scripts/generate_verbs.py: do not edit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from ray_multicluster_scheduler.app.client_api.argument_names import also_named
from ray_multicluster_scheduler.app.client_api.execution_context import active_scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any, Literal, TypeAlias, Unpack

    from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
    from ray_multicluster_scheduler.app.client_api.arguments.objects import ObjectHandle
    from ray_multicluster_scheduler.app.client_api.deployment import Deployment
    from ray_multicluster_scheduler.app.client_api.handles.handle import Handle, JobHandle, TaskHandle
    from ray_multicluster_scheduler.app.client_api.options import (
        ActorOptions,
        GangOptions,
        JobOptions,
        LimitOptions,
        TaskOptions,
    )
    from ray_multicluster_scheduler.common.model import SchedulingDecision
    from ray_multicluster_scheduler.common.model.gang_description import Strategy
    from ray_multicluster_scheduler.control_plane.runtime.event_iterator import (
        EventCallback,
        EventIterator,
        EventListener,
    )

    ItemRef: TypeAlias = str | Handle | ActorHandle

    TextOrTexts: TypeAlias = str | Iterable[str] | None


@also_named(func="fn")
def submit_task(
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
    return active_scheduler().submit_task(
        fn, args, kwargs, resource_requirements, tags, num_returns=num_returns, **options
    )


@overload
def submit_task_async(
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
    call: Callable[..., Any] = active_scheduler().submit_task_async
    return call(fn, args, kwargs, resource_requirements, tags, num_returns=num_returns, **options)


def put(value: object) -> ObjectHandle:
    """Store a value for tasks and actors: pickled once, shipped once to each cluster that needs it. Home paths in
    it are not converted, unlike in arguments. Raises TaskSubmissionError if it cannot be pickled."""
    return active_scheduler().put(value)


@also_named(job_id="submission_id")
def submit_job(entrypoint: str, **options: Unpack[JobOptions]) -> str:
    """Submit a Ray job and return its id once it is accepted; see `submit_job_async`."""
    return active_scheduler().submit_job(entrypoint, **options)


@also_named(job_id="submission_id")
def submit_job_async(entrypoint: str, **options: Unpack[JobOptions]) -> JobHandle:
    """Submit a Ray job. The same ``submission_id`` again is the same job. Raises ConfigurationError."""
    return active_scheduler().submit_job_async(entrypoint, **options)


@also_named(submission_id="job_id")
def get_job_status(job_id: str, cluster_name: str | None = None) -> str:
    """The status: Ray's PENDING, RUNNING, STOPPED, SUCCEEDED, FAILED, or QUEUED, RETRYING, LOST, EXPIRED.

    The id alone finds the job: ``cluster_name``, from earlier versions, only has to be a cluster. Raises
    UnknownItemError, ConfigurationError.
    """
    return active_scheduler().get_job_status(job_id, cluster_name)


@also_named(submission_id="job_id")
def get_job_info(job_id: str, cluster_name: str | None = None) -> dict[str, Any]:
    """Status, cluster, attempt, times, and Ray's own submission id; arguments and errors as for
    `get_job_status`."""
    return active_scheduler().get_job_info(job_id, cluster_name)


@overload
def get_job_logs(job_id: str, follow: Literal[False] = False) -> str: ...


@overload
def get_job_logs(job_id: str, follow: Literal[True]) -> Iterator[str]: ...


def get_job_logs(job_id: str, follow: bool = False) -> str | Iterator[str]:
    """A job's output so far; with ``follow`` an iterator over its output until the job ends."""
    call: Callable[..., str | Iterator[str]] = active_scheduler().get_job_logs
    return call(job_id, follow)


@also_named(submission_id="job_id")
def stop_job(job_id: str, cluster_name: str | None = None) -> bool:
    """Stop a queued or running job. False if it had ended already. Arguments and errors as for
    `get_job_status`."""
    return active_scheduler().stop_job(job_id, cluster_name)


def list_jobs(status: str | None = None) -> list[dict[str, Any]]:
    """All jobs of this control plane, oldest first; ``status`` selects one status."""
    return active_scheduler().list_jobs(status)


@also_named(submission_ids="ids")
def wait_for_all_jobs(
    ids: Sequence[str],
    check_interval: float = 5,
    timeout: float | None = None,
    *,
    stop_on_failure: bool = False,
    raise_on_failure: bool = True,
) -> dict[str, str]:
    """Wait until all jobs have ended; returns the last status of each.

    Every ``check_interval`` seconds it prints on stderr what it waits for, if that has changed. One failed job does
    not stop the others, unless ``stop_on_failure``. Raises JobsFailedError at the end if a job failed, unless
    ``raise_on_failure=False``; TaskTimeoutError. Ctrl+C stops what this program submitted.
    """
    return active_scheduler().wait_for_all_jobs(
        ids, check_interval, timeout, stop_on_failure=stop_on_failure, raise_on_failure=raise_on_failure
    )


@also_named(actor_class="cls")
def submit_actor(
    cls: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    resource_requirements: Mapping[str, Any] | None = None,
    tags: Sequence[str] | None = None,
    **options: Unpack[ActorOptions],
) -> ActorHandle:
    """Create an actor on the best cluster and return its handle once it is ready. Raises the constructor's error, a
    SchedulerError, or TaskTimeoutError: it is ended if not ready ``ready_timeout`` seconds after its dispatch."""
    return active_scheduler().submit_actor(cls, args, kwargs, resource_requirements, tags, **options)


@also_named(actor_class="cls")
def submit_actor_async(
    cls: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    resource_requirements: Mapping[str, Any] | None = None,
    tags: Sequence[str] | None = None,
    **options: Unpack[ActorOptions],
) -> ActorHandle:
    """The same without waiting; methods can be called at once. With lifetime="detached" it first checks, for a few
    seconds at most, that the name is free. Raises ConfigurationError, TaskSubmissionError."""
    return active_scheduler().submit_actor_async(cls, args, kwargs, resource_requirements, tags, **options)


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """A living actor by its name: of this program, or detached on any cluster. Raises UnknownItemError."""
    return active_scheduler().get_actor(name, namespace)


def list_actors() -> list[dict[str, Any]]:
    """All actors of this program within retention, oldest first."""
    return active_scheduler().list_actors()


def submit_gang(
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
    return active_scheduler().submit_gang(members, strategy=strategy, tags=tags, **options)


def submit_gang_async(
    members: Iterable[Any],
    *,
    strategy: Strategy = "PACK",
    tags: Sequence[str] | None = None,
    **options: Unpack[GangOptions],
) -> Any:
    """The same without waiting: for functions one handle, whose result is the list; for classes the actor handles,
    which accept calls at once. Raises ConfigurationError, TaskSubmissionError."""
    return active_scheduler().submit_gang_async(members, strategy=strategy, tags=tags, **options)


@also_named(actor_class="cls")
def deploy(
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
    return active_scheduler().deploy(
        cls,
        args,
        kwargs,
        resource_requirements,
        tags,
        name=name,
        replicas=replicas,
        max_batch=max_batch,
        batch_wait_ms=batch_wait_ms,
        concurrency=concurrency,
        **options,
    )


def explain(item_id: str | Handle | ActorHandle) -> dict[str, Any]:
    """Return state, reason and history of an item or actor call, given by id or handle; prints as text. Raises
    UnknownItemError, ConfigurationError for anything else."""
    return active_scheduler().explain(item_id)


def plan(
    resource_requirements: Mapping[str, Any] | None = None, *, kind: str = "task", **options: Any
) -> SchedulingDecision:
    """Decide where a task, an actor or a job (``kind``) would be placed now, and why, without submitting it.
    Queries every cluster first. The decision prints as a table. Raises ConfigurationError."""
    return active_scheduler().plan(resource_requirements, kind=kind, **options)


def events(
    *,
    types: TextOrTexts = None,
    id: TextOrTexts = None,
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
    return active_scheduler().events(
        types=types, id=id, owner=owner, cluster=cluster, state=state, kind=kind, since=since
    )


def on_event(hear: EventCallback, *, since: int | None = None, **wanted: TextOrTexts) -> EventListener:
    """Call ``hear`` (or await its result) with each matching event (see `events`) until the scheduler ends or
    the returned listener is closed. An exception of ``hear`` is logged and ends the listener."""
    return active_scheduler().on_event(hear, since=since, **wanted)


def hold(item: ItemRef, reason: str = "") -> None:
    """Keep an item from starting until `release`; an attempt that was already sent continues. No effect on an
    ended item. Raises UnknownItemError."""
    active_scheduler().hold(item, reason)


def release(item: ItemRef) -> None:
    """Undo `hold`. Raises UnknownItemError."""
    active_scheduler().release(item)


def set_priority(item: ItemRef, priority: float) -> None:
    """Change the priority with which an item waits; higher numbers go first. Raises UnknownItemError."""
    active_scheduler().set_priority(item, priority)


def pause_queue(cluster: str | None = None, owner: str | None = None, reason: str = "") -> None:
    """Start no new items on a cluster, or of an owner, until `resume_queue`; running items continue.

    Raises ConfigurationError for an unknown cluster, or when not exactly one of the two is named.
    """
    active_scheduler().pause_queue(cluster, owner, reason)


def resume_queue(cluster: str | None = None, owner: str | None = None) -> None:
    """Undo `pause_queue`."""
    active_scheduler().resume_queue(cluster, owner)


def owner_limits(owner: str) -> dict[str, Any]:
    """The limits of an owner, by the names that `set_owner_limits` takes."""
    return active_scheduler().owner_limits(owner)


def set_owner_limits(owner: str, **limits: Unpack[LimitOptions]) -> None:
    """Replace the limits of an owner: ``weight``, ``max_queued``, ``max_running``, ``max_gpus``, ``max_priority``,
    or their defaults. Running items continue. With a service only admins may do this, and it survives restarts.
    Raises ConfigurationError."""
    active_scheduler().set_owner_limits(owner, **limits)


def reset_owner_limits(owner: str) -> None:
    """Undo `set_owner_limits`: the limits from the settings apply again."""
    active_scheduler().reset_owner_limits(owner)


def cordon(cluster: str, reason: str = "") -> None:
    """Close a cluster for new work until `uncordon`; prefetched items are recalled, running ones continue.
    ``reason`` is shown to users. Raises ConfigurationError for an unknown cluster, as the next methods do."""
    active_scheduler().cordon(cluster, reason)


def uncordon(cluster: str) -> None:
    """Undo `cordon` and `drain`."""
    active_scheduler().uncordon(cluster)


def drain(cluster: str, timeout: float | None = None, reason: str = "") -> bool:
    """Cordon a cluster and wait until it has none of our items: True, or False after ``timeout`` seconds. Raises
    SchedulerError when the cluster is uncordoned before that."""
    return active_scheduler().drain(cluster, timeout, reason)


def declare_dead(cluster: str, reason: str = "", *, force: bool = False) -> list[str]:
    """Declare that a cluster is dead: settle its items now instead of after ``lost_after_s``; returns their ids.

    Items that may run again go elsewhere; others (a job without ``retry_lost``) fail with ClusterLostError. The
    cluster takes no work before it answers again; superseded attempts that still run there are then cancelled.
    Raises SchedulerError for a cluster that answers, unless ``force``; ConfigurationError for an unknown one.
    """
    return active_scheduler().declare_dead(cluster, reason, force=force)


def list_clusters(*, refresh: bool = False) -> list[dict[str, Any]]:
    """One row per cluster; ``refresh`` queries all clusters first, in parallel."""
    return active_scheduler().list_clusters(refresh=refresh)


def cluster_info(name: str) -> dict[str, Any]:
    """The row of one cluster, queried now. Raises ConfigurationError for an unknown name."""
    return active_scheduler().cluster_info(name)


def fleet_resources() -> dict[str, dict[str, float]]:
    """Total and free resources of all clusters that answer now."""
    return active_scheduler().fleet_resources()
