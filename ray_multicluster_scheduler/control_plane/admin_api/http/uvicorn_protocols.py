"""Uvicorn protocol classes: HTTP with limits against slow and greedy clients, and WebSocket without log noise."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

from ray_multicluster_scheduler.control_plane.admin_api.http.problems import problem
from ray_multicluster_scheduler.serving.api import INSTANCE_SOCKET, MAX_BODY

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

_REFUSED_CONNECTIONS = 200
"""Connections beyond the limit that get an answer; further ones are cut off at once."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of one connection, and their number."""

    connections: int = 2_000
    head_s: float = 20.0
    """From its first byte, or from the connection, until all headers of a request have arrived."""
    body_s: float = 30.0
    body_bytes: int = 1_024
    """Bytes of a body that must arrive in each ``body_s``, while the application reads."""
    head_bytes: int = 64 * 1_024
    headers: int = 100


class LimitedHttpProtocol(HttpToolsProtocol):
    """Uvicorn's protocol, which limits idle connections only, with :class:`HttpLimits`. A request that arrives in one
    piece, as most do, costs no timer."""

    def __init__(self, *args: Any, limits: HttpLimits, **values: Any) -> None:
        super().__init__(*args, **values)
        self._limits = limits
        self._in_head = self._upgraded = self._over_limit = False
        self._piece = self._head_came = self._body_came = 0
        self._timer: asyncio.TimerHandle | None = None
        self._times_head = True
        self._refused: tuple[int, str, str] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # narrowed as in uvicorn
        super().connection_made(transport)
        beyond = len(self.connections) - self._limits.connections
        self._over_limit = beyond > 0
        if beyond > _REFUSED_CONNECTIONS:
            transport.abort()
        else:
            self._start_timer(self._limits.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._over_limit:
            most = self._limits.connections
            self._refuse(503, f"The service has {most:,} connections, and accepts no more.", "try again later")
            return
        self._piece = len(data)
        super().data_received(data)
        cycle = self.cycle
        if not self._in_head and cycle is not None and not cycle.more_body and not cycle.response_complete:
            if self._timer is not None:
                self._cancel_timer()
        elif not (self._upgraded or self.transport.is_closing()):
            self._count_piece()

    def on_message_begin(self) -> None:
        self._in_head, self._head_came = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, most = False, self._limits
        if len(self.headers) > most.headers:
            self._reject_head(f"A request has more than {most.headers} headers.")
        if self._head_came + self._piece > most.head_bytes:  # may include parts of the body or of earlier requests
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > most.head_bytes:
                self._reject_head()
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        self._upgraded = True
        self._cancel_timer()
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        status, sentence, step = self._refused or (400, "This is not an HTTP request.", "send HTTP/1.1")
        self._refuse(status, sentence, step)

    # ---- timeouts

    def _count_piece(self) -> None:
        """A piece of an incomplete request has arrived."""
        if self._in_head:
            self._head_came += self._piece
            if self._head_came > self._limits.head_bytes:
                self._refuse(431, *_HEAD_TOO_LARGE)
                return
        else:
            self._body_came += self._piece
        in_body = not self._in_head and self.cycle is not None and not self.cycle.response_complete
        if self._timer is not None and self._times_head == in_body:
            self._cancel_timer()
        if self._timer is None:
            self._times_head, self._body_came = not in_body, 0
            self._start_timer(self._limits.body_s if in_body else self._limits.head_s)

    def _start_timer(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._timed_out)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _timed_out(self) -> None:
        self._timer, cycle, most = None, self.cycle, self._limits
        if self.transport.is_closing():
            return
        if self._in_head:
            self._refuse(408, f"The headers of a request took longer than {most.head_s:g} s.", "send them at once")
        elif cycle is None or cycle.response_complete:
            if self.timeout_keep_alive_task is None:  # else the keep-alive timeout closes it
                self.transport.close()
        elif cycle.more_body:
            if self._body_came >= most.body_bytes or self.flow.read_paused:
                self._body_came = 0
                self._start_timer(most.body_s)
            else:
                sentence = f"Fewer than {most.body_bytes:,} bytes of a body came in {most.body_s:g} s."
                self._refuse(408, sentence, "send it faster")

    # ---- refusing

    def _reject_head(self, sentence: str | None = None) -> None:
        """Raises ValueError, on which uvicorn calls :meth:`send_400_response`."""
        self._refused = (431, sentence or _HEAD_TOO_LARGE[0], _HEAD_TOO_LARGE[1])
        raise ValueError(self._refused[1])

    def _refuse(self, status: int, sentence: str, step: str) -> None:
        """Send a problem document, unless an answer has begun, and close the connection."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(_answer(status, sentence, step))
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self._cancel_timer()
        self.transport.close()


_HEAD_TOO_LARGE = ("The headers of a request are too large.", "send fewer and shorter ones")


def _answer(status: int, sentence: str, step: str) -> bytes:
    kind = HTTPStatus(status)
    error = "ServiceUnavailableError" if status == 503 else "ConfigurationError"
    body = json.dumps(problem(status, kind.name, error, sentence, step)).encode()
    head = f"HTTP/1.1 {status} {kind.phrase}\r\ncontent-type: application/problem+json\r\n"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


_INVALID_TEXT = 1007


class QuietWebSocketProtocol(WebSocketsSansIOProtocol):
    """Uvicorn's protocol without a traceback in the log for each invalid text and refused handshake of a client.
    Instances of serving, which are let in as operators, may send messages as large as bodies of HTTP."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.write(b"".join(self.conn.data_to_send()))  # else the connection stays open without an answer
            self.transport.close()

    def send_receive_event_to_app(self) -> None:
        if self.conn.state is not State.OPEN:  # arrived together with the closing frame
            self.frames = []
        elif self.curr_msg_data_type == "text" and not _is_text(b"".join(self.frames)):
            self.frames = []
            self.conn.send_close(_INVALID_TEXT)
            self.handle_parser_exception()
        else:
            super().send_receive_event_to_app()

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "websocket.accept" and self.scope["path"].endswith(INSTANCE_SOCKET):
            self.conn.max_message_size = MAX_BODY
        try:
            await super().send(message)
        except RuntimeError as error:
            if self.close_sent:  # the client closed while we were sending
                raise ClientDisconnected from error
            raise
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True  # refused: the response is complete


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
