"""Output of items as streams for the logs route: tasks from memory, jobs from their clusters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

from ray_multicluster_scheduler.common.exception import (
    ClusterConnectionError,
    ConfigurationError,
    ResultLostError,
    TaskSubmissionError,
)
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.redaction import item_secrets
from ray_multicluster_scheduler.control_plane.runtime import job_logs
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.scheduler.lifecycle.transitions import attempts_of
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import decode_row, decode_task

_log = get_logger(__name__)
POLL_S, RETRY_S = 0.2, 2.0
"""Intervals of polling for new output, and of retrying a cluster that does not answer."""


async def task_output(
    runtime: ServiceRuntime, item: Item, still: Callable[[], bool], *, alone: bool = False
) -> AsyncIterator[bytes]:
    """Output from the newest attempt on until the item is over; with ``alone`` of that attempt only. Uses no thread."""
    attempt, sent = max(item.attempt, 1), 0
    while still():
        over, newest = item.done() or runtime.closed, max(item.attempt, 1)
        text = runtime.output.text(item.id, attempt)
        if len(text) > sent:
            yield text[sent:].encode()
            sent = len(text)
        elif newest > attempt and not alone:
            attempt, sent = attempt + 1, 0
        elif over or newest > attempt:
            return
        else:
            await asyncio.sleep(POLL_S)


async def check_followable(runtime: ServiceRuntime, item: Item, only: int | None) -> None:
    """Raises ClusterConnectionError before the answer begins; afterwards an error cannot be reported."""
    attempt = job_logs.newest_attempt(runtime, item.id, started=True)
    if attempt is None or only not in (None, attempt.number):
        return
    try:
        await runtime.clients.client(attempt.cluster).job_info(runtime.jobs.ray_id(item.id, attempt.number))
    except ConfigurationError:
        return  # its cluster was removed: the attempt has no output


async def job_output(
    runtime: ServiceRuntime, item: Item, still: Callable[[], bool], only: int | None = None
) -> AsyncIterator[bytes]:
    """Output of all attempts as their clusters return it, or of attempt ``only``. If a cluster stops answering, a
    stream of one attempt ends, and a repeated request gets the error; a stream of all waits for the cluster."""
    seen, sent = (0 if only is None else only - 1), Counter[int]()
    while still():
        over = item.done() or runtime.closed
        attempt = job_logs.newest_attempt(runtime, item.id, started=True)
        newest = 0 if attempt is None else attempt.number
        if attempt is not None and newest > seen and only in (None, newest):
            try:
                async for piece in after_first(job_logs.tail(runtime, item.id, attempt), sent[newest]):
                    if not still():
                        return
                    yield piece.encode()
                    sent[newest] += len(piece)
            except ClusterConnectionError as error:
                if only is not None:
                    return
                if over:
                    yield f"\n[the rest cannot be read: {error.message}]\n".encode()
                    return
                await asyncio.sleep(RETRY_S)
                continue
            except (TaskSubmissionError, ConfigurationError) as error:  # no cluster has it any more
                _log.info("the output of attempt %d of %s cannot be read: %s", newest, item.id, error)
            seen = newest
        elif only is not None and newest > only > seen:
            try:
                yield (await past_attempt_output_or_empty(runtime, item, only)).encode()
            except ClusterConnectionError:  # the answer has begun: the error cannot be reported
                return
            return
        elif over or (only is not None and newest > only):
            return
        else:
            await asyncio.sleep(POLL_S)


async def after_first(pieces: AsyncIterator[str], sent: int) -> AsyncIterator[str]:
    """The text without its first ``sent`` characters."""
    async for piece in pieces:
        rest = piece[sent:]
        sent -= len(piece) - len(rest)
        if rest:
            yield rest


async def past_attempt_output_or_empty(runtime: ServiceRuntime, item: Item, number: int) -> str:
    """Output for a stream: empty for an attempt that never ran or is unknown. Raises ClusterConnectionError."""
    try:
        return await past_attempt_output(runtime, item, number)
    except (ResultLostError, TaskSubmissionError, ConfigurationError):  # the last: its cluster was removed
        return ""


async def last_attempt_output(runtime: ServiceRuntime, item: Item) -> str:
    """Output of the last attempt, empty if that never ran."""
    return await past_attempt_output(runtime, item, item.attempt, requested=False)


async def past_attempt_output(runtime: ServiceRuntime, item: Item, number: int, *, requested: bool = True) -> str:
    """Output of a finished attempt of a job, if its cluster still has it. Raises ResultLostError if the attempt was
    ``requested`` and never ran, and as :func:`job_logs.read`."""
    stored = await asyncio.to_thread(runtime.store.item, item.id)
    steps = await asyncio.to_thread(runtime.store.steps, item.id)
    attempts = [] if stored is None else attempts_of(decode_row(stored, steps, None).history, {})
    attempt = next((one for one in attempts if one.attempt == number), None)
    if stored is None or attempt is None or attempt.cluster is None:
        raise ResultLostError(
            f"Attempt {number} of job {item.id} is not known any more.",
            task_id=item.id,
            next_step="ask for the newest one: give no attempt" if requested else "look for it on its cluster",
        )
    known = runtime.record(item.id) is not None
    secrets = None if known else item_secrets(decode_task(stored, runtime.store.cipher)[0])
    try:
        return await job_logs.read(runtime, item.id, attempt.cluster, number, secrets)
    except TaskSubmissionError:
        if attempt.started_at is not None:
            raise  # it ran, but its output is gone
        if not requested:
            return ""
        raise ResultLostError(
            f"Attempt {number} of job {item.id} printed nothing: it did not run on {attempt.cluster} "
            f"({attempt.code}: {attempt.sentence}).",
            task_id=item.id,
            cluster=attempt.cluster,
            next_step=f"see what became of its attempts: rmcs explain {item.id}",
        ) from None
