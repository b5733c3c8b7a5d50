"""Reads and writes the messages of a link's connection; both of its ends use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from ray_multicluster_scheduler.common.frames import CHUNK_BYTES, FrameReader, FrameWriter, Message

_READ_BYTES = 1 << 20
_SMALL_BYTES = 64 * 1024

Handle: TypeAlias = Callable[[list[Message]], None]
"""Gets the messages in the order of their arrival; an empty list when a part of one has arrived."""


async def read_messages(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: FrameReader, handle: Handle
) -> None:
    """Pass all messages to ``handle``. Raises what that raises, and ConnectionError at the end of the connection."""
    while data := await reader.read(_READ_BYTES):
        handle(frames.feed(data))
        if len(data) < _READ_BYTES:
            break  # the reader is empty
    if reader.at_eof() or writer.transport.is_closing():
        raise _closed()
    protocol = _MessageProtocol(frames, writer.transport.get_protocol(), handle)
    writer.transport.set_protocol(protocol)
    raise await protocol.ended


def write_some(writer: asyncio.StreamWriter, outbox: FrameWriter) -> bool:
    """Write the next bytes; False if there are none."""
    pieces = outbox.take_pieces()
    for piece in pieces:
        writer.write(piece)
    return bool(pieces)


def write_if_idle(writer: asyncio.StreamWriter | None, outbox: FrameWriter) -> bool:
    """Write the outbox at once if it is small and no other bytes wait, which saves the writing task a turn of the loop.
    ``writer`` is None while that task is busy. Returns whether it was written."""
    if writer is None or outbox.pending_bytes > _SMALL_BYTES or writer.transport.get_write_buffer_size():
        return False
    writer.write(outbox.take())
    return True


class _MessageProtocol(asyncio.BufferedProtocol):
    """Receives in place of a StreamReader, which would copy each byte three times. The StreamWriter goes on to use
    ``stream``, its protocol."""

    def __init__(self, frames: FrameReader, stream: asyncio.BaseProtocol, handle: Handle) -> None:
        assert isinstance(stream, asyncio.Protocol)
        self._frames, self._stream, self._handle = frames, stream, handle
        self._small = memoryview(bytearray(CHUNK_BYTES))
        self._target: memoryview | None = None
        self.ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        """The error that ended the connection, or that it must end for."""

    def get_buffer(self, sizehint: int) -> memoryview:
        self._target = self._frames.target()
        return self._small if self._target is None else self._target

    def buffer_updated(self, nbytes: int) -> None:
        if self.ended.done():
            return
        try:
            if self._target is None:
                messages = self._frames.feed(self._small[:nbytes])
            else:
                self._target = None
                messages = self._frames.received(nbytes)
            self._handle(messages)
        except Exception as error:  # noqa: BLE001 - raised by read_messages
            self._end(error)

    def eof_received(self) -> bool | None:
        self._end(_closed())
        return self._stream.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or _closed())
        self._stream.connection_lost(exc)

    def pause_writing(self) -> None:
        self._stream.pause_writing()

    def resume_writing(self) -> None:
        self._stream.resume_writing()

    def _end(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_result(error)


def _closed() -> ConnectionResetError:
    return ConnectionResetError("closed by the other side")
