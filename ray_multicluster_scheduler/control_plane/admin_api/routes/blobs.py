"""Routes of payloads, and helpers that stream large values from the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import ConfigurationError, ResultLostError, UnknownItemError
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Rule, caller_of
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import bytes_of, runtime_of
from ray_multicluster_scheduler.control_plane.admin_api.schemas import service as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import described
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.control_plane.store.blob_files import PIECE_BYTES
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import decode_completion

router = APIRouter(prefix="/api/v1", tags=["blobs"])
BYTES = "application/octet-stream"


async def large_blob(runtime: ServiceRuntime, digest: str) -> Response | None:
    """Stream a payload that is stored as a file; None for a small one."""
    found = await asyncio.to_thread(runtime.store.blob_pieces, digest)
    if found is None:
        return None
    size, pieces = found
    return StreamingResponse(pieces, media_type=BYTES, headers={"Content-Length": str(size)})


def payload_response(payload: bytes) -> Response:
    """Send it in pieces: a connection would copy the whole of a large one to wait for its reader."""

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(payload), PIECE_BYTES):
            yield payload[start : start + PIECE_BYTES]

    if len(payload) <= PIECE_BYTES:
        return Response(payload, media_type=BYTES)
    return StreamingResponse(pieces(), media_type=BYTES, headers={"Content-Length": str(len(payload))})


async def large_value(runtime: ServiceRuntime, item_id: str) -> Response | None:
    """Stream the large value of a finished item that is not in memory; None otherwise."""
    if runtime.item(item_id) is not None:
        return None
    digest = await asyncio.to_thread(_digest, runtime, item_id)
    return None if digest is None else await large_blob(runtime, digest)


def _digest(runtime: ServiceRuntime, item_id: str) -> str | None:
    stored, outcome = runtime.store.item(item_id), runtime.store.outcome(item_id)
    completion = None if stored is None else decode_completion(stored)
    if outcome is None or completion is None or outcome.attempt != completion.attempt:
        return None
    return outcome.digest


@router.put("/blobs/{digest}", **described(Rule.SUBMIT, docs.Stored, docs.PAYLOAD_BYTES))
async def put(request: Request, digest: str) -> dict[str, Any]:
    """Store a payload under its BLAKE2b hash (16 bytes). Durable when answered."""
    runtime = runtime_of(request)
    data = await bytes_of(request, runtime.config.settings.max_payload_bytes)
    found = await asyncio.to_thread(digest_of, data)
    if found != digest:
        raise ConfigurationError(f"The digest of the payload is {found}, not {digest}.", next_step="send it again")
    user = caller_of(request).user
    await asyncio.to_thread(partial(runtime.store.put_blob, data, user=user, digest=digest))
    runtime.payload_ownership.note(user, [digest])
    return {"digest": digest, "bytes": len(data)}


@router.get("/blobs/{digest}", **described(Rule.SUBMIT, docs.PAYLOAD_BYTES))
async def get(request: Request, digest: str) -> Response:
    """The payload as it was uploaded. Without the role operator or admin: only payloads that the same user uploaded, or
    that an item of this user has."""
    runtime, caller = runtime_of(request), caller_of(request)
    if not await runtime.payload_ownership.may_use(None if caller.steers_all else caller.user, digest):
        raise _missing_payload(digest)  # the same error whether it exists for others or not
    large = await large_blob(runtime, digest)
    if large is not None:
        return large
    data = await asyncio.to_thread(runtime.store.blob, digest)
    if data is None:
        raise _missing_payload(digest)
    return Response(data, media_type=BYTES)


def _missing_payload(digest: str) -> UnknownItemError:
    return UnknownItemError(f"There is no payload {digest}, or it was deleted.")


def result_lost(item_id: str) -> ResultLostError:
    return ResultLostError(
        f"The value of {item_id} was deleted.", task_id=item_id, next_step="fetch values sooner, or keep them longer"
    )
