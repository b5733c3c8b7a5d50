"""The tunnel between our port and an agent's connection in an actor: whole batches, in order, nothing twice."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from ray_multicluster_scheduler.scheduler.connection.connector import tunnel as tunnel_module
from ray_multicluster_scheduler.scheduler.connection.connector.tunnel import BatchDelay, ChunkSize, Tunnel
from ray_multicluster_scheduler.scheduler.connection.gateway.link.host_tunnel import ActorTunnel, PendingConnection


class Actor:
    """What GatewayHost does, without Ray: its calls run on threads, and each is counted."""

    tunnel: ActorTunnel

    def __init__(self, offers: PendingConnection) -> None:
        self.offers = offers
        self.calls: dict[str, list[int]] = {"push": [], "pull": []}

    async def call(self, method: str, *args: Any, patience_s: float | None = None) -> Any:
        return await asyncio.to_thread(getattr(self, method), *args)

    def open(self, name: str) -> dict[str, Any]:
        self.tunnel = ActorTunnel(name)
        self.offers.put(self.tunnel.theirs)
        return {"session": "s1", "ended": None}

    def pull(self, name: str, most: int, wait_s: float) -> bytes | None:
        data = self.tunnel.pull(most, wait_s)
        self.calls["pull"].append(len(data or b""))
        assert len(data or b"") <= most
        return data

    def push(self, name: str, data: bytes) -> bool:
        self.calls["push"].append(len(data))
        return self.tunnel.push(data)

    def close(self, name: str) -> str | None:
        self.tunnel.close()
        return "told to"


class Line:
    """Our port for agents, a tunnel to it, and the agent's end."""

    async def open(self) -> Line:
        came: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.server = await asyncio.start_server(lambda *streams: came.set_result(streams), "127.0.0.1", 0)
        offers = PendingConnection(asyncio.get_running_loop())
        self.actor = Actor(offers)
        self.tunnel = Tunnel(self.actor, self.server.sockets[0].getsockname()[:2], 0.2)
        assert (await self.tunnel.open())["session"] == "s1"
        self.ours = await came
        self.theirs = await offers.take()
        self.carrying = asyncio.create_task(self.tunnel.carry())
        return self

    async def close(self) -> None:
        self.carrying.cancel()
        await asyncio.gather(self.carrying, return_exceptions=True)
        for _, writer in (self.ours, self.theirs):
            writer.transport.abort()
        self.actor.tunnel.close()
        self.server.close()
        await self.server.wait_closed()


@pytest.fixture
async def line() -> Any:
    made = await Line().open()
    yield made
    await made.close()


@pytest.mark.parametrize("way", ["pull", "push"])
async def test_everything_arrives_in_order_both_ways(line: Line, way: str) -> None:
    source, sink = (line.theirs, line.ours) if way == "pull" else (line.ours, line.theirs)
    data = bytes(range(256)) * 20_000
    source[1].write(data)
    assert await asyncio.wait_for(sink[0].readexactly(len(data)), 20) == data


async def test_small_messages_are_sent_at_once(line: Line) -> None:
    line.theirs[1].write(b"hello")
    assert await asyncio.wait_for(line.ours[0].readexactly(5), 60) == b"hello"
    line.ours[1].write(b"well")
    assert await asyncio.wait_for(line.theirs[0].readexactly(4), 60) == b"well"


async def test_when_our_end_closes_the_tunnel_and_the_agents_end_close(line: Line) -> None:
    line.ours[1].close()
    await asyncio.wait_for(line.carrying, 60)
    assert await line.tunnel.close() == "told to"
    assert await asyncio.wait_for(line.theirs[0].read(), 60) == b""


async def test_when_the_agent_closes_our_end_sees_it(line: Line) -> None:
    line.theirs[1].close()
    await asyncio.wait_for(line.carrying, 60)
    assert await asyncio.wait_for(line.ours[0].read(), 60) == b""


def test_a_pull_that_waits_is_woken_when_the_connection_closes() -> None:
    tunnel = ActorTunnel("one")
    threading.Timer(0.1, tunnel.close).start()
    assert tunnel.pull(100, 20.0) is None
    assert tunnel.pull(100, 20.0) is None, "it stays closed"
    assert not tunnel.push(b"anything")
    tunnel.theirs.close()


def test_a_poll_without_changes_comes_back_empty() -> None:
    tunnel = ActorTunnel("one")
    assert tunnel.pull(100, 0.01) == b""
    tunnel.theirs.send(b"abcdef")
    assert tunnel.pull(4, 1.0) == b"abcd"
    assert tunnel.pull(4, 1.0) == b"ef"
    tunnel.close()
    tunnel.theirs.close()


async def test_a_pending_connection_is_replaced_by_the_next() -> None:
    offers = PendingConnection(asyncio.get_running_loop())
    first, second = ActorTunnel("first"), ActorTunnel("second")
    offers.put(first.theirs)
    offers.put(second.theirs)
    await asyncio.sleep(0)
    reader, writer = await asyncio.wait_for(offers.take(), 60)
    second.push(b"for the second")
    assert await asyncio.wait_for(reader.readexactly(14), 60) == b"for the second"
    assert first.pull(10, 1.0) is None
    first.close()
    second.close()
    writer.transport.abort()


def test_chunks_grow_while_they_are_quick_and_shrink_when_they_are_slow() -> None:
    size = ChunkSize()
    for _ in range(20):
        size.took(size.bytes, 0.01)
    assert size.bytes == tunnel_module.MAX_BYTES
    size.took(size.bytes, 3.0)
    assert size.bytes == tunnel_module.MAX_BYTES // 2
    for _ in range(20):
        size.took(size.bytes, 3.0)
    assert size.bytes == tunnel_module.MIN_BYTES


def test_small_calls_do_not_change_the_chunk_size() -> None:
    size = ChunkSize()
    size.took(100, 5.0)
    size.took(100, 0.001)
    assert size.bytes == tunnel_module.FIRST_BYTES


def test_on_64_kilobytes_a_second_no_chunk_takes_longer_than_a_moment() -> None:
    size, took = ChunkSize(), []
    for _ in range(30):
        seconds = size.bytes / (64 * 1024)
        took.append(seconds)
        size.took(size.bytes, seconds)
    assert max(took) <= 2.0


def test_single_messages_go_at_once_and_many_wait_for_each_other() -> None:
    delay = BatchDelay()
    assert delay.after("push", tunnel_module.MANY_BYTES, now=1.0) == 0, "an argument; nothing came back yet"
    assert delay.after("pull", 10, now=1.01) == 0, "its answer"
    assert delay.after("pull", tunnel_module.MANY_BYTES, now=1.02) == tunnel_module.BATCH_DELAY_S, "many answers"
    assert delay.after("push", 10, now=1.1) == tunnel_module.BATCH_DELAY_S, "one of many, even if it is small"
    assert delay.after("push", 10, now=1.1 + tunnel_module.BUSY_S) == 0, "it is quiet again"


def test_something_large_does_not_wait_for_others() -> None:
    delay = BatchDelay()
    for way in ("pull", "push"):
        delay.after(way, tunnel_module.MANY_BYTES, now=1.0)
    assert delay.after("push", tunnel_module.FIRST_BYTES, now=1.0) == 0, "the rest of it follows"


async def test_many_messages_travel_in_few_calls(line: Line) -> None:
    message = b"m" * tunnel_module.MANY_BYTES
    for _ in range(50):
        line.ours[1].write(message)
        line.theirs[1].write(message)
        await asyncio.sleep(0.002)
    for reader, _ in (line.ours, line.theirs):
        assert await asyncio.wait_for(reader.readexactly(50 * len(message)), 10) == 50 * message
    assert len(line.actor.calls["push"]) < 25, "each message in a call of its own would be 50"
    assert len(line.actor.calls["pull"]) < 25
