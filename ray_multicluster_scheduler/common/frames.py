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

import io
import itertools
import json
import operator
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

PROTOCOL_VERSION = 4
OLDEST_PROTOCOL = 2
"""The oldest version still accepted: agents that an older release started may still run its work. Version 3 adds to
actor calls which process of the control plane sent them, version 4 generators."""
CHUNK_BYTES = 256 * 1024
MAX_MESSAGE_BYTES = 4 * 1024**3 - 1
MAX_HANDSHAKE_BYTES = 64 * 1024

_FRAME = struct.Struct("!IIB")
_HEAD_LENGTH = struct.Struct("!I")
_LAST = 1
_SHORT_PIECE = 32 * 1024
"""Copying fewer bytes takes less time than sending or receiving them apart."""
_json = json.JSONEncoder(separators=(",", ":")).encode

Blob: TypeAlias = bytes | bytearray | memoryview
Pieces: TypeAlias = list[Blob]
"""Bytes in pieces, so that they need not be copied to be together."""


class FrameError(ValueError):
    """Received bytes are not valid in this format, or a message is too large."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message: a kind, a small JSON head, and opaque binary attachments."""

    kind: str
    head: dict[str, Any] = field(default_factory=dict)
    blobs: Sequence[Blob | Pieces] = ()
    """Of a received message each is ``bytes``."""


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
        return b"".join(self._next(limit))

    def take_pieces(self, limit: int = CHUNK_BYTES) -> Pieces:
        """The same, without a copy of long pieces."""
        return join_short(self._next(limit))

    def _next(self, limit: int) -> Pieces:
        out: Pieces = []
        size = 0
        while self._streams and size < limit:
            stream = self._streams.popleft()
            before = stream.left
            size += stream.frame(out)
            self.pending_bytes -= before - stream.left
            if stream.left:
                self._streams.append(stream)
        return out

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
        parts: deque[memoryview] = deque()
        lengths = []
        for blob in message.blobs:
            pieces = [memoryview(piece).cast("B") for piece in (blob if isinstance(blob, list) else (blob,))]
            parts += pieces
            lengths.append(bytes_in(pieces))
        head = _json({**message.head, "k": message.kind, "n": lengths}).encode()
        parts.appendleft(memoryview(_HEAD_LENGTH.pack(len(head)) + head))
        self.id, self._parts, self.left = message_id, parts, bytes_in(parts)

    def frame(self, out: Pieces) -> int:
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
    """Reassembles messages from received bytes, which may be split anywhere.

    Pass them to :meth:`feed`; or, while :meth:`target` returns a buffer, receive into that and call :meth:`received`:
    then large attachments are received where they stay.
    """

    def __init__(self, max_message: int = MAX_MESSAGE_BYTES) -> None:
        self.max_message = max_message
        self._buffer = bytearray()
        self._incoming: dict[int, _Incoming] = {}
        self._incoming_bytes = 0
        self._open: tuple[int, _Incoming, int] | None = None
        """The frame of a longer message that has arrived in part: message id, the message, and flags."""
        self._missing = 0
        """The bytes that it lacks."""
        self._target: memoryview | None = None
        self._is_place = False
        """Whether the target is a part of an attachment."""

    def allow_large_messages(self) -> None:
        """Lift the size limit of the handshake; call it when the peer is authenticated."""
        self.max_message = MAX_MESSAGE_BYTES

    def feed(self, data: Blob) -> list[Message]:
        """Returns the messages that ``data`` completes. Raises FrameError for an invalid format."""
        messages: list[Message] = []
        if self._open is not None:
            part = min(len(data), self._missing)
            view = memoryview(data)
            self._open[1].add(view[:part])
            messages += self._received(part)
            data = view[part:]
        self._buffer += data
        position = 0
        while len(self._buffer) - position >= _FRAME.size and self._open is None:
            length, message_id, flags = _FRAME.unpack_from(self._buffer, position)
            if length > CHUNK_BYTES or flags > _LAST:
                raise FrameError("the peer does not use this protocol")
            start, end = position + _FRAME.size, position + _FRAME.size + length
            is_whole = flags & _LAST and message_id not in self._incoming
            is_over = self._incoming_bytes + length > self.max_message
            if len(self._buffer) < end and (is_whole or is_over):
                break  # a large message may follow the last of a handshake, whose limit ends then
            if is_over:
                raise FrameError(f"messages in progress are over the limit of {self.max_message} bytes")
            with memoryview(self._buffer) as buffer, buffer[start:end] as payload:
                position = start + len(payload)
                if is_whole:
                    messages.append(_decode(payload))
                    continue
                incoming = self._incoming.setdefault(message_id, _Incoming())
                self._incoming_bytes += length
                self._open, self._missing = (message_id, incoming, flags), length
                incoming.add(payload)
                messages += self._received(len(payload))
        del self._buffer[:position]
        return messages

    def target(self) -> memoryview | None:
        """The buffer for the next bytes; None if they are to be passed to :meth:`feed`. Ends with the open frame and
        the header of the next one, so that the next target can be the place of its payload."""
        if self._open is None:
            return None
        self._target = self._open[1].room(self._missing, _FRAME.size)
        self._is_place = self._target is not None
        if self._target is None:
            self._target = memoryview(bytearray(self._missing + _FRAME.size))
        return self._target

    def received(self, count: int) -> list[Message]:
        """As :meth:`feed`, for so many bytes that are in :meth:`target` now."""
        assert self._target is not None
        assert self._open is not None
        target, self._target = self._target[:count], None
        if not self._is_place:
            return self.feed(target)
        part = min(count, self._missing)
        following = bytes(target[part:])
        self._open[1].skip(part)
        return [*self._received(part), *(self.feed(following) if following else ())]

    def _received(self, count: int) -> list[Message]:
        """So many bytes of the open frame have arrived: its message, if they complete it."""
        assert self._open is not None
        self._missing -= count
        if self._missing:
            return []
        (message_id, incoming, flags), self._open = self._open, None
        if not flags & _LAST:
            return []
        del self._incoming[message_id]
        self._incoming_bytes -= incoming.size
        return [incoming.message()]


class _Incoming:
    """A message of several frames while it arrives. Its attachments are allocated when its head is complete."""

    __slots__ = ("_blobs", "_head", "_kind", "_lengths", "_position", "_start", "size")

    def __init__(self) -> None:
        self.size = 0
        self._start: bytearray | None = bytearray()
        """The bytes until the head is complete."""
        self._kind = ""
        self._head: dict[str, Any] = {}
        self._lengths: deque[int] = deque()
        """Of the attachments that are not complete."""
        self._blobs: list[io.BytesIO] = []
        """Those that are complete, and the next one. The value of a BytesIO is its buffer itself, not a copy."""
        self._position = 0

    def add(self, data: memoryview) -> None:
        """Copy the next bytes of the message."""
        self.size += len(data)
        if self._start is None:
            self._fill(data)
            return
        self._start += data
        if len(self._start) < _HEAD_LENGTH.size:
            return
        end = _HEAD_LENGTH.size + _HEAD_LENGTH.unpack_from(self._start)[0]
        if len(self._start) < end:
            return
        self._kind, self._head, lengths = _decode_head(self._start[_HEAD_LENGTH.size : end])
        if sum(lengths) > MAX_MESSAGE_BYTES:
            raise FrameError(f"the attachments of a message are over the limit of {MAX_MESSAGE_BYTES} bytes")
        self._lengths.extend(lengths)
        rest, self._start = self._start[end:], None
        self._next_blob()
        self._fill(memoryview(rest))

    def room(self, most: int, more: int) -> memoryview | None:
        """The place of the next ``most`` bytes, and of ``more`` if the attachment goes on; None for less than a few."""
        if not self._lengths or self._start is not None:
            return None
        left = self._lengths[0] - self._position
        if min(left, most) < _SHORT_PIECE:
            return None
        end = self._position + (most + more if left >= most + more else min(left, most))
        return self._blobs[-1].getbuffer()[self._position : end]

    def skip(self, count: int) -> None:
        """So many bytes are in :meth:`room`."""
        self.size += count
        self._position += count
        self._next_blob()

    def message(self) -> Message:
        """The message, which has arrived as a whole."""
        if self._start is not None or self._lengths:
            raise FrameError("the lengths of a message's attachments do not add up to its size")
        return Message(self._kind, self._head, tuple(blob.getvalue() for blob in self._blobs))

    def _fill(self, data: memoryview) -> None:
        while data:
            if not self._lengths:
                raise FrameError("the lengths of a message's attachments do not add up to its size")
            part = min(len(data), self._lengths[0] - self._position)
            self._blobs[-1].getbuffer()[self._position : self._position + part] = data[:part]
            self._position += part
            data = data[part:]
            self._next_blob()

    def _next_blob(self) -> None:
        """Allocate the next attachment when the one before is complete."""
        while self._lengths and (not self._blobs or self._position == self._lengths[0]):
            if self._blobs:
                self._lengths.popleft()
            if self._lengths:
                self._position = 0
                self._blobs.append(io.BytesIO(bytes(self._lengths[0])))


def _decode_head(data: Blob) -> tuple[str, dict[str, Any], list[int]]:
    """The kind, the other keys and the lengths of the attachments."""
    try:
        head = json.loads(bytes(data))
        kind, lengths = head.pop("k"), head.pop("n")
        if any(length < 0 for length in lengths):
            raise FrameError("an attachment's length is negative")
        return kind, head, [operator.index(length) for length in lengths]
    except FrameError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FrameError(f"a message cannot be decoded: {error}") from error


def _decode(view: memoryview) -> Message:
    """The message of a single frame."""
    if len(view) < _HEAD_LENGTH.size:
        raise FrameError("a message is shorter than its head")
    (head_length,) = _HEAD_LENGTH.unpack_from(view)
    position = _HEAD_LENGTH.size + head_length
    kind, head, lengths = _decode_head(view[_HEAD_LENGTH.size : position])
    blobs = []
    for length in lengths:
        blobs.append(bytes(view[position : position + length]))
        position += length
    if position != len(view):
        raise FrameError("the lengths of a message's attachments do not add up to its size")
    return Message(kind, head, tuple(blobs))


def join_short(pieces: Iterable[Blob], size: int = _SHORT_PIECE) -> Pieces:
    """The same bytes in fewer pieces: those shorter than ``size`` are joined, the others are not copied."""
    joined: Pieces = []
    for is_short, group in itertools.groupby(pieces, lambda piece: len(piece) < size):
        some = list(group)
        joined += [b"".join(some)] if is_short else some
    return joined


def bytes_in(pieces: Iterable[Blob]) -> int:
    """The size of all pieces together."""
    return sum(len(piece) for piece in pieces)
