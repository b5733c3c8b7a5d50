"""Output of jobs, read from the cluster that runs them, with the secrets of the job masked.

``Runtime.job_log`` and ``follow_job_log`` use it from any thread, the HTTP routes on the loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ray_multicluster_scheduler.common.exception import ResultLostError, SchedulerError
from ray_multicluster_scheduler.common.redaction import mask_stream, mask_values
from ray_multicluster_scheduler.control_plane.runtime.explanation import find_record

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime


class _Attempt(NamedTuple):
    number: int
    cluster: str


def read_all(runtime: Runtime, job_id: str) -> str:
    """All output of the newest attempt; empty while none was placed. Raises SchedulerError after the end."""
    runtime.accepted_item(job_id)
    attempt = runtime.call_and_wait(lambda: newest_attempt(runtime, job_id, started=False))
    if attempt is None:
        return ""
    _check_reach(runtime, job_id, attempt)
    return runtime.run(read(runtime, job_id, attempt.cluster, attempt.number))


async def read(runtime: Runtime, job_id: str, cluster: str, attempt: int, secrets: Sequence[str] | None = None) -> str:
    """On the loop: the output of an attempt. ``secrets`` are needed only if the record of the job was forgotten. Raises
    ClusterConnectionError, ConfigurationError for a cluster that is not configured any more."""
    own = runtime.secret_masker.secrets(job_id) if secrets is None else secrets
    return mask_values(await runtime.clients.client(cluster).job_logs(runtime.jobs.ray_id(job_id, attempt)), own)


def follow(runtime: Runtime, job_id: str) -> Iterator[str]:
    """Pieces as they come, attempt after attempt, until the job is over or the scheduler is shut down. Each is fetched
    on request, so a reader that stops leaves no task behind."""
    seen = 0
    while (attempt := _next_attempt(runtime, job_id, seen)) is not None:
        seen = attempt.number
        _check_reach(runtime, job_id, attempt)
        pieces = tail(runtime, job_id, attempt)
        try:
            while (piece := runtime.run(_next_piece(pieces))) is not None:
                yield piece
        except GeneratorExit:
            runtime.spawn(pieces.aclose())
            raise
        except SchedulerError:
            if not runtime.closed:
                raise
        if runtime.closed:
            return


async def _next_piece(pieces: AsyncGenerator[str, None]) -> str | None:
    return await anext(pieces, None)


async def tail(runtime: Runtime, job_id: str, attempt: _Attempt) -> AsyncGenerator[str, None]:
    """On the loop: the pieces of an attempt's output as they come."""
    pieces = runtime.clients.client(attempt.cluster).tail_job_logs(runtime.jobs.ray_id(job_id, attempt.number))
    async for piece in mask_stream(pieces, runtime.secret_masker.secrets(job_id)):
        yield piece


def _next_attempt(runtime: Runtime, job_id: str, seen: int) -> _Attempt | None:
    """Wait until an attempt after ``seen`` runs, or the job is over."""
    item = runtime.accepted_item(job_id)
    while True:
        over, step = item is None or item.done(), item.transition if item is not None else None
        record = runtime.call_and_wait(lambda: newest_attempt(runtime, job_id, started=True))
        if record is not None and record.number > seen:
            return record
        if over or item is None:
            return None
        item.wait_for_change(step)


def newest_attempt(runtime: Runtime, job_id: str, *, started: bool) -> _Attempt | None:
    """On the loop: the newest attempt, if its cluster has accepted it; with ``started``, if it was reported running."""
    record = find_record(runtime, job_id)
    if record is None:
        raise ResultLostError(f"The output of job {job_id} cannot be found: its record was deleted.", task_id=job_id)
    if record.cluster is None or (record.started_at is None and (started or not record.accepted)):
        return None
    return _Attempt(record.attempt, record.cluster)


def _check_reach(runtime: Runtime, job_id: str, attempt: _Attempt) -> None:
    if runtime.closed:
        raise SchedulerError(
            f"The output of job {job_id} is on cluster {attempt.cluster!r}, and its scheduler was shut down.",
            task_id=job_id,
            cluster=attempt.cluster,
            next_step=f"read it on that cluster: ray job logs {runtime.jobs.ray_id(job_id, attempt.number)}",
        )
