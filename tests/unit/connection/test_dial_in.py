"""Agents that listen and are dialed, over TLS on loopback."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from ray_multicluster_scheduler.common.tls import (
    certificate_of,
    client_context,
    fingerprint_of,
    self_signed,
    server_context,
)
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, Settings
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecord
from ray_multicluster_scheduler.scheduler.connection.agents.job_carrier import AgentDialer, DialInCarrier
from ray_multicluster_scheduler.scheduler.connection.agents.tls_identity import make_identity
from ray_multicluster_scheduler.scheduler.connection.gateway.link import connection as listen
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.link.connection import (
    CannotListen,
    Connection,
    DialInServer,
    Join,
    dial,
)
from ray_multicluster_scheduler.scheduler.connection.links.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import from_agent_log
from tests.support.eventually import eventually as until
from tests.support.scripted_agent import WHO
from tests.unit.connection.conftest import Plane

LOOPBACK = "127.0.0.1"
PEM = make_identity().pem.decode()
OTHER = make_identity().pem.decode()


class Listening:
    """An agent's side, and what dials it."""

    def __init__(self, plane: Plane) -> None:
        self.plane, self.door = plane, DialInServer(certificate_of(PEM))
        self.link: AgentLink = plane.link()
        self.token, self.secret = plane.port.expect("a", "agent-1", self.link)
        self.dialers: list[AgentDialer] = []
        self.number = 0

    async def open(self) -> None:
        self.number = await self.door.open(LOOPBACK, 0)

    def dialled(self, *addresses: tuple[str, int], pem: str = PEM, fingerprint: str = "") -> AgentDialer:
        self.addresses = now = list(addresses or ((LOOPBACK, self.number),))
        known_by = fingerprint or self.door.fingerprint
        dialer = AgentDialer("agent-1", lambda: now, pem, known_by, self.plane.port.admit)
        self.dialers.append(dialer)
        return dialer

    async def joins(self, secret: str | None = None) -> Connection:
        join = Join("a", "agent-1", [("its control plane", 0)], self.token)
        return await dial(replace(join, opener=self.door.next), WHO, secret, time.monotonic() + 60)


@pytest.fixture
async def listening(plane: Plane) -> AsyncIterator[Listening]:
    one = Listening(plane)
    await one.open()
    yield one
    for dialer in one.dialers:
        await dialer.stop()
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


async def test_a_client_without_the_key_is_rejected_by_tls(listening: Listening) -> None:
    silent = [await asyncio.open_connection(LOOPBACK, listening.number) for _ in range(20)]
    reader, writer = await asyncio.open_connection(LOOPBACK, listening.number, ssl=client_context(OTHER))
    with suppress(OSError):
        assert await asyncio.wait_for(reader.read(), 60) == b"", "it is hung up on, whichever way that is reported"
    writer.close()
    listening.dialled()
    connection = await listening.joins()
    assert not connection.reader.at_eof()
    assert not any(reader.at_eof() for reader, _ in silent), "they were still there, and nobody waited for them"
    for _, writer in silent:
        writer.close()


async def test_an_agent_knows_its_control_plane_by_the_key_and_the_other_way_round(listening: Listening) -> None:
    wrong = listening.dialled(pem=OTHER)
    await until(lambda: "is not our agent" in wrong.problem)
    assert not listening.link.connected
    assert listening.door._newest is None, "it never got as far as that"
    odd = listening.dialled(fingerprint=fingerprint_of(certificate_of(OTHER)))
    await until(lambda: "does not have the key of our agent" in odd.problem)
    assert not listening.link.connected


async def test_the_agents_join_data_alone_admits_no_client_and_no_server(
    listening: Listening,
) -> None:
    reported = certificate_of(PEM)  # and the token, which is in the environment of the agent's job
    as_agent = await asyncio.start_server(lambda *_: None, LOOPBACK, 0, ssl=server_context(OTHER, reported))
    number = as_agent.sockets[0].getsockname()[1]
    dialer = listening.dialled((LOOPBACK, number))
    await until(lambda: "does not have the key of our agent" in dialer.problem)
    as_agent.close()


async def test_no_message_is_sent_to_a_server_with_another_fingerprint(listening: Listening) -> None:
    place = ((LOOPBACK, listening.number),)
    agent = AgentRecord("a", "agent-1", listening.secret, LOOPBACK, 1, listens=place, identity=PEM)
    carrier = DialInCarrier({}.__getitem__, Settings(), cast("Any", None), cast("Any", None))
    carrier.restore(agent, 0, listening.plane.port.admit)
    await until(lambda: "does not have the key of our agent" in carrier._dialers["agent-1"].problem)
    await carrier.close()


def test_own_key_is_fresh_and_signs_its_certificate() -> None:
    one, other = self_signed("rmcs agent"), self_signed("rmcs agent")
    assert fingerprint_of(certificate_of(one)) != fingerprint_of(certificate_of(other))
    for pem in (one, other):
        certificate = x509.load_pem_x509_certificate(certificate_of(pem).encode())
        certificate.verify_directly_issued_by(certificate)
        key = serialization.load_pem_private_key(pem.encode(), None)
        assert key.public_key() == certificate.public_key()
        server_context(pem, certificate_of(PEM))


def test_where_an_agent_listens_and_how_it_is_known_is_read_from_its_log() -> None:
    line = m.listens_line("10.0.0.7", 7100, "ab" * 32)
    assert m.listens_at(f"hello\n{line}\nmore") == ("10.0.0.7", 7100, "ab" * 32)
    assert m.listens_at(m.listens_line("fd00::7", 7100, "ab" * 32)) == ("fd00::7", 7100, "ab" * 32)
    assert m.listens_at(f"{m.LISTENS} 10.0.0.7:7100") is None, "nobody is dialled who could be anybody"


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
        dialer = listening.dialled((LOOPBACK, number))
        await until(lambda: bool(dialer.problem))
        assert f"{LOOPBACK}:{number} (ConnectionRefusedError" in dialer.problem
        listening.dialled((LOOPBACK, number), (LOOPBACK, listening.number))
        await listening.joins()


async def test_the_problem_names_a_server_that_is_not_our_agent(listening: Listening) -> None:
    listening.plane.port.revoke("agent-1")
    dialer = listening.dialled()
    with pytest.raises(Exception, match="this agent is not expected"):
        await listening.joins()
    await until(lambda: "is not our agent" in dialer.problem)


async def test_an_unexpected_error_is_logged_and_the_agent_is_dialled_again(
    listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    dialer = listening.dialled(("h" * 70, 7))  # no such name can be written: that is a ValueError, not an OSError
    await until(lambda: bool(dialer.problem))
    assert "UnicodeError" in dialer.problem
    assert "unexpected error while dialing agent agent-1" in caplog.text
    listening.addresses[:] = [(LOOPBACK, listening.number)]
    await listening.joins()
    await until(lambda: dialer.problem == "")


async def test_a_stopped_dialer_does_not_dial_when_the_connection_ends(listening: Listening) -> None:
    carrier = DialInCarrier({}.__getitem__, Settings(), cast("Any", None), cast("Any", None))
    place = ((LOOPBACK, listening.number),)
    agent = AgentRecord("a", "agent-1", listening.secret, LOOPBACK, 1, listens=place, identity=PEM)
    agent = replace(agent, fingerprint=listening.door.fingerprint)
    carrier.restore(agent, 0, listening.plane.port.admit)
    first = await listening.joins()
    await carrier.stop_dialing()
    assert not first.reader.at_eof(), "what stands stays"
    first.writer.transport.abort()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(listening.door.next(), 1.0)
    await carrier.close()


async def test_a_changed_agent_address_is_dialled_next(listening: Listening) -> None:
    configs = {"a": ClusterConfig(name="a", dashboard="http://127.0.0.1:8265", agent_address="127.0.0.1:1")}
    carrier = DialInCarrier(configs.__getitem__, Settings(), cast("Any", None), cast("Any", None))
    agent = AgentRecord("a", "agent-1", listening.secret, LOOPBACK, 1, listens=(("127.0.0.1", 2),), identity=PEM)
    agent = replace(agent, fingerprint=listening.door.fingerprint)
    carrier.restore(agent, 0, listening.plane.port.admit)
    await until(lambda: "127.0.0.1:1 (" in carrier._dialers["agent-1"].problem)
    configs["a"] = configs["a"].model_copy(update={"agent_address": f"{LOOPBACK}:{listening.number}"})
    await listening.joins()
    assert carrier.record_fields("agent-1")["listens"] == (("127.0.0.1", 2),), "as it says itself, not as it is reached"
    await carrier.close()


async def test_a_handshake_that_is_broken_off_closes_its_connection(listening: Listening) -> None:
    ours, theirs = socket.socketpair()
    streams = await asyncio.open_connection(sock=ours)
    reader, writer = await asyncio.open_connection(sock=theirs)
    shaking = asyncio.create_task(listening.plane.port.admit(*streams))
    assert await reader.read(1), "it is asked who it is"
    shaking.cancel()
    await asyncio.wait([shaking])
    await asyncio.wait_for(reader.read(), 60)
    assert reader.at_eof()
    writer.close()


async def test_a_port_that_is_taken(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "PORT_TAKEN_TIMEOUT_S", 0.1)
    with pytest.raises(CannotListen, match=f"TAKEN {LOOPBACK}:{listening.number}") as reported:
        await DialInServer(certificate_of(PEM)).open(LOOPBACK, listening.number)
    problem = from_agent_log("a", "python", "", "FAILED", f"{m.LISTEN_FAILED} {reported.value}")
    assert (problem.code, problem.permanent) == ("AGENT_CANNOT_LISTEN", False)
    assert f"cannot listen at {LOOPBACK}:{listening.number} (" in problem.message


async def test_a_port_that_is_taken_for_a_moment_is_waited_for() -> None:
    door = DialInServer(certificate_of(PEM))
    with socket.create_server((LOOPBACK, 0)) as taken:
        number = taken.getsockname()[1]
        opening = asyncio.create_task(door.open(LOOPBACK, number))
        await asyncio.sleep(0.3)
    assert await asyncio.wait_for(opening, 60) == number
    door.close()


async def test_a_forbidden_port_is_not_retried() -> None:
    with pytest.raises(CannotListen, match=r"192\.0\.2\.1:0 \(Cannot assign") as reported:  # an address of no machine
        await asyncio.wait_for(DialInServer(certificate_of(PEM)).open("192.0.2.1", 0), 60)
    assert from_agent_log("a", "python", "", "FAILED", f"{m.LISTEN_FAILED} {reported.value}").permanent


@pytest.mark.parametrize("place", ["127.0.0.2", LOOPBACK])
async def test_an_agent_is_reached_at_its_node_and_by_port_forwarding(plane: Plane, place: str) -> None:
    one = Listening(plane)
    one.number = await one.door.open("127.0.0.2", 0)
    dialer = one.dialled((place, one.number))
    assert (await one.joins()).welcome["secret"] == one.secret
    await dialer.stop()
    one.door.close()


async def test_where_loopback_is_taken_the_address_of_the_node_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        number = taken.getsockname()[1]
        door = DialInServer(certificate_of(PEM))
        assert await asyncio.wait_for(door.open("127.0.0.2", number), 60) == number
        door.close()
    assert "listens at 127.0.0.2 only" in capsys.readouterr().out


async def test_a_machine_without_loopback_is_no_reason_not_to_listen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    create = socket.create_server

    def without_loopback(address: tuple[str, int], **values: Any) -> socket.socket:
        if address[0] == LOOPBACK:
            raise OSError(errno.EADDRNOTAVAIL, "no such address")
        return create(("127.0.0.1", address[1]), **values)

    monkeypatch.setattr(socket, "create_server", without_loopback)
    door = DialInServer(certificate_of(PEM))
    try:
        number = await door.open("10.1.2.3", 0)
    finally:
        door.close()
    output = capsys.readouterr().out
    assert f"not at 127.0.0.1:{number} (Cannot assign requested address)" in output
