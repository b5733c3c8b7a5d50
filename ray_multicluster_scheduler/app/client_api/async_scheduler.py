"""AsyncScheduler: the verbs of UnifiedScheduler as coroutines, embedded or with a service.

Most verbs are generated (``async_verbs.py``); here are those that wait on the event loop instead of in a thread. The
control plane is loaded when a scheduler is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api.async_verbs import AsyncVerbs
from ray_multicluster_scheduler.app.client_api.blocking_call_threads import BlockingCallThreads
from ray_multicluster_scheduler.app.client_api.job_verbs import AwaitedJobs, ended_jobs
from ray_multicluster_scheduler.common.current_item import cluster_here
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.runtime.event_iterator import EventDict, EventIterator

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.handles.handle import Handle
    from ray_multicluster_scheduler.app.client_api.options import TaskOptions
    from ray_multicluster_scheduler.app.client_api.scheduler import UnifiedScheduler
    from ray_multicluster_scheduler.control_plane.config import ClusterConfig, ConfigArgument, FleetConfig


class OpeningEvents:
    """The result of ``scheduler.events()``: use it with ``async for``, ``async with``, or ``await``, which raises
    errors of the subscription at once. For one reader at a time.

    The subscription starts once: if a first wait times out, the next one continues it without missing events.
    """

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, EventIterator]]) -> None:
        self._begin = begin
        self._beginning: asyncio.Future[EventIterator] | None = None
        self._closed = False

    async def _begun(self) -> EventIterator:
        if self._beginning is None:
            self._beginning = asyncio.ensure_future(self._begin())
        try:
            return await asyncio.shield(self._beginning)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._beginning = None  # the next use tries again
            raise

    def __await__(self) -> Generator[Any, None, EventIterator]:
        return self._begun().__await__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventDict:
        if self._closed:
            raise StopAsyncIteration
        return await anext(await self._begun())

    async def __aenter__(self) -> EventIterator:
        return await self._begun()

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the subscription. Idempotent."""
        self._closed = True
        if self._beginning is not None:
            self._beginning.add_done_callback(_close)


def _close(begun: asyncio.Future[EventIterator]) -> None:
    if not begun.cancelled() and begun.exception() is None:
        begun.result().close()


H = TypeVar("H", bound="Handle")


class AsyncScheduler(AsyncVerbs):
    """Every verb of UnifiedScheduler as a coroutine that does not block the loop. ``async with`` ends it as `with`.

    Handles can be awaited: ``await handle`` for a value, ``await actor`` until it is ready. ``handle.result()`` and
    ``handle.explain()`` block: use :meth:`get` and :meth:`explain`. Cancelling a coroutine does not cancel the work;
    :meth:`cancel` does. Not available inside clusters.
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
        """The arguments of UnifiedScheduler, or an existing ``scheduler``. Raises ConfigurationError."""
        cluster = cluster_here()
        if cluster is not None:
            raise ConfigurationError(
                f"AsyncScheduler cannot be used inside cluster {cluster!r}: the verbs are Ray's own calls there.",
                cluster=cluster,
                next_step="use the plain verbs, and await the handles that they return",
            )
        if scheduler is not None and (config, clusters, address, token, tls_ca) != (None,) * 5:
            raise ConfigurationError("Both a scheduler and a configuration were given.", next_step="give one of them")
        self._scheduler = scheduler or execution_context.scheduler_class()(
            config, clusters=clusters, address=address, token=token, tls_ca=tls_ca
        )
        self._threads = BlockingCallThreads()

    @property
    def address(self) -> str | None:
        """The address of its service; None with an embedded control plane."""
        return self._scheduler.address

    @property
    def config(self) -> FleetConfig:
        """Its configuration. Raises ConfigurationError with a service."""
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
        num_returns: int | str | None = None,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Run ``fn`` on the best cluster and return its value; raises what it raised, or a SchedulerError."""
        given = (fn, args, kwargs, resource_requirements, tags, num_returns, options, True)
        handle, number = await self._threads.call(self._scheduler._submit, *given)
        value = await handle
        return list(value) if number > 1 else value

    async def get(
        self, handles: Handle | Sequence[Handle], timeout: float | None = None, *, progress: bool | None = None
    ) -> Any:
        """Return the value of one handle, or of many in order. Raises the first error at once; TaskTimeoutError."""
        from ray_multicluster_scheduler.app.client_api.handles import async_collecting  # noqa: PLC0415 - outside only

        return await async_collecting.get(handles, timeout, progress, self._threads)

    async def wait(
        self, handles: Sequence[H], num_returns: int = 1, timeout: float | None = None, *, progress: bool | None = None
    ) -> tuple[list[H], list[H]]:
        """Wait until ``num_returns`` have ended, or the timeout; returns (up to so many that ended, the rest)."""
        from ray_multicluster_scheduler.app.client_api.handles import async_collecting  # noqa: PLC0415 - outside only

        return await async_collecting.wait(handles, num_returns, timeout, progress)

    # Jobs, clusters, events -----------------------------------------------------------------------------

    @overload
    def get_job_logs(self, job_id: str, follow: Literal[False] = False) -> Coroutine[Any, Any, str]: ...
    @overload
    def get_job_logs(self, job_id: str, follow: Literal[True]) -> AsyncIterator[str]: ...
    def get_job_logs(self, job_id: str, follow: bool = False) -> Coroutine[Any, Any, str] | AsyncIterator[str]:
        """``await`` it for a job's output so far; with ``follow``, ``async for`` over its output until it ends."""
        return self.follow_job_logs(job_id) if follow else self.job_logs(job_id)

    async def follow_job_logs(self, job_id: str) -> AsyncIterator[str]:
        """Iterate over the output of a job with `async for` until it ends."""
        pieces: Iterator[str] = await self._threads.call(self._scheduler.follow_job_logs, job_id)
        while (piece := await self._threads.run_on_own_thread(next, pieces, None)) is not None:
            yield piece

    async def wait_for_all_jobs(
        self,
        ids: Sequence[str],
        check_interval: float = 5,
        timeout: float | None = None,
        *,
        stop_on_failure: bool = False,
        raise_on_failure: bool = True,
    ) -> dict[str, str]:
        """Wait until all jobs have ended; returns their statuses. Cancelling the coroutine does not stop the jobs.
        Raises JobsFailedError if one failed, unless ``raise_on_failure=False``; TaskTimeoutError."""
        from ray_multicluster_scheduler.app.client_api.handles import async_collecting  # noqa: PLC0415 - outside only

        awaited = AwaitedJobs(ids, check_interval, timeout, stop_on_failure=stop_on_failure)
        while True:
            statuses = {job_id: await self.get_job_status(job_id) for job_id in awaited.ids}
            left = awaited.left(statuses)
            if not left:
                return ended_jobs(statuses, raise_on_failure=raise_on_failure)
            for job_id in awaited.to_stop(statuses):
                await self.cancel(job_id)
            pause_s = awaited.pause_s(statuses)
            handles = [await self.handle(job_id) for job_id in left]
            await async_collecting.wait_for_some([one._item for one in handles], 1, pause_s)

    async def cluster_resources(self) -> dict[str, float]:
        """Total resources of all clusters that answer now."""
        return (await self.fleet_resources())["total"]

    async def available_resources(self) -> dict[str, float]:
        """Free resources of all clusters that answer now."""
        return (await self.fleet_resources())["free"]

    def events(self, **wanted: Any) -> OpeningEvents:
        """Live events: ``async for event in scheduler.events(types="cluster")``; ``await`` it to subscribe now."""
        return OpeningEvents(partial(self._threads.call, self._scheduler.events, **wanted))

    # The program ----------------------------------------------------------------------------------------

    async def shutdown(self, *, drain: bool = False) -> None:
        """End it: with ``drain`` after all work has ended. Idempotent; continues if the coroutine is cancelled."""
        try:
            await self._threads.run_on_own_thread(self._scheduler.shutdown, drain=drain)
        finally:
            self._threads.close()

    async def cleanup(self) -> None:
        """Wait for all work and end this scheduler; work of a service continues. As at the end of a ``with`` block."""
        await self._leave(drain=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self._leave(drain=kind is None)

    async def _leave(self, *, drain: bool) -> None:
        try:
            await self._threads.run_on_own_thread(self._scheduler._leave, drain=drain)
        finally:
            self._threads.close()
