"""EventSocket: events over one WebSocket, whose client can change its subscription."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError
from ray_multicluster_scheduler.control_plane.admin_api.access.expiry import batches_while_valid, close_on_expiry
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import is_still_valid
from ray_multicluster_scheduler.control_plane.admin_api.events.event_stream import snapshot
from ray_multicluster_scheduler.control_plane.runtime.event_publisher import EventPublisher
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import EventFilter, missed_event
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event_hub import Batch, Subscription
from ray_multicluster_scheduler.serving.events import TaskEvents

HEARTBEAT_S = 30.0
_LARGEST_NUMBER = 2**53
_MAX_DIGITS = 1_000
"""Python parses no more than a few thousand digits."""
_AT_ONCE = 100
_GOING_AWAY, _NO_CODE, _POLICY_VIOLATION = 1001, 1005, 1008
_FLAGS = ("snapshot", "batch")


class EventSocket:
    """The query has the first subscription. Messages ``{"type": "subscribe", "types": […], "owner": …, "since": …,
    "snapshot": true, "batch": true}`` replace it. With ``batch`` several events may come in one message, ``{"type":
    "events", "events": […]}``. "ping" is answered ``{"type": "pong"}``."""

    def __init__(self, websocket: WebSocket, runtime: ServiceRuntime, only_owner: str | None) -> None:
        self._socket, self._runtime, self._only_owner = websocket, runtime, only_owner
        self._publisher: EventPublisher | TaskEvents = runtime.event_publisher
        self._reader: Subscription | None = None
        self._on_close: Callable[[], None] = lambda: None
        self._since: int | None = None
        self._batch = self._snapshot = False
        self._sending: asyncio.Task[None] | None = None

    def begin(self, message: Mapping[str, Any]) -> None:
        """Start a subscription. Raises ConfigurationError, and ServiceUnavailableError if there are too many."""
        filters = {key: value for key, value in message.items() if key not in ("type", "since", "ticket", *_FLAGS)}
        wanted, since = EventFilter.parse(filters), event_number("since", message.get("since"))
        flags = {key: _flag(key, message.get(key)) for key in _FLAGS}
        self.close()
        self._publisher = publisher_of(self._socket, wanted)
        self._reader = self._publisher.subscribe(wanted, only_owner=self._only_owner)
        self._on_close = close_on_expiry(self._socket, self._reader)
        self._since, self._snapshot, self._batch = since, flags["snapshot"], flags["batch"]

    async def run(self) -> None:
        """Until either side closes the socket."""
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._socket.accept()
            tasks.append(receiving := asyncio.create_task(self._receive()))
            self._sending = asyncio.create_task(self._send_events())
            while not receiving.done() and (not self._sending.done() or self._sending.cancelled()):
                await asyncio.wait((receiving, self._sending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.close()
            if self._sending is not None:
                tasks.append(self._sending)
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ends:
            if isinstance(error, Exception) and not (self._closed or isinstance(error, WebSocketDisconnect)):
                raise error

    @property
    def _closed(self) -> bool:
        """Is the socket closed? Sending then fails, which is no error."""
        states = (self._socket.client_state, self._socket.application_state)
        return WebSocketState.DISCONNECTED in states

    def close(self) -> None:
        """End the subscription. Idempotent."""
        if self._reader is not None:
            self._reader.close()
            self._on_close()
            self._reader = None

    async def _receive(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", _NO_CODE))
            text = message.get("text")
            if text is None:
                text = f"{len(message.get('bytes') or b'')} bytes that are not text"
            if text.strip() in ("ping", '{"type":"ping"}'):
                await self._socket.send_text('{"type":"pong"}')
                continue
            try:
                self._handle(text)
            except SchedulerError as error:
                message = {"type": "error", "message": error.message, "next_step": error.next_step}
                await self._socket.send_text(json.dumps(message))

    def _handle(self, text: str) -> None:
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            message = None
        match message:
            case {"type": "subscribe"}:
                self.begin(message)
                before, self._sending = self._sending, asyncio.create_task(self._send_events())
                if before is not None:
                    before.cancel()
            case _:
                raise ConfigurationError(
                    f"{text[:100]!r} is not a known message.", next_step='send ping, or {"type": "subscribe"}'
                )

    async def _send_events(self) -> None:
        reader, since, publisher = self._reader, self._since, self._publisher
        if reader is None:
            return
        if self._snapshot and since is None and publisher is self._runtime.event_publisher:
            first = snapshot(self._runtime, self._only_owner)
            since = int(first["number"])
            await self._socket.send_text(json.dumps(first))
        if since is None:
            since = publisher.number
        async for batch in batches_while_valid(self._socket, publisher.batches(reader, since, idle_s=HEARTBEAT_S)):
            await self._send(batch)
        if reader is self._reader:
            valid = is_still_valid(self._socket)
            why = (_GOING_AWAY, "the service stops") if valid else (_POLICY_VIOLATION, "the token is no longer valid")
            await self._socket.close(*why)

    async def _send(self, batch: Batch) -> None:
        send = self._socket.send_text
        if batch.missed is not None:
            await send(json.dumps(missed_event(batch.missed)))
        if not batch.events:
            if not batch.over:
                await send(json.dumps({"type": "heartbeat", "number": self._publisher.number}))
        elif self._batch:
            for at in range(0, len(batch.events), _AT_ONCE):
                some = ",".join([event.text for event in batch.events[at : at + _AT_ONCE]])
                await send(f'{{"type":"events","events":[{some}]}}')
        else:
            for event in batch.events:
                await send(event.text)


def publisher_of(connection: HTTPConnection, wanted: EventFilter) -> EventPublisher | TaskEvents:
    """What replays the events of this filter, and then passes on those of the hub."""
    state = connection.app.state
    publisher: EventPublisher | TaskEvents = (
        state.serving_events if wanted.serving_only else state.runtime.event_publisher
    )
    return publisher


def event_number(name: str, value: object) -> int | None:
    """The number of an event, cut to the largest possible one. Raises ConfigurationError that names the parameter."""
    if value is None:
        return None
    if isinstance(value, str) and value.isdecimal():
        value = int(value) if len(value) < _MAX_DIGITS else _LARGEST_NUMBER
    if type(value) is not int or value < 0:
        raise ConfigurationError(f"{name} is {str(value)[:100]!r}.", next_step="give the number of an event, 0 or more")
    return min(value, _LARGEST_NUMBER)


def _flag(key: str, value: object) -> bool:
    match value:
        case None | False | "false" | "0":
            return False
        case True | "true" | "1":
            return True
        case _:
            raise ConfigurationError(f"{key} is {str(value)[:100]!r}.", next_step="give true or false")
