"""What items print, for whoever asks for it over HTTP."""

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
from ray_multicluster_scheduler.scheduler.lifecycle.attempt_history import attempts_of
from ray_multicluster_scheduler.scheduler.scheduler_core.stored.stored_rows import item_row, task_of

_log = get_logger(__name__)
LOOK_AGAIN_S, READ_AGAIN_S = 0.2, 2.0
"""Output is looked for so often; a cluster that does not answer is asked again for it so often."""


async def of_task(
    runtime: ServiceRuntime, item: Item, still: Callable[[], bool], *, alone: bool = False
) -> AsyncIterator[bytes]:
    """From the newest attempt on, until it is over; with ``alone`` of that attempt only. No thread waits for it: many
    may follow."""
    attempt, told = max(item.attempt, 1), 0
    while still():
        over, newest = item.done() or runtime.closed, max(item.attempt, 1)
        text = runtime.output.text(item.id, attempt)
        if len(text) > told:
            yield text[told:].encode()
            told = len(text)
        elif newest > attempt and not alone:
            attempt, told = attempt + 1, 0
        elif over or newest > attempt:
            return
        else:
            await asyncio.sleep(LOOK_AGAIN_S)


async def check_it_can_be_followed(runtime: ServiceRuntime, item: Item, only: int | None) -> None:
    """Before the answer begins: then it is too late to say why nothing comes. Raises ClusterConnectionError."""
    attempt = job_logs.started_attempt(runtime, item.id)
    if attempt is None or only not in (None, attempt.number):
        return
    try:
        await runtime.clients.client(attempt.cluster).job_info(runtime.jobs.ray_id(item.id, attempt.number))
    except ConfigurationError:
        return  # its cluster was taken away: an attempt without a word


async def of_job(
    runtime: ServiceRuntime, item: Item, still: Callable[[], bool], only: int | None = None
) -> AsyncIterator[bytes]:
    """Attempt after attempt, as the cluster tells it, or ``only`` the one of this number. Where a cluster does not
    answer any more, the answer ends with that: whoever asks for this attempt again hears why. Who asked for all of them
    hears the rest when the cluster is back."""
    seen, told = (0 if only is None else only - 1), Counter[int]()
    while still():
        over = item.done() or runtime.closed
        attempt = job_logs.started_attempt(runtime, item.id)
        newest = 0 if attempt is None else attempt.number
        if attempt is not None and newest > seen and only in (None, newest):
            try:
                async for piece in unheard(job_logs.tail(runtime, item.id, attempt), told[newest]):
                    if not still():
                        return
                    yield piece.encode()
                    told[newest] += len(piece)
            except ClusterConnectionError as error:
                if only is not None:
                    return
                if over:
                    yield f"\n[the rest cannot be read: {error.message}]\n".encode()
                    return
                await asyncio.sleep(READ_AGAIN_S)
                continue
            except (TaskSubmissionError, ConfigurationError) as error:  # nobody knows it any more
                _log.info("what attempt %d of %s prints cannot be read: %s", newest, item.id, error)
            seen = newest
        elif only is not None and newest > only > seen:
            try:
                yield (await of_past_attempt_if_any(runtime, item, only)).encode()
            except ClusterConnectionError:  # it is too late to say so: the answer has begun
                return
            return
        elif over or (only is not None and newest > only):
            return
        else:
            await asyncio.sleep(LOOK_AGAIN_S)


async def unheard(pieces: AsyncIterator[str], told: int) -> AsyncIterator[str]:
    """Without the first so many characters."""
    async for piece in pieces:
        rest = piece[told:]
        told -= len(piece) - len(rest)
        if rest:
            yield rest


async def of_past_attempt_if_any(runtime: ServiceRuntime, item: Item, number: int) -> str:
    """For whoever follows: an attempt that never ran, or that nobody knows any more, is one without a word. Another one
    may run by now, and is to be heard. Raises ClusterConnectionError."""
    try:
        return await of_past_attempt(runtime, item, number)
    except (ResultLostError, TaskSubmissionError, ConfigurationError):  # the last: its cluster was taken away
        return ""


async def of_last_attempt(runtime: ServiceRuntime, item: Item) -> str:
    """The same for whoever asks for no attempt: a job whose last one never ran has printed nothing."""
    return await of_past_attempt(runtime, item, item.attempt, asked_for=False)


async def of_past_attempt(runtime: ServiceRuntime, item: Item, number: int, *, asked_for: bool = True) -> str:
    """All that an attempt of a job printed that is over: the cluster that had it may still have that. Raises
    ResultLostError if it was ``asked_for`` and never ran there, and as :func:`job_logs.read`."""
    stored = await asyncio.to_thread(runtime.store.item, item.id)
    steps = await asyncio.to_thread(runtime.store.steps, item.id)
    attempts = [] if stored is None else attempts_of(item_row(stored, steps, None).history, {})
    attempt = next((one for one in attempts if one.attempt == number), None)
    if stored is None or attempt is None or attempt.cluster is None:
        raise ResultLostError(
            f"Nothing is known any more of attempt {number} of job {item.id}.",
            task_id=item.id,
            next_step="ask for the newest one: give no attempt" if asked_for else "look for it on its cluster",
        )
    known = runtime.record(item.id) is not None
    secrets = None if known else item_secrets(task_of(stored, runtime.store.cipher)[0])
    try:
        return await job_logs.read(runtime, item.id, attempt.cluster, number, secrets)
    except TaskSubmissionError:
        if attempt.started_at is not None:
            raise  # it had it, and has it no more
        if not asked_for:
            return ""
        raise ResultLostError(
            f"Attempt {number} of job {item.id} printed nothing: it did not run on {attempt.cluster} "
            f"({attempt.code}: {attempt.sentence}).",
            task_id=item.id,
            cluster=attempt.cluster,
            next_step=f"see what became of its attempts: rmcs explain {item.id}",
        ) from None
