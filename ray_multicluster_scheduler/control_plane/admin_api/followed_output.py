"""What items print, for whoever asks for it over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from ray_multicluster_scheduler.app.client_api.embedded import job_logs
from ray_multicluster_scheduler.app.client_api.handles.item import Item
from ray_multicluster_scheduler.common.own_secrets import secrets_of
from ray_multicluster_scheduler.control_plane.admin_api.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.scheduler.scheduler_core.stored_rows import task_of

LOOK_AGAIN_S = 0.2
"""Output is looked for so often."""


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


async def of_job(
    runtime: ServiceRuntime, item: Item, still: Callable[[], bool], only: int | None = None
) -> AsyncIterator[bytes]:
    """Attempt after attempt, as the cluster tells it, or ``only`` the one of this number."""
    seen = 0 if only is None else only - 1
    while still():
        over = item.done() or runtime.closed
        attempt = job_logs.started_attempt(runtime, item.id)
        newest = 0 if attempt is None else attempt.number
        if attempt is not None and newest > seen and only in (None, newest):
            seen = newest
            async for piece in job_logs.tail(runtime, item.id, attempt):
                if not still():
                    return
                yield piece.encode()
        elif over or (only is not None and newest > only):
            return
        else:
            await asyncio.sleep(LOOK_AGAIN_S)


async def of_old_job(runtime: ServiceRuntime, item: Item) -> str:
    """Of one that is known from the store alone: its cluster may still have what it printed."""
    stored = await asyncio.to_thread(runtime.store.item, item.id)
    secrets = () if stored is None else secrets_of(task_of(stored, runtime.store.sealer)[0])
    return await job_logs.read(runtime, item.id, item.cluster or "", item.attempt, secrets)
