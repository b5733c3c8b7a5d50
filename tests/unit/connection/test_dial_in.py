"""Agents that listen: the real door against the real dialler, over TLS on loopback."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from ray_multicluster_scheduler.common.tls_pem import mutual
from ray_multicluster_scheduler.scheduler.connection.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.dialler import Dialler
from ray_multicluster_scheduler.scheduler.connection.gateway.accept import CannotListen, Door
from ray_multicluster_scheduler.scheduler.connection.gateway.dial import Connection, Join, dial
from ray_multicluster_scheduler.scheduler.connection.tls_identity import make_identity
from tests.support.eventually import eventually as until
from tests.support.scripted_agent import WHO
from tests.unit.connection.conftest import Plane

LOOPBACK = "127.0.0.1"
PEM = make_identity().pem.decode()
OTHER = make_identity().pem.decode()


class Listening:
    """An agent's side, and what dials it."""

    def __init__(self, plane: Plane) -> None:
        self.plane, self.door = plane, Door(PEM)
        self.link: AgentLink = plane.link()
        self.token, self.secret = plane.port.expect("a", "agent-1", self.link)
        self.diallers: list[Dialler] = []
        self.number = 0

    async def open(self) -> None:
        self.number = await self.door.open(LOOPBACK, 0)

    def dialled(self, *addresses: tuple[str, int], pem: str = PEM) -> Dialler:
        dialler = Dialler("agent-1", addresses or ((LOOPBACK, self.number),), pem, self.plane.port.admit)
        self.diallers.append(dialler)
        return dialler

    async def joins(self, secret: str | None = None) -> Connection:
        join = Join("a", "agent-1", [("its control plane", 0)], self.token)
        return await dial(replace(join, opener=self.door.next), WHO, secret, time.monotonic() + 10)


@pytest.fixture
async def listening(plane: Plane) -> AsyncIterator[Listening]:
    one = Listening(plane)
    await one.open()
    yield one
    for dialler in one.diallers:
        await dialler.stop()
    one.door.close()


async def test_an_agent_that_listens_is_dialled_and_joins_as_any_other(listening: Listening) -> None:
    listening.dialled()
    connection = await listening.joins()
    assert connection.welcome["secret"] == listening.secret
    await until(lambda: listening.link.connected)


async def test_a_connection_that_breaks_is_dialled_again(listening: Listening) -> None:
    listening.dialled()
    first = await listening.joins()
    await until(lambda: listening.link.connected)
    first.writer.transport.abort()
    second = await listening.joins(listening.secret)
    assert "secret" not in second.welcome
    await until(lambda: listening.link.connected)


async def test_nobody_without_the_key_takes_the_agents_time(listening: Listening) -> None:
    silent = [await asyncio.open_connection(LOOPBACK, listening.number) for _ in range(20)]
    stranger = mutual(ssl.PROTOCOL_TLS_CLIENT, OTHER)
    with pytest.raises(ssl.SSLError):
        await asyncio.open_connection(LOOPBACK, listening.number, ssl=stranger)
    listening.dialled()
    connection = await listening.joins()
    assert not connection.reader.at_eof()
    assert not any(reader.at_eof() for reader, _ in silent), "they were still there, and nobody waited for them"
    for _, writer in silent:
        writer.close()


async def test_an_agent_knows_its_control_plane_by_the_key_and_the_other_way_round(listening: Listening) -> None:
    wrong = listening.dialled(pem=OTHER)
    await until(lambda: bool(wrong.problem))
    assert f"{LOOPBACK}:{listening.number} (SSL" in wrong.problem
    assert not listening.link.connected


async def test_the_newest_connection_counts(listening: Listening) -> None:
    listening.dialled()
    first = await listening.joins()
    again = listening.dialled()  # as after a restart of the control plane, which the agent has not noticed
    second = await listening.joins(listening.secret)
    assert await first.reader.read() == b"" or first.reader.at_eof()
    assert not second.reader.at_eof()
    assert again.problem == ""


async def test_every_address_is_tried_and_named(listening: Listening) -> None:
    with socket.socket() as closed:
        closed.bind((LOOPBACK, 0))
        number = closed.getsockname()[1]
        dialler = listening.dialled((LOOPBACK, number))
        await until(lambda: bool(dialler.problem))
        assert f"{LOOPBACK}:{number} (ConnectionRefusedError" in dialler.problem
        listening.dialled((LOOPBACK, number), (LOOPBACK, listening.number))
        await listening.joins()


async def test_who_answers_but_is_not_our_agent_is_told_as_such(listening: Listening) -> None:
    listening.plane.port.forget("agent-1")
    dialler = listening.dialled()
    with pytest.raises(Exception, match="nobody waits for this agent"):
        await listening.joins()
    await until(lambda: "not as our agent" in dialler.problem)


async def test_a_port_that_is_taken(listening: Listening) -> None:
    with pytest.raises(CannotListen, match=f"{LOOPBACK}:{listening.number}"):
        await Door(PEM).open(LOOPBACK, listening.number)
