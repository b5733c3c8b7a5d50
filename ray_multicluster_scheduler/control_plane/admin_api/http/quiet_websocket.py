"""QuietWebSocket: what a client does wrong over a WebSocket is its own trouble, and none for the log of the service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

_NO_TEXT = 1007


class QuietWebSocket(WebSocketsSansIOProtocol):
    """The server's own protocol, which writes an error for each text that is none, with a traceback, and for each
    handshake that is refused: anybody could fill the log."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.write(b"".join(self.conn.data_to_send()))  # else it would be left open, without an answer
            self.transport.close()

    def send_receive_event_to_app(self) -> None:
        if self.conn.state is not State.OPEN:  # what came with that which ended it
            self.frames = []
        elif self.curr_msg_data_type == "text" and not _is_text(b"".join(self.frames)):
            self.frames = []
            self.conn.send_close(_NO_TEXT)
            self.handle_parser_exception()
        else:
            super().send_receive_event_to_app()

    async def send(self, message: ASGISendEvent) -> None:
        try:
            await super().send(message)
        except RuntimeError as error:
            if self.close_sent:  # it ended while somebody was about to say something: whoever heard it is gone
                raise ClientDisconnected from error
            raise
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True  # it was refused: nothing is missing


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
