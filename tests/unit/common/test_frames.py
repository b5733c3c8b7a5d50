"""The wire format: whatever is put in comes out, in whatever pieces it travels, and nothing else does."""

from __future__ import annotations

import itertools
import json
import random
import struct
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_multicluster_scheduler.common import frames
from ray_multicluster_scheduler.common.frames import CHUNK_BYTES, FrameError, FrameReader, FrameWriter, Message

HEADS = st.dictionaries(
    st.text(max_size=5).filter(lambda key: key not in ("k", "n")),
    st.none() | st.integers() | st.text(max_size=10) | st.lists(st.integers(), max_size=3),
    max_size=3,
)
MESSAGES = st.builds(
    Message, st.text(min_size=1, max_size=8), HEADS, st.lists(st.binary(max_size=50), max_size=4).map(tuple)
)


def wire(*messages: Message) -> bytes:
    writer = FrameWriter()
    for message in messages:
        writer.put(message)
    out = b""
    while writer:
        out += writer.take()
    return out


def frame(payload: bytes, message_id: int = 0, flags: int = 1) -> bytes:
    return struct.pack("!IIB", len(payload), message_id, flags) + payload


def body(head: object, rest: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return struct.pack("!I", len(text)) + text + rest


@given(st.lists(MESSAGES, max_size=5), st.lists(st.integers(1, 40), max_size=200))
def test_messages_survive_any_cutting_of_the_stream(messages: list[Message], cuts: list[int]) -> None:
    data, reader, came = wire(*messages), FrameReader(), []
    position = 0
    for cut in [*cuts, len(data)]:
        came += reader.feed(data[position : position + cut])
        position += cut
    assert came == messages


@pytest.mark.parametrize(
    "size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES]
)
def test_attachments_are_exact_around_the_chunk_size(size: int) -> None:
    blobs = (bytes(range(256)) * (size // 256) + b"x" * (size % 256), b"", b"the end")
    (came,) = FrameReader().feed(wire(Message("calls", {"a": 1}, blobs)))
    assert (came.kind, came.head, came.blobs) == ("calls", {"a": 1}, blobs)


def received(reader: FrameReader, data: bytes, sizes: Iterable[int]) -> tuple[list[Message], int]:
    """The messages of these bytes, received as a connection does, and how many bytes were not copied."""
    messages: list[Message] = []
    rest, direct = memoryview(data), 0
    for size in sizes:
        room = reader.target()
        count = min(size, len(rest), len(room) if room is not None else CHUNK_BYTES)
        if room is None:
            messages += reader.feed(rest[:count])
        else:
            room[:count] = rest[:count]
            messages += reader.received(count)
            direct += count
        rest = rest[count:]
        if not rest:
            return messages, direct
    raise AssertionError("too few sizes")


@given(
    st.lists(
        st.lists(
            st.sampled_from([0, 1, 9, 70_000, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 9, 700_000]), max_size=4
        ),
        max_size=4,
    ),
    st.lists(st.sampled_from([1, 8, 9, 10, 300, 40_000, CHUNK_BYTES, 1_000_000]), min_size=1),
)
def test_large_messages_arrive_in_any_pieces(lengths: list[list[int]], sizes: list[int]) -> None:
    messages = [
        Message(f"m{number}", {"x": number}, tuple(random.Random(size).randbytes(size) for size in one))
        for number, one in enumerate(lengths)
    ]
    writer = FrameWriter()
    for message in messages:
        writer.put(message)
    data = b"".join(b"".join(pieces) for pieces in iter(writer.take_pieces, []))
    came, _ = received(
        FrameReader(), data + frame(body({"k": "end", "n": []})), itertools.chain(sizes, itertools.repeat(100_000))
    )
    assert came.pop().kind == "end"
    assert sorted(came, key=lambda one: one.kind) == messages


def test_a_large_attachment_is_received_where_it_stays() -> None:
    large = random.Random(1).randbytes(5_000_000)
    (came,), direct = received(FrameReader(), wire(Message("x", {}, (b"small", large))), itertools.repeat(1_000_000))
    assert came.blobs == (b"small", large)
    assert all(type(blob) is bytes for blob in came.blobs)
    assert direct > 4_000_000


def test_a_large_attachment_is_sent_without_a_copy() -> None:
    writer, large = FrameWriter(), b"x" * 3_000_000
    writer.put(Message("x", {}, ([b"first", large, b"last"], b"another")))
    pieces = list(itertools.chain.from_iterable(iter(writer.take_pieces, [])))
    shared = sum(len(piece) for piece in pieces if isinstance(piece, memoryview) and piece.obj is large)
    assert shared > 2_900_000
    (came,) = FrameReader().feed(b"".join(pieces))
    assert came.blobs == (b"first" + large + b"last", b"another")


@pytest.mark.parametrize(
    "start",
    [
        body({"k": "x", "n": [1000]}, b"y" * 300_000),
        body({"k": "x", "n": [400_000]}, b"y" * 300_000),
        body({"k": "x", "n": [1 << 40]}, b"y"),
        body({"k": "x", "n": [True, "a"]}, b"y"),
        body({"k": "x"}, b"y"),
        struct.pack("!I", 1 << 30) + b"y",
    ],
    ids=lambda start: repr(start[:24]),
)
def test_a_broken_large_message_is_a_frame_error(start: bytes) -> None:
    data = frame(start[:CHUNK_BYTES], flags=0) + frame(start[CHUNK_BYTES:])
    with pytest.raises(FrameError):
        received(FrameReader(), data, itertools.repeat(100_000))


def test_attachments_may_be_any_buffer() -> None:
    (came,) = FrameReader().feed(wire(Message("x", {}, (bytearray(b"ab"), memoryview(b"xcdx")[1:3]))))
    assert came.blobs == (b"ab", b"cd")


def test_a_small_message_passes_a_large_one_in_progress() -> None:
    writer, reader = FrameWriter(), FrameReader()
    writer.put(Message("large", {}, (b"x" * 5_000_000,)))
    came = reader.feed(writer.take())
    writer.put(Message("small"))
    order, takes = [message.kind for message in came], 0
    while not order and (data := writer.take()):
        takes += 1
        order += [message.kind for message in reader.feed(data)]
    assert (order, takes) == (["small"], 2)
    while data := writer.take():
        order += [message.kind for message in reader.feed(data)]
    assert order == ["small", "large"]


def test_large_messages_share_the_line_fairly() -> None:
    writer, reader = FrameWriter(), FrameReader()
    writer.put(Message("longer", {}, (b"x" * (20 * CHUNK_BYTES),)))
    writer.put(Message("shorter", {}, (b"x" * (3 * CHUNK_BYTES),)))
    order = []
    while data := writer.take():
        order += [message.kind for message in reader.feed(data)]
    assert order == ["shorter", "longer"]


def test_messages_of_one_frame_keep_their_order() -> None:
    writer = FrameWriter()
    assert writer.put(Message("big", {}, (b"x" * CHUNK_BYTES,))) is False
    assert all(writer.put(Message(f"m{number}")) for number in range(5))
    reader, order = FrameReader(), []
    while data := writer.take():
        order += [message.kind for message in reader.feed(data)]
    assert [kind for kind in order if kind != "big"] == ["m0", "m1", "m2", "m3", "m4"]


def test_pending_bytes_count_what_waits() -> None:
    writer = FrameWriter()
    assert writer.pending_bytes == 0
    writer.put(Message("x", {}, (b"x" * 1_000_000,)))
    assert writer.pending_bytes > 1_000_000
    while writer.take():
        pass
    assert writer.pending_bytes == 0
    assert not writer


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS client
        b"\xff" * 20,
    ],
)
def test_another_protocol_is_recognised(garbage: bytes) -> None:
    with pytest.raises(FrameError, match="does not use this protocol"):
        FrameReader().feed(garbage)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\0\0",
        struct.pack("!I", 2) + b"{]",
        struct.pack("!I", 2) + b"\xff\xfe",
        struct.pack("!I", 10_000) + b"{}",
        body([]),
        body("text"),
        body({"n": []}),
        body({"k": "x"}),
        body({"k": "x", "n": 5}),
        body({"k": "x", "n": ["a"]}),
        body({"k": "x", "n": [3]}, b"ab"),
        body({"k": "x", "n": [1]}, b"ab"),
        body({"k": "x", "n": [-1, 1]}),
        struct.pack("!I", 50_000) + b"[" * 50_000,
    ],
    ids=lambda payload: repr(payload[:24]),
)
def test_a_broken_body_is_a_frame_error(payload: bytes) -> None:
    with pytest.raises(FrameError):
        FrameReader().feed(frame(payload))


@given(st.binary(max_size=300))
def test_noise_is_refused_or_waited_out_but_never_crashes(noise: bytes) -> None:
    try:
        messages = FrameReader().feed(noise)
    except FrameError:
        return
    assert all(isinstance(message, Message) for message in messages)


def test_a_stranger_may_not_send_much_before_it_is_known() -> None:
    reader = FrameReader(max_message=1000)
    with pytest.raises(FrameError, match="1000 bytes"):
        reader.feed(frame(b"x" * 1001))
    reader = FrameReader(max_message=1000)
    reader.feed(frame(b"x" * 600, message_id=1, flags=0))
    with pytest.raises(FrameError, match="1000 bytes"):
        reader.feed(frame(b"x" * 600, message_id=2, flags=0))


def test_after_the_handshake_large_messages_are_allowed() -> None:
    reader = FrameReader(max_message=1000)
    reader.allow_large_messages()
    (came,) = reader.feed(wire(Message("x", {}, (b"y" * 2_000_000,))))
    assert len(came.blobs[0]) == 2_000_000


@pytest.mark.parametrize("size", [1000, 100_000, 2_000_000])
def test_a_large_message_may_begin_together_with_the_last_of_the_handshake(size: int) -> None:
    data, reader = wire(Message("welcome"), Message("x", {}, (b"y" * size,))), FrameReader(max_message=500)
    (welcome,) = reader.feed(data[:900])
    reader.allow_large_messages()
    (came,) = reader.feed(data[900:])
    assert (welcome.kind, came.kind, came.blobs) == ("welcome", "x", (b"y" * size,))


def test_the_limit_counts_what_is_in_progress_only() -> None:
    reader = FrameReader(max_message=1000)
    for _ in range(10):
        reader.feed(wire(Message("x", {}, (b"y" * 500,))))


def test_a_message_too_large_to_send_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_MESSAGE_BYTES", 100)
    writer = FrameWriter()
    with pytest.raises(FrameError, match="over the limit of 100"):
        writer.put(Message("x", {}, (b"y" * 101,)))
    assert not writer
