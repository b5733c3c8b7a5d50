"""AsyncVerbs: the verbs of AsyncScheduler that call the method of the same name in a thread.

Generated from UnifiedScheduler by scripts/generate_verbs.py: do not edit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from ray_multicluster_scheduler.app.client_api.blocking_call_threads import BlockingCallThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, TypeAlias, Unpack

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
    from ray_multicluster_scheduler.app.client_api.scheduler import UnifiedScheduler
    from ray_multicluster_scheduler.common.model import SchedulingDecision
    from ray_multicluster_scheduler.common.model.gang_description import Strategy
    from ray_multicluster_scheduler.control_plane.runtime.event_iterator import EventCallback, EventListener
    from ray_multicluster_scheduler.control_plane.runtime.item import Item

    ItemRef: TypeAlias = str | Handle | ActorHandle

    TextOrTexts: TypeAlias = str | Iterable[str] | None


class AsyncVerbs:
    """Every method is a coroutine with the arguments, the result and the errors of the method of UnifiedScheduler."""

    _scheduler: UnifiedScheduler
    _threads: BlockingCallThreads

    async def cancel(self, item: str | Handle | ActorHandle, *, force: bool = False, recursive: bool = True) -> bool:
        """Cancel an item by its id or handle, in any state; an actor is killed. False: it had ended already. Raises
        UnknownItemError, ConfigurationError for anything else."""
        return await self._threads.call(self._scheduler.cancel, item, force=force, recursive=recursive)

    async def cluster_info(self, name: str) -> dict[str, Any]:
        """The row of one cluster, queried now. Raises ConfigurationError for an unknown name."""
        return await self._threads.call(self._scheduler.cluster_info, name)

    async def cordon(self, cluster: str, reason: str = "") -> None:
        """Close a cluster for new work until `uncordon`; prefetched items are recalled, running ones continue.
        ``reason`` is shown to users. Raises ConfigurationError for an unknown cluster, as the next methods do."""
        await self._threads.call(self._scheduler.cordon, cluster, reason)

    async def declare_dead(self, cluster: str, reason: str = "", *, force: bool = False) -> list[str]:
        """Declare that a cluster is dead: settle its items now instead of after ``lost_after_s``; returns their ids."""
        return await self._threads.call(self._scheduler.declare_dead, cluster, reason, force=force)

    async def deploy(
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
        return await self._threads.run_on_own_thread(
            self._scheduler.deploy,
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

    async def drain(self, cluster: str, timeout: float | None = None, reason: str = "") -> bool:
        """Cordon a cluster and wait until it has none of our items: True, or False after ``timeout`` seconds. Raises
        SchedulerError when the cluster is uncordoned before that."""
        return await self._threads.run_on_own_thread(self._scheduler.drain, cluster, timeout, reason)

    async def explain(self, item_id: str | Handle | ActorHandle) -> dict[str, Any]:
        """Return state, reason and history of an item or actor call, given by id or handle; prints as text. Raises
        UnknownItemError, ConfigurationError for anything else."""
        return await self._threads.call(self._scheduler.explain, item_id)

    async def fleet_resources(self) -> dict[str, dict[str, float]]:
        """Total and free resources of all clusters that answer now."""
        return await self._threads.call(self._scheduler.fleet_resources)

    async def get_actor(self, name: str, namespace: str | None = None) -> ActorHandle:
        """A living actor by its name: of this program, or detached on any cluster. Raises UnknownItemError."""
        return await self._threads.call(self._scheduler.get_actor, name, namespace)

    async def get_job_info(self, job_id: str, cluster_name: str | None = None) -> dict[str, Any]:
        """Status, cluster, attempt, times, and Ray's own submission id; arguments and errors as for
        `get_job_status`."""
        return await self._threads.call(self._scheduler.get_job_info, job_id, cluster_name)

    async def get_job_status(self, job_id: str, cluster_name: str | None = None) -> str:
        """The status: Ray's PENDING, RUNNING, STOPPED, SUCCEEDED, FAILED, or QUEUED, RETRYING, LOST, EXPIRED."""
        return await self._threads.call(self._scheduler.get_job_status, job_id, cluster_name)

    async def handle(self, item_id: str) -> TaskHandle | JobHandle | ActorHandle:
        """The handle of an unfinished item. Raises UnknownItemError."""
        return await self._threads.call(self._scheduler.handle, item_id)

    async def hold(self, item: ItemRef, reason: str = "") -> None:
        """Keep an item from starting until `release`; an attempt that was already sent continues. No effect on an
        ended item. Raises UnknownItemError."""
        await self._threads.call(self._scheduler.hold, item, reason)

    async def job_info(self, job_id: str) -> dict[str, Any]:
        """Status, cluster, attempt and times of a job. Raises UnknownItemError."""
        return await self._threads.call(self._scheduler.job_info, job_id)

    async def job_logs(self, job_id: str) -> str:
        """Output of the newest attempt of a job; empty while it waits. Raises ClusterConnectionError."""
        return await self._threads.call(self._scheduler.job_logs, job_id)

    async def kill(self, actor: ActorHandle, *, no_restart: bool = True) -> None:
        """End an actor now; unanswered calls fail. Raises ConfigurationError for anything else."""
        await self._threads.call(self._scheduler.kill, actor, no_restart=no_restart)

    async def list_actors(self) -> list[dict[str, Any]]:
        """All actors of this program within retention, oldest first."""
        return await self._threads.call(self._scheduler.list_actors)

    async def list_clusters(self, *, refresh: bool = False) -> list[dict[str, Any]]:
        """One row per cluster; ``refresh`` queries all clusters first, in parallel."""
        return await self._threads.call(self._scheduler.list_clusters, refresh=refresh)

    async def list_jobs(self, status: str | None = None) -> list[dict[str, Any]]:
        """All jobs of this control plane, oldest first; ``status`` selects one status."""
        return await self._threads.call(self._scheduler.list_jobs, status)

    async def nodes(self) -> list[dict[str, Any]]:
        """Every node of the clusters that answer now, with its cluster, in Ray's format."""
        return await self._threads.call(self._scheduler.nodes)

    async def on_event(self, hear: EventCallback, *, since: int | None = None, **wanted: TextOrTexts) -> EventListener:
        """Call ``hear`` (or await its result) with each matching event (see `events`) until the scheduler ends or
        the returned listener is closed. An exception of ``hear`` is logged and ends the listener."""
        return await self._threads.call(self._scheduler.on_event, hear, since=since, **wanted)

    async def owner_limits(self, owner: str) -> dict[str, Any]:
        """The limits of an owner, by the names that `set_owner_limits` takes."""
        return await self._threads.call(self._scheduler.owner_limits, owner)

    async def pause_queue(self, cluster: str | None = None, owner: str | None = None, reason: str = "") -> None:
        """Start no new items on a cluster, or of an owner, until `resume_queue`; running items continue."""
        await self._threads.call(self._scheduler.pause_queue, cluster, owner, reason)

    async def plan(
        self, resource_requirements: Mapping[str, Any] | None = None, *, kind: str = "task", **options: Any
    ) -> SchedulingDecision:
        """Decide where a task, an actor or a job (``kind``) would be placed now, and why, without submitting it.
        Queries every cluster first. The decision prints as a table. Raises ConfigurationError."""
        return await self._threads.call(self._scheduler.plan, resource_requirements, kind=kind, **options)

    async def put(self, value: object) -> ObjectHandle:
        """Store a value for tasks and actors: pickled once, shipped once to each cluster that needs it. Home paths in
        it are not converted, unlike in arguments. Raises TaskSubmissionError if it cannot be pickled."""
        return await self._threads.call(self._scheduler.put, value)

    async def release(self, item: ItemRef) -> None:
        """Undo `hold`. Raises UnknownItemError."""
        await self._threads.call(self._scheduler.release, item)

    async def reset_owner_limits(self, owner: str) -> None:
        """Undo `set_owner_limits`: the limits from the settings apply again."""
        await self._threads.call(self._scheduler.reset_owner_limits, owner)

    async def resume_queue(self, cluster: str | None = None, owner: str | None = None) -> None:
        """Undo `pause_queue`."""
        await self._threads.call(self._scheduler.resume_queue, cluster, owner)

    async def set_owner_limits(self, owner: str, **limits: Unpack[LimitOptions]) -> None:
        """Replace the limits of an owner: ``weight``, ``max_queued``, ``max_running``, ``max_gpus``, ``max_priority``,
        or their defaults. Running items continue. With a service only admins may do this, and it survives restarts.
        Raises ConfigurationError."""
        await self._threads.call(self._scheduler.set_owner_limits, owner, **limits)

    async def set_priority(self, item: ItemRef, priority: float) -> None:
        """Change the priority with which an item waits; higher numbers go first. Raises UnknownItemError."""
        await self._threads.call(self._scheduler.set_priority, item, priority)

    async def stop_job(self, job_id: str, cluster_name: str | None = None) -> bool:
        """Stop a queued or running job. False if it had ended already. Arguments and errors as for
        `get_job_status`."""
        return await self._threads.call(self._scheduler.stop_job, job_id, cluster_name)

    async def submit_actor(
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
        return await self._threads.run_on_own_thread(
            self._scheduler.submit_actor, cls, args, kwargs, resource_requirements, tags, **options
        )

    async def submit_actor_async(
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
        return await self._threads.call(
            self._scheduler.submit_actor_async, cls, args, kwargs, resource_requirements, tags, **options
        )

    async def submit_gang(
        self,
        members: Iterable[Any],
        *,
        strategy: Strategy = "PACK",
        tags: Sequence[str] | None = None,
        **options: Unpack[GangOptions],
    ) -> list[Any]:
        """Start all ``members`` together on one cluster, in one placement group, or none of them."""
        return await self._threads.run_on_own_thread(
            self._scheduler.submit_gang, members, strategy=strategy, tags=tags, **options
        )

    async def submit_gang_async(
        self,
        members: Iterable[Any],
        *,
        strategy: Strategy = "PACK",
        tags: Sequence[str] | None = None,
        **options: Unpack[GangOptions],
    ) -> Any:
        """The same without waiting: for functions one handle, whose result is the list; for classes the actor handles,
        which accept calls at once. Raises ConfigurationError, TaskSubmissionError."""
        return await self._threads.call(
            self._scheduler.submit_gang_async, members, strategy=strategy, tags=tags, **options
        )

    async def submit_job(self, entrypoint: str, **options: Unpack[JobOptions]) -> str:
        """Submit a Ray job and return its id once it is accepted; see `submit_job_async`."""
        return await self._threads.run_on_own_thread(self._scheduler.submit_job, entrypoint, **options)

    async def submit_job_async(self, entrypoint: str, **options: Unpack[JobOptions]) -> JobHandle:
        """Submit a Ray job. The same ``submission_id`` again is the same job. Raises ConfigurationError."""
        return await self._threads.call(self._scheduler.submit_job_async, entrypoint, **options)

    @overload
    async def submit_task_async(
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
    async def submit_task_async(
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

    async def submit_task_async(
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
        method: Callable[..., Any] = self._scheduler.submit_task_async
        return await self._threads.call(
            method, fn, args, kwargs, resource_requirements, tags, num_returns=num_returns, **options
        )

    async def uncordon(self, cluster: str) -> None:
        """Undo `cordon` and `drain`."""
        await self._threads.call(self._scheduler.uncordon, cluster)

    async def unfinished(self) -> list[Item]:
        """The items that this program submitted and that have not ended."""
        return await self._threads.call(self._scheduler.unfinished)

    async def use_runtime_env(self, runtime_env: Mapping[str, Any]) -> None:
        """Set a runtime_env for all later submissions, merged between the cluster's and the item's own."""
        await self._threads.call(self._scheduler.use_runtime_env, runtime_env)

    async def wait_for_a_job(self, job_ids: Sequence[str], timeout: float) -> None:
        """Wait until one of these jobs has ended, or the timeout."""
        await self._threads.run_on_own_thread(self._scheduler.wait_for_a_job, job_ids, timeout)
