"""BoundedHttp: one connection of a client, who may be slow, talkative, or one of too many."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_TURNED_AWAY = 200
"""So many beyond the limit are told so; the others are cut off at once."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one client may take, and how many there may be."""

    connections: int = 2_000
    head_s: float = 20.0
    """From its first byte, or from the connection, until all headers of a request are there."""
    body_s: float = 30.0
    body_bytes: int = 1_024
    """In ``body_s`` so many bytes of a body have to come, while we are ready to take them."""
    head_bytes: int = 64 * 1_024
    headers: int = 100


class BoundedHttp(HttpToolsProtocol):
    """The server's own protocol, which bounds idle connections only, with :class:`Bounds`. A request that comes in one
    piece, as most do, costs no timer."""

    def __init__(self, *args: Any, bounds: Bounds, **values: Any) -> None:
        super().__init__(*args, **values)
        self._bounds = bounds
        self._in_head = self._upgraded = self._turned_away = False
        self._piece = self._head_came = self._body_came = 0
        self._timer: asyncio.TimerHandle | None = None
        self._times_head = True
        self._refused: tuple[int, str, str] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as the server has it
        super().connection_made(transport)
        beyond = len(self.connections) - self._bounds.connections
        self._turned_away = beyond > 0
        if beyond > _TURNED_AWAY:
            transport.abort()
        else:
            self._time(self._bounds.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._turned_away:
            most = self._bounds.connections
            self._refuse(503, f"The service has {most:,} connections, and takes no more.", "try again later")
            return
        self._piece = len(data)
        super().data_received(data)
        cycle = self.cycle
        if not self._in_head and cycle is not None and not cycle.more_body and not cycle.response_complete:
            if self._timer is not None:
                self._stop_timer()
        elif not (self._upgraded or self.transport.is_closing()):
            self._count_piece()

    def on_message_begin(self) -> None:
        self._in_head, self._head_came = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, most = False, self._bounds
        if len(self.headers) > most.headers:
            self._too_much_head(f"A request has more than {most.headers} headers.")
        if self._head_came + self._piece > most.head_bytes:  # perhaps of the body, or of requests before
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > most.head_bytes:
                self._too_much_head()
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        self._upgraded = True
        self._stop_timer()
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        status, sentence, step = self._refused or (400, "This is no HTTP request.", "send HTTP/1.1")
        self._refuse(status, sentence, step)

    # ---- what comes slowly

    def _count_piece(self) -> None:
        """Something came, and more has to come."""
        if self._in_head:
            self._head_came += self._piece
            if self._head_came > self._bounds.head_bytes:
                self._refuse(431, *_HEAD_TOO_LARGE)
                return
        else:
            self._body_came += self._piece
        in_body = not self._in_head and self.cycle is not None and not self.cycle.response_complete
        if self._timer is not None and self._times_head == in_body:
            self._stop_timer()
        if self._timer is None:
            self._times_head, self._body_came = not in_body, 0
            self._time(self._bounds.body_s if in_body else self._bounds.head_s)

    def _time(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._time_is_over)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_is_over(self) -> None:
        self._timer, cycle, most = None, self.cycle, self._bounds
        if self.transport.is_closing():
            return
        if self._in_head:
            self._refuse(408, f"The headers of a request took longer than {most.head_s:g} s.", "send them at once")
        elif cycle is None or cycle.response_complete:
            if self.timeout_keep_alive_task is None:  # else it is idle, and waits for that
                self.transport.close()
        elif cycle.more_body:
            if self._body_came >= most.body_bytes or self.flow.read_paused:
                self._body_came = 0
                self._time(most.body_s)
            else:
                sentence = f"Fewer than {most.body_bytes:,} bytes of a body came in {most.body_s:g} s."
                self._refuse(408, sentence, "send it faster")

    # ---- refusing

    def _too_much_head(self, sentence: str | None = None) -> None:
        """Raises what the server takes for a request that is none; it is answered by :meth:`send_400_response`."""
        self._refused = (431, sentence or _HEAD_TOO_LARGE[0], _HEAD_TOO_LARGE[1])
        raise ValueError(self._refused[1])

    def _refuse(self, status: int, sentence: str, step: str) -> None:
        """A problem document, unless an answer has begun, and the end of the connection."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(_answer(status, sentence, step))
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self._stop_timer()
        self.transport.close()


_HEAD_TOO_LARGE = ("The headers of a request are too large.", "send fewer and shorter ones")


def _answer(status: int, sentence: str, step: str) -> bytes:
    kind = HTTPStatus(status)
    said = {"type": "about:blank", "title": kind.phrase, "status": status, "code": kind.name, "message": sentence}
    said.update(error="ServiceUnavailableError" if status == 503 else "ConfigurationError", next_step=step)
    body = json.dumps({**said, "detail": f"{sentence} What to do: {step}"}).encode()
    head = f"HTTP/1.1 {status} {kind.phrase}\r\ncontent-type: application/problem+json\r\n"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body
