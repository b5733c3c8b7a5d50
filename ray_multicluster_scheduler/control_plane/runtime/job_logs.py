"""Output of jobs, read from the cluster that runs them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ray_multicluster_scheduler.common.exception import ResultLostError, SchedulerError
from ray_multicluster_scheduler.common.redaction import mask_stream, mask_values
from ray_multicluster_scheduler.control_plane.runtime.explanation import find_record
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime


class _Attempt(NamedTuple):
    number: int
    cluster: str


def read_all(runtime: Runtime, job_id: str) -> str:
    """All output of the newest attempt; empty while none was placed. Raises SchedulerError after the end."""
    runtime.accepted_item(job_id)
    attempt = runtime.call_and_wait(lambda: _attempt(_record(runtime, job_id)))
    if attempt is None:
        return ""

    _check_reach(runtime, job_id, attempt)
    return runtime.run(read(runtime, job_id, attempt.cluster, attempt.number))


async def read(runtime: Runtime, job_id: str, cluster: str, attempt: int, secrets: Sequence[str] | None = None) -> str:
    """On the loop: what an attempt printed, without ``secrets``: those of the job, which are to be given if its record
    was forgotten. Raises ClusterConnectionError, ConfigurationError for a cluster that is not there any more."""
    own = runtime.secret_masker.secrets(job_id) if secrets is None else secrets
    return mask_values(await runtime.clients.client(cluster).job_logs(runtime.jobs.ray_id(job_id, attempt)), own)


def follow(runtime: Runtime, job_id: str) -> Iterator[str]:
    """Pieces as they come, attempt after attempt, until the job is over or the scheduler is shut down.

    They are fetched when they are asked for, so whoever stops reading leaves nothing behind.
    """
    seen = 0
    while (attempt := _next_attempt(runtime, job_id, seen)) is not None:
        seen = attempt.number
        _check_reach(runtime, job_id, attempt)
        yield from _pieces(runtime, tail(runtime, job_id, attempt))
        if runtime.closed:
            return


def _pieces(runtime: Runtime, tail: AsyncGenerator[str, None]) -> Iterator[str]:
    async def one_more() -> str | None:
        return await anext(tail, None)

    try:
        while (piece := runtime.run(one_more())) is not None:
            yield piece
    except GeneratorExit:
        runtime.spawn(tail.aclose())
        raise
    except SchedulerError:
        if not runtime.closed:
            raise


async def tail(runtime: Runtime, job_id: str, attempt: _Attempt) -> AsyncGenerator[str, None]:
    """On the loop."""
    pieces = runtime.clients.client(attempt.cluster).tail_job_logs(runtime.jobs.ray_id(job_id, attempt.number))
    async for piece in mask_stream(pieces, runtime.secret_masker.secrets(job_id)):
        yield piece


def started_attempt(runtime: Runtime, job_id: str) -> _Attempt | None:
    """On the loop: the newest attempt that was seen to run."""
    return _attempt(_record(runtime, job_id), started=True)


def _next_attempt(runtime: Runtime, job_id: str, seen: int) -> _Attempt | None:
    """Wait until an attempt after ``seen`` runs, or the job is over."""
    item = runtime.accepted_item(job_id)
    while True:
        over, step = item is None or item.done(), item.transition if item is not None else None
        record = runtime.call_and_wait(lambda: _attempt(_record(runtime, job_id), started=True))
        if record is not None and record.number > seen:
            return record
        if over or item is None:
            return None
        item.wait_for_change(step)


def _attempt(record: TaskRecord, *, started: bool = False) -> _Attempt | None:
    """The newest one, if the cluster has it (and, if asked, it was seen to run)."""
    if record.cluster is None or (record.started_at is None and (started or not record.accepted)):
        return None
    return _Attempt(record.attempt, record.cluster)


def _record(runtime: Runtime, job_id: str) -> TaskRecord:
    record = find_record(runtime, job_id)
    if record is None:
        raise ResultLostError(
            f"There is no record of job {job_id} any more, and so no way to its output.", task_id=job_id
        )
    return record


def _check_reach(runtime: Runtime, job_id: str, attempt: _Attempt) -> None:
    if runtime.closed:
        raise SchedulerError(
            f"The output of job {job_id} is on cluster {attempt.cluster!r}, and the scheduler that can read it there "
            "was shut down.",
            task_id=job_id,
            cluster=attempt.cluster,
            next_step=f"ask that cluster: ray job logs {runtime.jobs.ray_id(job_id, attempt.number)}",
        )
