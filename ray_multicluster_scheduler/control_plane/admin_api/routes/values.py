"""Large values piece by piece, so that nobody has all of one in memory."""

from __future__ import annotations

import asyncio

from fastapi import Response
from fastapi.responses import StreamingResponse

from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.scheduler.scheduler_core.stored.stored_outcome import completion_of

BYTES = "application/octet-stream"


async def large_blob(runtime: ServiceRuntime, digest: str) -> Response | None:
    """None for one that is not a file."""
    found = await asyncio.to_thread(runtime.store.blob_pieces, digest)
    if found is None:
        return None
    size, pieces = found
    return StreamingResponse(pieces, media_type=BYTES, headers={"Content-Length": str(size)})


async def large_value(runtime: ServiceRuntime, item_id: str) -> Response | None:
    """The value of an item that is over and whose value is not in memory anyway; None for any other."""
    if runtime.item(item_id) is not None:
        return None
    digest = await asyncio.to_thread(_digest, runtime, item_id)
    return None if digest is None else await large_blob(runtime, digest)


def _digest(runtime: ServiceRuntime, item_id: str) -> str | None:
    stored, outcome = runtime.store.item(item_id), runtime.store.outcome(item_id)
    completion = None if stored is None else completion_of(stored)
    if outcome is None or completion is None or outcome.attempt != completion.attempt:
        return None
    return outcome.digest
