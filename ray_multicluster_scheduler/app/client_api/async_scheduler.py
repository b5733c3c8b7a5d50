"""AsyncScheduler: the verbs of a UnifiedScheduler for coroutines, with a control plane of its own or with a service.

Light on purpose: the control plane is loaded when one is made, and none is made inside a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api.async_verbs import AsyncVerbs
from ray_multicluster_scheduler.app.client_api.blocking_call_threads import BackThreads
from ray_multicluster_scheduler.common.current_item import cluster_here
from ray_multicluster_scheduler.common.exception import ConfigurationError

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
    from ray_multicluster_scheduler.app.client_api.arguments.objects import ObjectHandle
    from ray_multicluster_scheduler.app.client_api.embedded.embedded_scheduler import UnifiedScheduler
    from ray_multicluster_scheduler.app.client_api.handles.handle import Handle, JobHandle, TaskHandle
    from ray_multicluster_scheduler.app.client_api.options import ActorOptions, GangOptions, JobOptions, TaskOptions
    from ray_multicluster_scheduler.common.model.gang_description import Strategy
    from ray_multicluster_scheduler.control_plane.config import ClusterConfig, ConfigArgument, FleetConfig

H = TypeVar("H", bound="Handle")


class AsyncScheduler(AsyncVerbs):
    """Every verb is a coroutine with the arguments, values and errors of the verb of a UnifiedScheduler; none of them
    holds the loop up. ``async with`` ends it as `with` does that one.

    Handles are the same, and are awaited: ``await handle`` for a value, ``await actor`` until it is ready. What blocks
    of theirs is here, too: :meth:`get` instead of ``handle.result()``, :meth:`explain` instead of ``handle.explain()``.
    A coroutine that is cancelled while it awaits leaves the work alone; :meth:`cancel` ends it. Outside of clusters
    only.
    """

    def __init__(
        self,
        config: ConfigArgument = None,
        *,
        clusters: Sequence[ClusterConfig | Mapping[str, Any]] | None = None,
        address: str | None = None,
        token: str | None = None,
        tls_ca: str | Path | None = None,
        scheduler: UnifiedScheduler | None = None,
    ) -> None:
        """As a UnifiedScheduler; or with one that is there already. Raises ConfigurationError."""
        cluster = cluster_here()
        if cluster is not None:
            raise ConfigurationError(
                f"AsyncScheduler cannot be used inside of cluster {cluster!r}: the verbs are Ray's own calls there.",
                cluster=cluster,
                next_step="use the plain verbs, and await the handles that they return",
            )
        if scheduler is not None and (config, clusters, address, token, tls_ca) != (None,) * 5:
            raise ConfigurationError("A scheduler was given, and what to make one from.", next_step="give one of them")
        self._scheduler = scheduler or execution_context.embedded()(
            config, clusters=clusters, address=address, token=token, tls_ca=tls_ca
        )
        self._threads = BackThreads()

    @property
    def address(self) -> str | None:
        """Of its service; None if it has a control plane of its own."""
        return self._scheduler.address

    @property
    def config(self) -> FleetConfig:
        """What it was made from. Raises ConfigurationError where a service has it."""
        return self._scheduler.config

    # Tasks ----------------------------------------------------------------------------------------------

    async def submit_task(
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
        given = (fn, args, kwargs, resource_requirements, tags, num_returns, options)
        handle, number = await self._threads.call(self._scheduler._submit, *given)
        value = await handle
        return list(value) if number > 1 else value

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
        num_returns: int | None,
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
        num_returns: int | None = None,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """The same without waiting: a handle; with ``num_returns`` above 1 a list of as many, with 0 None."""
        submit: Callable[..., Any] = self._scheduler.submit_task_async
        given = (fn, args, kwargs, resource_requirements, tags)
        return await self._threads.call(submit, *given, num_returns=num_returns, **options)

    async def put(self, value: object) -> ObjectHandle:
        """Keep a value to be given to tasks and actors."""
        return await self._threads.call(self._scheduler.put, value)

    async def get(
        self, handles: Handle | Sequence[Handle], timeout: float | None = None, *, progress: bool | None = None
    ) -> Any:
        """The value of one handle, or the values of many in their order; raises the first error as soon as it is known;
        TaskTimeoutError."""
        from ray_multicluster_scheduler.app.client_api.handles import async_collecting  # noqa: PLC0415 - outside only

        return await async_collecting.get(handles, timeout, progress, self._threads)

    async def wait(
        self, handles: Sequence[H], num_returns: int = 1, timeout: float | None = None, *, progress: bool | None = None
    ) -> tuple[list[H], list[H]]:
        """Wait until ``num_returns`` of them are over, or the time is; returns (so many that are over, the rest)."""
        from ray_multicluster_scheduler.app.client_api.handles import async_collecting  # noqa: PLC0415 - outside only

        return await async_collecting.wait(handles, num_returns, timeout, progress)

    # Jobs, actors, gangs --------------------------------------------------------------------------------

    async def submit_job(self, entrypoint: str, **options: Unpack[JobOptions]) -> str:
        """Submit a Ray job and return its id once it is accepted."""
        return await self._threads.alone(self._scheduler.submit_job, entrypoint, **options)

    async def submit_job_async(self, entrypoint: str, **options: Unpack[JobOptions]) -> JobHandle:
        """The same, as a handle."""
        return await self._threads.call(self._scheduler.submit_job_async, entrypoint, **options)

    async def submit_actor(
        self,
        cls: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        **options: Unpack[ActorOptions],
    ) -> ActorHandle:
        """Make an actor on the best cluster and return its handle once it is ready."""
        submit = self._scheduler.submit_actor
        return await self._threads.alone(submit, cls, args, kwargs, resource_requirements, tags, **options)

    async def submit_actor_async(
        self,
        cls: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        **options: Unpack[ActorOptions],
    ) -> ActorHandle:
        """The same without waiting; ``await`` of the handle waits until it is ready."""
        submit = self._scheduler.submit_actor_async
        return await self._threads.call(submit, cls, args, kwargs, resource_requirements, tags, **options)

    async def submit_gang(
        self,
        members: Iterable[Any],
        *,
        strategy: Strategy = "PACK",
        tags: Sequence[str] | None = None,
        **options: Unpack[GangOptions],
    ) -> list[Any]:
        """Start all ``members`` together on one cluster, or none of them: their values, or the handles of actors."""
        submit = self._scheduler.submit_gang
        return await self._threads.alone(submit, members, strategy=strategy, tags=tags, **options)

    async def submit_gang_async(
        self,
        members: Iterable[Any],
        *,
        strategy: Strategy = "PACK",
        tags: Sequence[str] | None = None,
        **options: Unpack[GangOptions],
    ) -> Any:
        """The same without waiting: of functions one handle, of classes the actors' handles."""
        submit = self._scheduler.submit_gang_async
        return await self._threads.call(submit, members, strategy=strategy, tags=tags, **options)

    # The program ----------------------------------------------------------------------------------------

    async def shutdown(self, *, drain: bool = False) -> None:
        """End it: with ``drain`` after everything is over. Idempotent; it goes on if its coroutine is cancelled."""
        try:
            await self._threads.alone(self._scheduler.shutdown, drain=drain)
        finally:
            self._threads.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        try:
            await self._threads.alone(self._scheduler._leave, drain=kind is None)
        finally:
            self._threads.close()
