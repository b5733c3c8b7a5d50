"""The messages of a connection: large values arrive whole, others pass them, and its end is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ray_multicluster_scheduler.common.frames import CHUNK_BYTES, FrameError, FrameReader, FrameWriter, Message
from ray_multicluster_scheduler.scheduler.connection.gateway.link.streams import read_messages, write_some
from tests.support.eventually import eventually

LARGE = bytes(range(256)) * 80_000


class Ends:
    """Both ends of a connection; what arrives at one of them is written down."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came: list[Message] = []
        self.reader, self.writer, self.outbox = reader, writer, FrameWriter()
        self.sender: asyncio.StreamWriter | None = None
        self.reading = asyncio.create_task(read_messages(reader, writer, FrameReader(), self._handle))

    def _handle(self, messages: list[Message]) -> None:
        self.came += messages
        if any(message.kind == "bad" for message in messages):
            raise FrameError("it is bad")

    async def send(self, *messages: Message, parts: int = 1_000_000) -> None:
        """Send them, or the first parts."""
        assert self.sender is not None
        for message in messages:
            self.outbox.put(message)
        while parts and write_some(self.sender, self.outbox):
            parts -= 1
            await self.sender.drain()


@asynccontextmanager
async def connection() -> AsyncIterator[Ends]:
    accepted: asyncio.Future[Ends] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda *streams: accepted.set_result(Ends(*streams)), "127.0.0.1", 0)
    _, sender = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    ends = await accepted
    ends.sender = sender
    try:
        yield ends
    finally:
        sender.transport.abort()
        ends.reading.cancel()
        await asyncio.gather(ends.reading, return_exceptions=True)
        ends.writer.transport.abort()
        server.close()


async def test_small_messages_pass_large_values_and_all_arrive_as_they_were() -> None:
    async with connection() as ends:
        await ends.send(Message("first"))
        await eventually(lambda: ends.came)
        await ends.send(Message("large", {}, (LARGE, b"", [LARGE, b"end"])), Message("other", {}, (LARGE,)), parts=8)
        await ends.send(Message("small", {}, (b"x",)))
        await eventually(lambda: len(ends.came) == 4)
        assert [message.kind for message in ends.came] == ["first", "small", "other", "large"]
        assert ends.came[2].blobs == (LARGE,)
        assert ends.came[3].blobs == (LARGE, b"", LARGE + b"end")


async def test_many_medium_values_at_once() -> None:
    values = [bytes([number]) * (CHUNK_BYTES + 3 * number) for number in range(100)]
    async with connection() as ends:
        await ends.send(*(Message(str(number), {}, (value,)) for number, value in enumerate(values)))
        await eventually(lambda: len(ends.came) == 100)
        assert {int(message.kind): message.blobs[0] for message in ends.came} == dict(enumerate(values))


@pytest.mark.parametrize("before", [(), (Message("first"),)])
async def test_a_connection_that_breaks_within_a_value_delivers_no_part_of_it(before: tuple[Message, ...]) -> None:
    async with connection() as ends:
        await ends.send(*before, Message("large", {}, (LARGE,)), parts=10)
        assert ends.sender is not None
        ends.sender.close()
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(ends.reading, 60)
        assert [message.kind for message in ends.came] == [message.kind for message in before]


async def test_a_connection_that_is_closed_before_any_message() -> None:
    async with connection() as ends:
        assert ends.sender is not None
        ends.sender.close()
        with pytest.raises(ConnectionResetError, match="closed by the other side"):
            await asyncio.wait_for(ends.reading, 60)


async def test_an_error_of_the_handler_ends_the_reading() -> None:
    async with connection() as ends:
        await ends.send(Message("first"))
        await eventually(lambda: ends.came)
        await ends.send(Message("bad"))
        with pytest.raises(FrameError, match="it is bad"):
            await asyncio.wait_for(ends.reading, 60)
        await ends.send(Message("later"))
        await asyncio.sleep(0)
        assert [message.kind for message in ends.came] == ["first", "bad"]
