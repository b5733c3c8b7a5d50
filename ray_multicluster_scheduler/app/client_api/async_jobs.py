"""The part of an AsyncScheduler that has the job verbs: get_job_status, wait_for_all_jobs and the others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from ray_multicluster_scheduler.app.client_api.blocking_call_threads import BackThreads
from ray_multicluster_scheduler.app.client_api.job_wait import AwaitedJobs
from ray_multicluster_scheduler.control_plane.runtime.job_status import ENDED

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.embedded.embedded_scheduler import UnifiedScheduler


class AsyncJobs:
    """By the job's id, with the arguments and errors of the verb of the same name."""

    _scheduler: UnifiedScheduler
    _threads: BackThreads

    async def get_job_status(self, job_id: str) -> str:
        """Ray's words, or QUEUED, RETRYING, LOST, EXPIRED."""
        return str((await self.get_job_info(job_id))["status"])

    async def get_job_info(self, job_id: str) -> dict[str, Any]:
        """Status, cluster, attempt, times, and Ray's own submission id."""
        return await self.job_info(job_id)

    @overload
    def get_job_logs(self, job_id: str, follow: Literal[False] = False) -> Coroutine[Any, Any, str]: ...
    @overload
    def get_job_logs(self, job_id: str, follow: Literal[True]) -> AsyncIterator[str]: ...
    def get_job_logs(self, job_id: str, follow: bool = False) -> Coroutine[Any, Any, str] | AsyncIterator[str]:
        """``await`` it for a job's output so far; with ``follow``, ``async for`` over what comes until it is over."""
        return self.follow_job_logs(job_id) if follow else self.job_logs(job_id)

    async def stop_job(self, job_id: str) -> bool:
        """Ask for its end, queued or running. False if it was over already."""
        if await self.get_job_status(job_id) in ENDED:
            return False
        await self._threads.call(self._scheduler.cancel, job_id)
        return True

    async def wait_for_all_jobs(
        self,
        ids: Sequence[str],
        check_interval: float = 5,
        timeout: float | None = None,
        *,
        stop_on_failure: bool = False,
    ) -> dict[str, str]:
        """Wait until all are over; returns each one's last status word. Whoever is cancelled meanwhile leaves the jobs
        alone."""
        from ray_multicluster_scheduler.app.client_api.handles import async_collecting  # noqa: PLC0415 - outside only

        awaited = AwaitedJobs(ids, check_interval, timeout, stop_on_failure=stop_on_failure)
        while True:
            statuses = {job_id: await self.get_job_status(job_id) for job_id in awaited.ids}
            left = awaited.left(statuses)
            if not left:
                return statuses
            for job_id in awaited.to_stop(statuses):
                await self._threads.call(self._scheduler.cancel, job_id)
            pause_s = awaited.pause_s(statuses)
            handles = [await self._threads.call(self._scheduler.handle, job_id) for job_id in left]
            await async_collecting.some([one._item for one in handles], 1, pause_s)

    async def job_info(self, job_id: str) -> dict[str, Any]:
        """What is known of a job."""
        return await self._threads.call(self._scheduler.job_info, job_id)

    async def list_jobs(self, status: str | None = None) -> list[dict[str, Any]]:
        """Every job of this control plane, oldest first."""
        return await self._threads.call(self._scheduler.list_jobs, status)

    async def job_logs(self, job_id: str) -> str:
        """Output of a job's newest attempt."""
        return await self._threads.call(self._scheduler.job_logs, job_id)

    async def follow_job_logs(self, job_id: str) -> AsyncIterator[str]:
        """A job's output as it comes, to be iterated with `async for`."""
        pieces: Iterator[str] = await self._threads.call(self._scheduler.follow_job_logs, job_id)
        while (piece := await self._threads.alone(next, pieces, None)) is not None:
            yield piece

    async def wait_for_a_job(self, job_ids: Sequence[str], timeout: float) -> None:
        """Wait until one of these is over, or the time is."""
        await self._threads.alone(self._scheduler.wait_for_a_job, job_ids, timeout)
