"""The handshake at the agent port, with the real listener and the real agent code."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.frames import PROTOCOL_VERSION, FrameReader, FrameWriter, Message
from ray_multicluster_scheduler.scheduler.connection.agents import agent_listener
from ray_multicluster_scheduler.scheduler.connection.agents.agent_listener import TOKEN_LIFETIME_S, AgentListener
from ray_multicluster_scheduler.scheduler.connection.agents.tls_identity import make_identity
from ray_multicluster_scheduler.scheduler.connection.gateway.link import connection as dialling
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.link.connection import CannotDial, Join, Rejected, dial
from tests.support.eventually import eventually
from tests.support.links import FakeClock
from tests.support.scripted_agent import WHO, ScriptedAgent
from tests.unit.connection.conftest import Plane


def join(plane: Plane, token: str, *, cluster: str = "a", agent: str = "agent-1") -> Join:
    return Join(cluster, agent, [("127.0.0.1", plane.number)], token)


async def dial_and_close(invitation: Join, secret: str | None = None, patience: float = 1.0) -> dict[str, Any]:
    """Dial once, hang up at once; returns the welcome."""
    connection = await dial(invitation, WHO, secret, time.monotonic() + patience)
    connection.writer.close()
    return connection.welcome


async def serve(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> asyncio.Server:
    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(reader, writer)
        writer.close()

    return await asyncio.start_server(one, "127.0.0.1", 0)


def port_of(server: asyncio.Server) -> int:
    number: int = server.sockets[0].getsockname()[1]
    return number


async def test_the_right_token_opens_the_door_and_both_sides_know_each_other(plane: Plane) -> None:
    link, agent = await plane.pair(heartbeat_s=7.0)
    assert link.connected
    assert (link.info.cluster, link.info.ray_version, link.info.session_id) == ("a", "2.60.0", "session_1")
    assert (agent.welcome["lease_s"], agent.welcome["heartbeat_s"]) == (45.0, 7.0)
    assert [event[0] for event in plane.received.events] == ["link_up"]


async def test_a_wrong_token_is_turned_away_with_a_sentence_and_spoils_nothing(plane: Plane) -> None:
    token, _ = plane.port.expect("a", "agent-1", plane.link())
    with pytest.raises(CannotDial, match="the proof is wrong"):
        await dial_and_close(join(plane, "not the token"))
    assert "secret" in await dial_and_close(join(plane, token))


async def test_a_token_works_once(plane: Plane) -> None:
    token, _ = plane.port.expect("a", "agent-1", plane.link())
    await dial_and_close(join(plane, token))
    with pytest.raises(Rejected, match="used already"):
        await dial_and_close(join(plane, token))


async def test_a_token_does_not_live_long(plane: Plane) -> None:
    token, _ = plane.port.expect("a", "agent-1", plane.link())
    plane.clock.time += TOKEN_LIFETIME_S + 1
    with pytest.raises(Rejected, match="has expired"):
        await dial_and_close(join(plane, token))


@pytest.mark.parametrize(
    ("cluster", "agent", "ends"),
    [
        pytest.param("b", "agent-1", Rejected, id="rejected with a proof"),
        pytest.param("a", "agent-2", CannotDial, id="of whom nothing is known nothing can be proved"),
    ],
)
async def test_a_token_is_bound_to_cluster_and_agent(
    plane: Plane, cluster: str, agent: str, ends: type[Exception]
) -> None:
    token, _ = plane.port.expect("a", "agent-1", plane.link())
    with pytest.raises(ends, match="this agent is not expected"):
        await dial_and_close(join(plane, token, cluster=cluster, agent=agent))


WELCOME = {"secret": "s", "lease_s": 1, "heartbeat_s": 1}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "not proved to be our control plane rejects us: the proof is wrong"),
        ((m.REJECT, {"sentence": "go away", "proof": "0" * 64}), "our control plane rejects us: go away"),
        ((m.WELCOME, WELCOME), "the server has not proved"),
        ((m.WELCOME, {**WELCOME, "proof": "0" * 64}), "the server has not proved"),
        ((m.CLOSE, {}), "the server has not proved"),
    ],
)
async def test_an_agent_obeys_only_its_own_control_plane(
    plane: Plane, answer: tuple[str, dict[str, Any]] | None, reason: str
) -> None:
    token, _ = plane.port.expect("a", "agent-1", plane.link())

    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """It knows the nonce, and says what it likes, or (None) what our port says to those who do not know the key."""
        writer.write(framed(m.CHALLENGE, {"nonce": "n"}))
        hello = FrameReader(65536).feed(await reader.read(65536))[0]
        if answer is not None:
            writer.write(framed(*answer))
            await writer.drain()
            return
        theirs, ours = await asyncio.open_connection("127.0.0.1", plane.number)
        await theirs.read(65536)
        ours.write(framed(hello.kind, hello.head))
        writer.write(await theirs.read(65536))
        await writer.drain()
        ours.close()

    server = await serve(stranger)
    addresses = [("127.0.0.1", port_of(server))]
    with pytest.raises(CannotDial, match=reason):
        await dial_and_close(Join("a", "agent-1", addresses, token), patience=0.5)
    addresses.append(("127.0.0.1", plane.number))
    assert "secret" in await dial_and_close(Join("a", "agent-1", addresses, token)), "it goes on to look for its own"
    server.close()


async def test_an_agent_that_is_no_longer_expected_stays_outside(plane: Plane) -> None:
    token, _ = plane.port.expect("a", "agent-1", plane.link())
    plane.port.revoke("agent-1")
    with pytest.raises(Rejected, match="is not expected"):
        await dial_and_close(join(plane, token))


async def test_a_revoked_agent_is_rejected_with_a_proof(plane: Plane) -> None:
    token, _ = plane.port.expect("a", "agent-1", plane.link())
    secret = str((await dial_and_close(join(plane, token)))["secret"])
    plane.port.revoke("agent-1")
    with pytest.raises(Rejected, match="is not expected"):
        await dial_and_close(join(plane, token), secret)


async def test_the_secret_opens_the_door_again_long_after_the_token(plane: Plane) -> None:
    token, _ = plane.port.expect("a", "agent-1", plane.link())
    secret = str((await dial_and_close(join(plane, token)))["secret"])
    plane.clock.time += 10 * TOKEN_LIFETIME_S
    assert "secret" not in await dial_and_close(join(plane, token), secret), "it is reported once"


async def test_a_wrong_secret_and_the_token_as_secret_are_refused(plane: Plane) -> None:
    token, _ = plane.port.expect("a", "agent-1", plane.link())
    await dial_and_close(join(plane, token))
    for wrong in ("guess", token):
        with pytest.raises(CannotDial, match="the proof is wrong"):
            await dial_and_close(join(plane, token), wrong)


async def test_neither_token_nor_secret_is_sent_by_the_agent(plane: Plane) -> None:
    token, _ = plane.port.expect("a", "agent-1", plane.link())
    sent = b""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        theirs, ours = await asyncio.open_connection("127.0.0.1", plane.number)
        writer.write(await theirs.read(65536))
        data = await reader.read(65536)
        sent += data
        ours.write(data)
        writer.write(await theirs.read(65536))
        await writer.drain()
        ours.close()

    server = await serve(relay)
    await dial_and_close(Join("a", "agent-1", [("127.0.0.1", port_of(server))], token))
    server.close()
    assert b"hello" in sent
    assert token.encode() not in sent


def framed(kind: str, head: dict[str, Any]) -> bytes:
    frames = FrameWriter()
    frames.put(Message(kind, head))
    return frames.take()


async def send_hello(plane: Plane, **changes: Any) -> Message | None:
    """A hand-made HELLO; what the listener answers, or None if it hung up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", plane.number)
    frames = FrameReader()
    (challenge,) = frames.feed(await reader.read(65536))
    hello = {"protocol": PROTOCOL_VERSION, "cluster": "a", "agent": "agent-1", "nonce": "n", "resume": False, **WHO}
    kind = changes.pop("kind", m.HELLO)
    writer.write(framed(kind, {**hello, "proof": m.proof("t", "agent", challenge.head["nonce"]), **changes}))
    data = await reader.read(65536)
    assert await reader.read(65536) == b"", "a connection that was turned away is closed"
    writer.close()
    return frames.feed(data)[0] if data else None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"protocol": 99}, "protocol 99 is not 4"),
        ({"protocol": 2}, "protocol 2 is not 4"),
        ({"protocol": 1, "resume": True}, "protocol 1 is not 4"),
        ({"protocol": "4"}, "protocol 4 is not 4"),
        ({"kind": "calls"}, "expected hello, got 'calls'"),
        ({"proof": None}, "the proof is wrong"),
        ({"proof": "é"}, "the proof is wrong"),
        ({"agent": None}, "this agent is not expected"),
        ({"resume": True}, "the proof is wrong"),
    ],
)
async def test_a_strange_hello_is_answered_with_a_sentence(
    plane: Plane, changes: dict[str, Any], sentence: str
) -> None:
    plane.port.expect("a", "agent-1", plane.link())
    answer = await send_hello(plane, **changes)
    assert answer is not None
    assert answer.kind == m.REJECT
    assert sentence in answer.head["sentence"]


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"])
async def test_something_that_speaks_another_protocol_is_hung_up_on(plane: Plane, noise: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", plane.number)
    writer.write(noise)
    await asyncio.wait_for(reader.read(65536), 60)  # the challenge
    assert await asyncio.wait_for(reader.read(65536), 60) == b""
    writer.close()


async def test_a_connection_without_hello_times_out(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agent_listener, "_HANDSHAKE_TIMEOUT_S", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", plane.number)
    for byte in framed(m.HELLO, {"protocol": 1})[:4]:
        writer.write(bytes([byte]))
        await asyncio.sleep(0.01)
    with caplog.at_level(logging.WARNING, "ray_multicluster_scheduler"):
        await asyncio.wait_for(reader.read(65536), 60)
        assert await asyncio.wait_for(reader.read(65536), 60) == b""
    writer.close()


@pytest.mark.parametrize("banner", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
async def test_an_agent_reports_another_protocol(banner: bytes) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(banner)
        await writer.drain()

    server = await serve(speak)
    with pytest.raises(CannotDial, match=f"127.0.0.1:{port_of(server)}"):
        await dial_and_close(Join("a", "agent-1", [("127.0.0.1", port_of(server))], "t"))
    server.close()


async def test_an_agent_tries_every_address(plane: Plane) -> None:
    unavailable = await serve(lambda reader, writer: asyncio.sleep(0))
    closed_port = port_of(unavailable)
    unavailable.close()
    await unavailable.wait_closed()
    token, _ = plane.port.expect("a", "agent-1", plane.link())
    addresses = [("127.0.0.1", closed_port), ("127.0.0.1", plane.number)]
    assert "secret" in await dial_and_close(Join("a", "agent-1", addresses, token))
    with pytest.raises(CannotDial, match=f"127.0.0.1:{closed_port}"):
        await dial_and_close(Join("a", "agent-1", addresses[:1], token))


async def test_an_agent_dials_until_its_deadline(plane: Plane) -> None:
    number = plane.number
    await plane.port.close()
    late = AgentListener("127.0.0.1", number, plane.clock)
    link = plane.link()
    token, _ = late.expect("a", "agent-1", link)

    async def open_later() -> None:
        await asyncio.sleep(0.2)
        await late.start()

    opening = asyncio.create_task(open_later())
    welcome = await dial_and_close(Join("a", "agent-1", [("127.0.0.1", number)], token), patience=60)
    await opening
    assert welcome["lease_s"] == 45.0
    await link.close("over")
    await late.close()


async def test_an_agent_dials_no_longer_than_it_may() -> None:
    """Its time is that of its lease: a host that accepts and says nothing must not hold it beyond that."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    server = await serve(silent)
    addresses = [("127.0.0.1", port_of(server))] * 3
    began = time.monotonic()
    with pytest.raises(CannotDial, match="no answer in time"):
        await dial_and_close(Join("a", "agent-1", addresses, "t"), patience=0.3)
    assert time.monotonic() - began < 12
    await eventually(lambda: asyncio.all_tasks() == {asyncio.current_task()}, lambda: "it did not hang up on all")
    server.close()


async def test_the_lease_of_a_new_connection_counts_from_hello(plane: Plane) -> None:
    token, _ = plane.port.expect("a", "agent-1", plane.link())

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", plane.number)
        writer.write(await theirs.read(65536))
        ours.write(await reader.read(65536))
        await asyncio.sleep(0.4)
        writer.write(await theirs.read(65536))
        await writer.drain()
        ours.close()

    server = await serve(slow)
    join = Join("a", "agent-1", [("127.0.0.1", port_of(server))], token)
    connection = await dial(join, WHO, None, time.monotonic() + 60)
    assert time.monotonic() - connection.asked_at >= 0.4
    connection.writer.close()
    server.close()


async def test_an_agent_with_an_ended_link_is_rejected_with_the_reason(plane: Plane) -> None:
    link, agent = await plane.pair()
    await agent.cut()
    await plane.received.until("link_down")
    await link.close("it is over")
    seen = len(plane.received.events)
    with pytest.raises(Rejected, match="has ended"):
        await agent.dial()
    assert len(plane.received.events) == seen, "after link_closed nothing comes any more"
    assert not link.connected


async def test_a_port_that_is_taken_is_a_sentence(plane: Plane) -> None:
    second = AgentListener("127.0.0.1", plane.number, FakeClock())
    with pytest.raises(ConfigurationError, match=str(plane.number)) as caught:
        await second.start()
    assert "agent_listen" in str(caught.value.next_step)


async def test_closing_the_port_hangs_up_on_half_open_connections(plane: Plane) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", plane.number)
    await reader.read(65536)
    await plane.port.close()
    assert await asyncio.wait_for(reader.read(65536), 60) == b""
    writer.close()
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", plane.number)


async def test_the_pinned_certificate_is_trusted_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = make_identity(), make_identity()
    plane = Plane(AgentListener("127.0.0.1", 0, FakeClock(), ours.context), 0, FakeClock())
    plane.number = await plane.port.start()
    link = plane.link()
    token, _ = plane.port.expect("a", "agent-1", link)
    place = [("127.0.0.1", plane.number)]
    with pytest.raises(CannotDial, match="(?i)certificate"):
        await dial_and_close(Join("a", "agent-1", place, token, certificate=other.certificate))
    with monkeypatch.context() as patch:
        patch.setattr(dialling, "_HANDSHAKE_TIMEOUT_S", 0.3)
        with pytest.raises(CannotDial):
            await dial_and_close(Join("a", "agent-1", place, token))
    agent = ScriptedAgent(Join("a", "agent-1", place, token, certificate=ours.certificate))
    await agent.dial()
    await link.joined
    assert await link.health(60) < 60
    await agent.close()
    await link.close("over")
    await plane.port.close()


async def test_two_clusters_that_ask_at_once_get_one_port_and_nothing_is_left_open() -> None:
    port = AgentListener("127.0.0.1", 0, FakeClock())
    first, second = await asyncio.gather(port.start(), port.start())
    assert first == second
    await port.close()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", first))


async def test_an_agent_that_was_left_tries_on_until_its_own_program_answers(
    plane: Plane, caplog: pytest.LogCaptureFixture
) -> None:
    """Other programs that have this port reject it, and neither of them minds."""
    caplog.set_level(logging.DEBUG)
    left = replace(join(plane, "next"), lingers=True)
    joining = asyncio.create_task(dial_and_close(left, patience=60))
    await eventually(lambda: "not expected" in caplog.text or joining.done())
    assert not joining.done()
    plane.port.expect("a", "agent-1", plane.link(), "next")
    assert "secret" in await joining


async def test_left_agent_ignores_end_of_another_program_over_tls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    identity = make_identity()
    plane = Plane(AgentListener("127.0.0.1", 0, FakeClock(), identity.context), 0, FakeClock())
    plane.number = await plane.port.start()
    left = replace(join(plane, "next"), certificate=identity.certificate, lingers=True)
    agent = ScriptedAgent(left)
    joining = asyncio.create_task(agent.dial())
    await eventually(lambda: "not expected" in caplog.text)
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG], "it happens all the time"
    link = plane.link()
    plane.port.expect("a", "agent-1", link, "next")
    await joining
    await link.joined
    await agent.close()
    await link.close("over")
    server = plane.port._server
    await plane.port.close()
    await eventually(lambda: server is not None and server._active_count == 0)  # type: ignore[attr-defined]


async def test_a_socket_that_is_connected_to_itself_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP does that when a client dials a free local port, and is given that port."""

    async def connected_to_itself(*_: object, **__: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        one = socket.socket()
        one.bind(("127.0.0.1", 0))
        one.setblocking(False)
        await asyncio.get_running_loop().sock_connect(one, one.getsockname())
        return await opened(sock=one)

    opened = asyncio.open_connection
    monkeypatch.setattr(asyncio, "open_connection", connected_to_itself)
    with pytest.raises(CannotDial, match="nobody listens"):
        await dial_and_close(Join("a", "agent-1", [("127.0.0.1", 1)], "token"), patience=0.05)
