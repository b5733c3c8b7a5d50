"""Output of jobs, read from the cluster that runs them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

from ray_multicluster_scheduler.app.client_api.explanation import find_record
from ray_multicluster_scheduler.app.client_api.runtime import Runtime
from ray_multicluster_scheduler.common.exception import ResultLostError, SchedulerError
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord


async def whole(runtime: Runtime, job_id: str) -> str:
    """On the loop: all output of the newest attempt; empty while none was placed."""
    record = _record(runtime, job_id)
    if record.cluster is None or (not record.accepted and record.started_at is None):
        return ""
    client = runtime.clients.client(record.cluster)
    return await client.job_logs(runtime.jobs.ray_id(job_id, record.attempt))


def follow(runtime: Runtime, job_id: str) -> Iterator[str]:
    """Pieces as they come, attempt after attempt, until the job is over."""
    pieces: queue.SimpleQueue[str | SchedulerError | None] = queue.SimpleQueue()
    seen = 0
    while True:
        attempt = _next_attempt(runtime, job_id, seen)
        if attempt is None:
            return
        seen = attempt
        threading.Thread(
            target=_pump, args=(runtime, job_id, attempt, pieces), name="rmcs-job-log", daemon=True
        ).start()
        while (piece := pieces.get()) is not None:
            if isinstance(piece, SchedulerError):
                raise piece
            yield piece


def _next_attempt(runtime: Runtime, job_id: str, seen: int) -> int | None:
    """Wait until an attempt after ``seen`` runs, or the job is over."""
    while True:
        record = _record(runtime, job_id)
        if record.attempt > seen and record.started_at is not None:
            return record.attempt
        item = runtime.item(job_id)
        if record.state.terminal or item is None:
            return None
        item.wait_for_change(record.state)


def _pump(runtime: Runtime, job_id: str, attempt: int, pieces: queue.SimpleQueue[str | SchedulerError | None]) -> None:
    async def tail() -> None:
        record = _record(runtime, job_id)
        if record.cluster is None:
            return
        client = runtime.clients.client(record.cluster)
        async for piece in client.tail_job_logs(runtime.jobs.ray_id(job_id, attempt)):
            pieces.put(piece)

    try:
        runtime.run(tail())
    except SchedulerError as error:
        pieces.put(error)
    pieces.put(None)


def _record(runtime: Runtime, job_id: str) -> TaskRecord:
    record = find_record(runtime, job_id)
    if record is None:
        raise ResultLostError(f"Job {job_id} ended long ago and was forgotten.", task_id=job_id)
    return record
