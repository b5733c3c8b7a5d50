"""Routes of live events: a stream of server-sent events, and a WebSocket."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.websockets import WebSocket

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.control_plane.admin_api.access.expiry import batches_while_valid, close_on_expiry
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Rule, needs_of_socket, visible_owner
from ray_multicluster_scheduler.control_plane.admin_api.events.event_socket import (
    EventSocket,
    event_number,
    publisher_of,
)
from ray_multicluster_scheduler.control_plane.admin_api.events.event_stream import HEARTBEAT_S, EventStream
from ray_multicluster_scheduler.control_plane.admin_api.events.event_stream import snapshot as snapshot_of
from ray_multicluster_scheduler.control_plane.admin_api.http import problems
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import runtime_of
from ray_multicluster_scheduler.control_plane.admin_api.schemas import service as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import described
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import EventFilter

router = APIRouter(prefix="/api/v1", tags=["events"])


@router.get("/events", **described(Rule.SEE, docs.EVENT_STREAM, headers=[docs.LAST_EVENT_ID]))
async def events(
    request: Request,
    types: str | None = None,
    id: str | None = None,  # noqa: A002 - the name of the field
    owner: str | None = None,
    cluster: str | None = None,
    state: str | None = None,
    kind: str | None = None,
    model: str | None = None,
    since: int | None = None,
    snapshot: bool = False,
    ticket: str | None = None,
) -> Response:
    """Live events as server-sent events: each has its number as ``id`` and one JSON object as ``data``. The stream
    begins with the events after ``since`` (or the header Last-Event-ID), or with a ``snapshot`` of the present state.
    Several values of a filter are separated by commas. An ``id`` without ``data``: no more events match up to that
    number. Lines that begin with a colon are heartbeats. A page that cannot send a header uses a ``ticket``."""
    del ticket  # AuthMiddleware used it
    wanted = EventFilter.parse(
        {"types": types, "id": id, "owner": owner, "cluster": cluster, "state": state, "kind": kind, "model": model}
    )
    runtime, only = runtime_of(request), visible_owner(request)
    last_id = request.headers.get("last-event-id", "").strip()
    after = event_number("Last-Event-ID", last_id) if last_id else event_number("since", since)
    publisher = publisher_of(request, wanted)
    reader = publisher.subscribe(wanted, only_owner=only)
    try:
        first = (
            [snapshot_of(runtime, only)] if snapshot and after is None and publisher is runtime.event_publisher else []
        )
    except BaseException:
        reader.close()
        raise
    if after is None:
        after = publisher.number
    batches = batches_while_valid(request, publisher.batches(reader, after, idle_s=HEARTBEAT_S, report_progress=True))
    return EventStream(reader, batches, after, close_on_expiry(request, reader), first)


@router.websocket("/ws")
@needs_of_socket(Rule.SEE)
async def socket(websocket: WebSocket) -> None:
    """The same events over a WebSocket; see :class:`EventSocket`."""
    runtime = websocket.app.state.runtime
    line = EventSocket(websocket, runtime, visible_owner(websocket))
    try:
        line.begin(dict(websocket.query_params))
    except SchedulerError as error:
        line.close()
        await websocket.send_denial_response(problems.problem_response(problems.problem_of(error)))
        return
    await line.run()
