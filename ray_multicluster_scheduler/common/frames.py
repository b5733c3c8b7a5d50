"""Codec of the wire protocol between a control plane and its agents: messages to frames and back. Does no I/O.

A *message* is a kind, a JSON head and binary attachments::

    body  = u32 head length | head (JSON, UTF-8) | attachment | attachment | …
    head  = {"k": kind, "n": [attachment lengths], …the message's own keys}

A body travels as one or more *frames*, big-endian::

    frame = u32 payload length | u32 message id | u8 flags | payload        flags: 1 = last frame of this message

Frames of different messages may interleave, so that a 200 MB value does not delay a heartbeat: large messages take
turns, one chunk each, and small messages go between the chunks. Frames of one message are in order. The sender chooses
message ids and may reuse an id once its message is complete. The handshake exchanges PROTOCOL_VERSION; increase it with
every change that an older peer cannot read.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

PROTOCOL_VERSION = 3
OLDEST_PROTOCOL = 2
"""The oldest version still accepted: agents that an older release started may still run its work. Version 3 adds to
actor calls which process of the control plane sent them."""
CHUNK_BYTES = 256 * 1024
MAX_MESSAGE_BYTES = 4 * 1024**3 - 1
MAX_HANDSHAKE_BYTES = 64 * 1024

_FRAME = struct.Struct("!IIB")
_HEAD_LENGTH = struct.Struct("!I")
_LAST = 1
_json = json.JSONEncoder(separators=(",", ":")).encode

Blob: TypeAlias = bytes | bytearray | memoryview


class FrameError(ValueError):
    """Received bytes are not valid in this format, or a message is too large."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message: a kind, a small JSON head, and opaque binary attachments."""

    kind: str
    head: dict[str, Any] = field(default_factory=dict)
    blobs: Sequence[Blob] = ()


class FrameWriter:
    """Outgoing queue of messages, split into frames; large messages take turns."""

    def __init__(self) -> None:
        self._streams: deque[_Stream] = deque()
        self._next_id = 0
        self.pending_bytes = 0

    def put(self, message: Message, *, urgent: bool = False) -> bool:
        """Queue a message; an ``urgent`` one goes before all others. Raises FrameError if it exceeds the size limit.

        Returns whether it fits into one frame: then only urgent messages can overtake it.
        """
        stream = _Stream(self._next_id, message)
        if stream.left > MAX_MESSAGE_BYTES:
            raise FrameError(f"a message of {stream.left} bytes is over the limit of {MAX_MESSAGE_BYTES} bytes")
        self._next_id = (self._next_id + 1) & 0xFFFFFFFF
        self.pending_bytes += stream.left
        if urgent:
            self._streams.appendleft(stream)
        else:
            self._streams.append(stream)
        return stream.left <= CHUNK_BYTES

    def take(self, limit: int = CHUNK_BYTES) -> bytes:
        """The next bytes to send, about ``limit`` of them; empty if the queue is empty."""
        out: list[Blob] = []
        size = 0
        while self._streams and size < limit:
            stream = self._streams.popleft()
            before = stream.left
            size += stream.frame(out)
            self.pending_bytes -= before - stream.left
            if stream.left:
                self._streams.append(stream)
        return b"".join(out)

    def __bool__(self) -> bool:
        return bool(self._streams)


def small_frame(message: Message) -> bytes:
    """A message that fits into one frame, without a queue: for handshakes and leases."""
    frames = FrameWriter()
    frames.put(message)
    return frames.take()


class _Stream:
    """The unsent part of one message."""

    __slots__ = ("_parts", "id", "left")

    def __init__(self, message_id: int, message: Message) -> None:
        blobs = [memoryview(blob).cast("B") for blob in message.blobs]
        head = _json({**message.head, "k": message.kind, "n": [len(blob) for blob in blobs]}).encode()
        self.id = message_id
        self._parts: deque[memoryview] = deque([memoryview(_HEAD_LENGTH.pack(len(head)) + head), *blobs])
        self.left = sum(len(part) for part in self._parts)

    def frame(self, out: list[Blob]) -> int:
        """Append one frame to ``out``; return its size on the wire."""
        payload = min(self.left, CHUNK_BYTES)
        self.left -= payload
        out.append(_FRAME.pack(payload, self.id, 0 if self.left else _LAST))
        missing = payload
        while missing:
            part = self._parts[0]
            if len(part) <= missing:
                out.append(self._parts.popleft())
                missing -= len(part)
            else:
                out.append(part[:missing])
                self._parts[0] = part[missing:]
                missing = 0
        return payload + _FRAME.size


class FrameReader:
    """Reassembles messages from received bytes, which may be split anywhere."""

    def __init__(self, max_message: int = MAX_MESSAGE_BYTES) -> None:
        self.max_message = max_message
        self._buffer = bytearray()
        self._partial: dict[int, bytearray] = {}
        self._partial_bytes = 0

    def allow_large_messages(self) -> None:
        """Lift the size limit of the handshake; call it when the peer is authenticated."""
        self.max_message = MAX_MESSAGE_BYTES

    def feed(self, data: Blob) -> list[Message]:
        """Returns the messages that ``data`` completes. Raises FrameError for an invalid format."""
        self._buffer += data
        messages: list[Message] = []
        position = 0
        while len(self._buffer) - position >= _FRAME.size:
            length, message_id, flags = _FRAME.unpack_from(self._buffer, position)
            if length > CHUNK_BYTES or flags > _LAST:
                raise FrameError("the peer does not use this protocol")
            end = position + _FRAME.size + length
            if len(self._buffer) < end:
                break
            with memoryview(self._buffer) as buffer, buffer[position + _FRAME.size : end] as payload:
                body = self._body(message_id, payload, flags)
            position = end
            if body is not None:
                messages.append(_decode(body))
        del self._buffer[:position]
        return messages

    def _body(self, message_id: int, payload: memoryview, flags: int) -> Blob | None:
        if self._partial_bytes + len(payload) > self.max_message:
            raise FrameError(f"messages in progress are over the limit of {self.max_message} bytes")
        partial = self._partial.get(message_id)
        if partial is None:
            if flags & _LAST:
                return bytes(payload)
            partial = self._partial[message_id] = bytearray()
        partial += payload
        self._partial_bytes += len(payload)
        if not flags & _LAST:
            return None
        self._partial_bytes -= len(partial)
        return self._partial.pop(message_id)


def _decode(body: Blob) -> Message:
    view = memoryview(body)
    try:
        (head_length,) = _HEAD_LENGTH.unpack_from(view)
        head = json.loads(bytes(view[_HEAD_LENGTH.size : _HEAD_LENGTH.size + head_length]))
        kind, lengths = head.pop("k"), head.pop("n")
        position = _HEAD_LENGTH.size + head_length
        blobs = []
        for length in lengths:
            if length < 0:
                raise FrameError("an attachment's length is negative")
            blobs.append(bytes(view[position : position + length]))
            position += length
        if position != len(view):
            raise FrameError("the lengths of a message's attachments do not add up to its size")
    except FrameError:
        raise
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FrameError(f"a message cannot be decoded: {error}") from error
    return Message(kind, head, tuple(blobs))
