"""The forwarder in front of a plain echo server: cut, freeze, delay, throttle."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest

from ray_multicluster_scheduler.local_fleet.forwarder import Forwarder, Impairment
from ray_multicluster_scheduler.local_fleet.ports import LOOPBACK

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Setup:
    """An echo server, the forwarder in front of it, and the lines a test opened."""

    def __init__(self, server: asyncio.Server) -> None:
        self.impairment = Impairment()
        self.forwarder = Forwarder(self.impairment)
        self.target: int = server.sockets[0].getsockname()[1]
        self.lines: list[Line] = []

    async def line(self) -> Line:
        line = await asyncio.open_connection(LOOPBACK, self.forwarder.port)
        self.lines.append(line)
        return line


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
    except ConnectionError:
        writer.close()


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    server = await asyncio.start_server(_echo, LOOPBACK, 0)
    made = Setup(server)
    await made.forwarder.open(made.target)
    yield made
    await made.forwarder.close()
    for _, writer in made.lines:
        writer.close()
    server.close()
    await asyncio.sleep(0)


async def _say(line: Line, data: bytes) -> bytes:
    reader, writer = line
    writer.write(data)
    await writer.drain()
    return await asyncio.wait_for(reader.readexactly(len(data)), 60)


async def test_a_large_value_arrives_whole_and_the_end_of_one_side_reaches_the_other(setup: Setup) -> None:
    reader, writer = await setup.line()
    sent = bytes(range(256)) * 20_000

    async def send() -> None:
        writer.write(sent)
        await writer.drain()
        writer.write_eof()

    _, received = await asyncio.gather(send(), asyncio.wait_for(reader.read(-1), 60))
    assert received == sent


async def test_cut_drops_open_connections_and_refuses_new_ones_until_uncut(setup: Setup) -> None:
    line = await setup.line()
    assert await _say(line, b"before") == b"before"

    await setup.forwarder.cut()

    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(line[0].read(1), 60)
    with pytest.raises(ConnectionRefusedError):
        await setup.line()
    await setup.forwarder.uncut()
    assert await _say(await setup.line(), b"after") == b"after"


async def test_a_cut_survives_a_restart_of_the_cluster(setup: Setup) -> None:
    await setup.forwarder.cut()
    await setup.forwarder.shut()
    await setup.forwarder.open(setup.target)
    with pytest.raises(ConnectionRefusedError):
        await setup.line()


async def test_the_port_is_kept_while_it_refuses_and_follows_the_target(setup: Setup) -> None:
    await setup.forwarder.shut()
    with pytest.raises(ConnectionRefusedError):
        await setup.line()
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind((LOOPBACK, setup.forwarder.port))

    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read(100)).upper())
        writer.close()

    other = await asyncio.start_server(shout, LOOPBACK, 0)
    await setup.forwarder.open(other.sockets[0].getsockname()[1])
    assert await _say(await setup.line(), b"moved") == b"MOVED"
    other.close()


async def test_a_target_that_refuses_shows_as_a_reset(setup: Setup) -> None:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        await setup.forwarder.shut()
        await setup.forwarder.open(probe.getsockname()[1])
        reader, _ = await setup.line()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(1), 60)


async def test_a_frozen_connection_stays_open_without_loss(setup: Setup) -> None:
    line = await setup.line()
    await _say(line, b"x")
    setup.impairment.freeze()

    line[1].write(b"held")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(line[0].read(1), 0.3)
    fresh = await setup.line()
    fresh[1].write(b"also held")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(fresh[0].read(1), 0.3)

    setup.impairment.thaw()
    assert await asyncio.wait_for(line[0].readexactly(4), 60) == b"held"
    assert await asyncio.wait_for(fresh[0].readexactly(9), 60) == b"also held"


async def test_a_frozen_connection_hides_the_end_of_the_other_side(setup: Setup) -> None:
    line = await setup.line()
    await _say(line, b"x")
    setup.impairment.freeze()
    line[1].write_eof()  # the echo server would answer with its own end
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(line[0].read(1), 0.3)
    setup.impairment.thaw()
    assert await asyncio.wait_for(line[0].read(1), 60) == b""


async def test_delay_counts_each_way_and_does_not_add_up_over_chunks(setup: Setup) -> None:
    line = await setup.line()
    await _say(line, b"warm")
    setup.impairment.delay_s = 0.5

    begin = time.monotonic()
    await _say(line, b"ping")
    assert time.monotonic() - begin >= 1.0

    begin = time.monotonic()
    await _say(line, bytes(1_000_000))  # over 15 chunks each way, all under way at once: else this would take 15 s
    assert time.monotonic() - begin < 12


async def test_throttle_limits_all_connections_of_a_cluster_together(setup: Setup) -> None:
    lines = [await setup.line(), await setup.line()]
    setup.impairment.bytes_per_s = 100_000
    begin = time.monotonic()
    await asyncio.gather(*(_say(line, bytes(25_000)) for line in lines))
    assert time.monotonic() - begin >= 0.4

    setup.impairment.bytes_per_s = None
    begin = time.monotonic()
    await _say(lines[0], bytes(4_000_000))  # would take 40 s
    assert time.monotonic() - begin < 20


async def test_some_connections_are_cut_and_new_ones_accepted(setup: Setup) -> None:
    line = await setup.line()
    assert await _say(line, b"before") == b"before"
    assert await setup.forwarder.cut_some(0.0) == 0
    assert await _say(line, b"still") == b"still"
    assert await setup.forwarder.cut_some(1.0) == 1
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(line[0].read(1), 60)
    assert await _say(await setup.line(), b"new") == b"new"


async def test_a_half_open_connection_drops_bytes_and_hides_its_end(setup: Setup) -> None:
    line = await setup.line()
    assert await _say(line, b"before") == b"before"

    assert setup.forwarder.blackhole() == 1

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(_say(line, b"into the void"), 0.3)
    assert await _say(await setup.line(), b"new") == b"new", "others are not touched"
    await setup.forwarder.uncut()
    with pytest.raises(TimeoutError):  # neither a byte, nor an end, nor a reset
        await asyncio.wait_for(line[0].read(1), 0.3)


async def test_neither_side_of_a_half_open_connection_sees_the_other_end(setup: Setup) -> None:
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    joined = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        joined.set()
        try:
            received.set_result(await reader.read(1))
        except ConnectionError as error:
            received.set_exception(error)
        writer.close()

    async with await asyncio.start_server(listen, LOOPBACK, 0) as server:
        await setup.forwarder.open(server.sockets[0].getsockname()[1])
        _, writer = await setup.line()
        writer.write(b"x")
        await asyncio.wait_for(joined.wait(), 60)
        setup.forwarder.blackhole()
        writer.transport.abort()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(received), 0.3)
        await setup.forwarder.shut()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(received, 60)
