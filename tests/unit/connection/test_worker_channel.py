"""The line between a worker and its agent: real sockets, the channel's own thread, and the lease."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from ray_multicluster_scheduler.common.frames import FrameReader, FrameWriter, Message
from ray_multicluster_scheduler.scheduler.connection.gateway.worker import channel as channel_module
from ray_multicluster_scheduler.scheduler.connection.gateway.worker import channel as running_module
from ray_multicluster_scheduler.scheduler.connection.gateway.worker import worker_server
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.channel import (
    ALWAYS_ASK,
    ASK_AFTER_S,
    REPORT_AFTER_S,
    NoLease,
    RunningCall,
    TakenBack,
    WorkerChannel,
    channel_for,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import AgentEndpoint
from tests.support.eventually import eventually
from tests.unit.connection.agent_side import AgentSide, agent_side


@pytest.fixture
async def agent() -> AsyncIterator[AgentSide]:
    side = await agent_side()
    yield side
    assert side.server._server is not None
    side.server._server.close()
    for worker in list(side.server._workers):
        worker.close()


async def begin(
    channel: WorkerChannel,
    task_id: str,
    attempt: int,
    node_id: str,
    *,
    sent_at: float = math.inf,
    report_now: bool = False,
    member: int | None = None,
) -> RunningCall:
    """As a worker does; off the loop, since the agent of these tests lives on it and is asked for a lease."""
    return await asyncio.to_thread(
        channel.begin, task_id, attempt, node_id, sent_at=sent_at, report_now=report_now, member=member
    )


async def finished(channel: WorkerChannel, running: RunningCall) -> list[tuple[str, str]]:
    """End a call, and let the channel's thread hang up before the test ends."""
    rest = channel.end(running)
    await eventually(lambda: channel._socket is None)
    return rest


async def test_a_short_call_is_not_reported_and_its_output_goes_with_its_result(
    agent: AgentSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "REPORT_AFTER_S", 1.0)  # this one is short, also on a busy machine
    channel = WorkerChannel(agent.line)
    running = await begin(channel, "t1", 1, "n1")
    for word in ("a", " ", "b", "\n"):
        channel.write(running, "stdout", word)
    channel.write(running, "stderr", "oh\n")
    channel.write(running, "stdout", "c\n")
    rest = channel.end(running)
    assert rest == [("stdout", "a b\n"), ("stderr", "oh\n"), ("stdout", "c\n")]
    assert running.chunks == 0
    await asyncio.sleep(1.3)
    assert agent.received == []


async def test_a_call_that_takes_longer_is_reported_as_started_once(agent: AgentSide) -> None:
    channel = WorkerChannel(agent.line)
    running = await begin(channel, "t1", 3, "n7")
    await eventually(lambda: agent.of("started"))
    assert time.monotonic() - running.began >= REPORT_AFTER_S
    await asyncio.sleep(0.1)
    (message,) = agent.of("started")
    assert message.head == {"id": "t1", "attempt": 3, "at": running.started_at, "node": "n7", "pid": os.getpid()}
    assert await finished(channel, running) == []


async def test_output_of_a_running_call_arrives_joined_and_in_order(agent: AgentSide) -> None:
    channel = WorkerChannel(agent.line)
    running = await begin(channel, "t1", 1, "n1")
    expected = ""
    for number in range(200):
        stream = "stderr" if number % 10 == 0 else "stdout"
        channel.write(running, stream, f"{number} ")
        expected += f"{number} "
        if number % 50 == 49:
            await asyncio.sleep(0.05)
    await eventually(lambda: agent.of("output"))
    rest = await finished(channel, running)
    await eventually(lambda: len(agent.of("output")) == running.chunks)
    assert agent.text() + "".join(text for _, text in rest) == expected
    assert running.chunks < 50, "words are joined, not sent one by one"
    streams = [part[0] for message in agent.of("output") for part in message.head["parts"]]
    assert streams[:2] == ["stderr", "stdout"]


class TestAMemberOfAGang:
    """All members write to one output, so a line of one of them should not come in two pieces."""

    @pytest.fixture(autouse=True)
    def _patient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(running_module, "UNFINISHED_LINE_S", 300.0)

    async def test_a_line_is_sent_when_it_is_finished(self, agent: AgentSide) -> None:
        channel = WorkerChannel(agent.line)
        running = await begin(channel, "g1", 1, "n1", member=1)
        channel.write(running, "stdout", "one\ntw")
        await eventually(lambda: agent.of("output"))
        await asyncio.sleep(5 * REPORT_AFTER_S)
        assert agent.text() == "one\n"
        channel.write(running, "stdout", "o")
        channel.write(running, "stdout", "\n")
        await eventually(lambda: agent.text() == "one\ntwo\n")
        assert [message.head["parts"] for message in agent.of("output")] == [
            [["stdout", "one\n"]],
            [["stdout", "two\n"]],
        ]
        assert await finished(channel, running) == []

    async def test_a_line_that_stays_unfinished_is_sent_after_a_while(
        self, agent: AgentSide, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(running_module, "UNFINISHED_LINE_S", 0.2)
        channel = WorkerChannel(agent.line)
        running = await begin(channel, "g1", 1, "n1", member=0)
        channel.write(running, "stderr", "12 % ")
        await eventually(lambda: agent.text() == "12 % ")
        channel.write(running, "stderr", "24 % ")
        await eventually(lambda: agent.text() == "12 % 24 % ")
        assert await finished(channel, running) == []

    async def test_an_unfinished_line_goes_with_the_result(self, agent: AgentSide) -> None:
        channel = WorkerChannel(agent.line)
        running = await begin(channel, "g1", 1, "n1", member=0)
        channel.write(running, "stderr", "oh\n")
        channel.write(running, "stdout", "no end")
        await eventually(lambda: agent.text() == "oh\n")
        assert await finished(channel, running) == [("stdout", "no end")]
        assert running.chunks == 1

    async def test_held_back_output_counts_as_unsent(self, agent: AgentSide) -> None:
        channel = WorkerChannel(agent.line)
        running = await begin(channel, "g1", 1, "n1", member=0)
        channel.write(running, "stdout", "begun")
        await eventually(lambda: running.unfinished_since is not None)
        assert running.unsent_chars == len("begun")
        channel.write(running, "stdout", "x" * running_module.MAX_UNSENT_CHARS)
        assert running.dropped == running_module.MAX_UNSENT_CHARS
        assert await finished(channel, running) == [("stdout", "begun")]


async def test_output_beyond_the_limit_is_counted_and_dropped(agent: AgentSide) -> None:
    channel = WorkerChannel(agent.line)
    running = await begin(channel, "t1", 1, "n1")
    agent.disappear()
    await eventually(lambda: channel._socket is None)
    channel.write(running, "stdout", "x" * (running_module.MAX_UNSENT_CHARS - 1))
    channel.write(running, "stdout", "yy")
    channel.write(running, "stdout", "z")
    rest = await finished(channel, running)
    assert running.dropped == 2
    assert rest[0][1].endswith("xz")


async def test_the_start_of_the_next_call_is_reported_as_promptly(
    agent: AgentSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that ran a long call, was idle for a moment, and gets another one."""
    monkeypatch.setattr(channel_module, "_RECONNECT_PAUSE_S", 30.0)
    channel = WorkerChannel(agent.line)
    first = await begin(channel, "t1", 1, "n1")
    await eventually(lambda: agent.of("started"))
    await asyncio.sleep(1.1)
    channel.end(first)
    await asyncio.sleep(0.2)
    second = await begin(channel, "t2", 1, "n1")
    await eventually(lambda: len(agent.of("started")) == 2)
    assert time.monotonic() - second.began < 25
    await finished(channel, second)


async def test_a_broken_connection_is_reopened_and_nothing_is_lost(agent: AgentSide) -> None:
    channel = WorkerChannel(agent.line)
    running = await begin(channel, "t1", 1, "n1")
    channel.write(running, "stdout", "before ")
    await eventually(agent.text)
    for worker in list(agent.server._workers):
        worker.transport.abort()
    await eventually(lambda: channel._socket is None)
    channel.write(running, "stdout", "after")
    await eventually(lambda: agent.text() == "before after")
    assert len(agent.of("started")) == 1
    await finished(channel, running)


async def test_a_process_without_the_secret_is_not_admitted_and_starts_no_call(agent: AgentSide) -> None:
    channel = WorkerChannel(agent.line._replace(secret="guess", lease_s=0.3))
    with pytest.raises(NoLease, match=f"127.0.0.1:{agent.line.port} granted nothing for 0.3 s"):
        await begin(channel, "t1", 1, "n1")
    assert agent.received == []
    assert agent.server._workers == set()
    await eventually(lambda: channel._socket is None)


async def test_the_secret_is_not_sent(agent: AgentSide) -> None:
    sent = b""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        theirs, ours = await asyncio.open_connection("127.0.0.1", agent.line.port)
        writer.write(await theirs.read(65536))
        while data := await reader.read(65536):
            sent += data
            ours.write(data)
            if b"lease" in sent:
                writer.write(await theirs.read(65536))
        ours.close()
        writer.close()

    between = await asyncio.start_server(relay, "127.0.0.1", 0)
    channel = WorkerChannel(agent.line._replace(port=between.sockets[0].getsockname()[1]))
    await finished(channel, await begin(channel, "t1", 1, "n1"))
    between.close()
    assert b"hello" in sent
    assert agent.line.secret.encode() not in sent


async def test_a_stranger_may_not_be_silent_for_long(agent: AgentSide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_server, "_HANDSHAKE_TIMEOUT_S", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.line.port)
    await reader.read(65536)  # the challenge
    assert await asyncio.wait_for(reader.read(100), 60) == b""
    writer.close()


async def test_a_stranger_may_not_send_much(agent: AgentSide) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.line.port)
    await reader.read(65536)
    frames = FrameWriter()
    frames.put(Message("hello", {"proof": "x" * 100_000}))
    writer.write(frames.take())
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(100), 60) == b""
    writer.close()


@pytest.mark.parametrize(
    "first", [("hello", {"proof": "é"}), ("hello", {}), ("started", {"id": "t1", "attempt": 1}), ("noise", None)]
)
async def test_a_stranger_is_hung_up_on(agent: AgentSide, first: tuple[str, dict[str, object] | None]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.line.port)
    await reader.read(65536)  # the challenge
    kind, head = first
    frames = FrameWriter()
    frames.put(Message(kind, head or {}))
    frames.put(Message("output", {"id": "t1", "attempt": 1, "parts": [["stdout", "x"]]}))
    writer.write(b"GET / HTTP/1.1\r\n\r\n" if head is None else frames.take())
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(100), 60) == b""
    writer.close()
    assert agent.received == []


async def test_the_agents_grant_renews_the_lease(agent: AgentSide) -> None:
    channel = WorkerChannel(agent.line._replace(lease_s=20.0))
    running = await begin(channel, "t1", 1, "n1")
    agent.left_s = 500.0
    await eventually(lambda: channel._lease_until > time.monotonic() + 400)
    await finished(channel, running)


async def test_a_lease_counts_from_its_request(agent: AgentSide) -> None:
    """A word that was long under way is worth what is left of it."""

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameWriter()
        frames.put(Message("challenge", {"nonce": "n"}))
        writer.write(frames.take())
        incoming = FrameReader()
        while data := await reader.read(65536):
            for message in incoming.feed(data):
                if message.kind == "lease":
                    await asyncio.sleep(0.6)
                    frames.put(Message("lease", {"t": message.head["t"], "left_s": 20.0, "now": 0.0}))
                    writer.write(frames.take())
        writer.close()

    server = await asyncio.start_server(slow, "127.0.0.1", 0)
    channel = WorkerChannel(AgentEndpoint("127.0.0.1", server.sockets[0].getsockname()[1], "s", 100.0))
    running = await begin(channel, "t1", 1, "n1")
    assert channel._lease_until - running.began <= 19.4
    channel.end(running)
    await eventually(lambda: channel._socket is None)
    server.close()


async def test_report_now_sends_the_start_before_the_call_begins(agent: AgentSide) -> None:
    """Also when the line was hung up since, because nothing happened."""
    channel = WorkerChannel(agent.line)
    for number, name in enumerate(("t1", "t2"), start=1):
        running = await begin(channel, name, 1, "n1", report_now=True)
        assert running.reported
        await eventually(lambda number=number: len(agent.received) == number)
        await finished(channel, running)
        await eventually(lambda: channel._socket is None)
    assert [(one.kind, one.head["id"]) for one in agent.received] == [("started", "t1"), ("started", "t2")]
    await finished(channel, await begin(channel, "t3", 1, "n1"))
    assert len(agent.received) == 2  # a short one says it with its result


async def test_a_call_does_not_begin_on_the_last_moments_of_a_lease(agent: AgentSide) -> None:
    """The lease could end before it is renewed, and the process with it, though nothing is wrong."""
    channel = WorkerChannel(agent.line._replace(lease_s=10.0))
    await finished(channel, await begin(channel, "t1", 1, "n1"))
    channel._lease_until = time.monotonic() + 0.5
    channel._asked_at = 0.0
    running = await begin(channel, "t2", 1, "n1")
    assert channel._lease_until - running.began > 1.0
    await finished(channel, running)


async def test_no_call_starts_after_the_agents_lease_expired(agent: AgentSide) -> None:
    agent.left_s = -1.0
    channel = WorkerChannel(agent.line._replace(lease_s=3.0))
    with pytest.raises(NoLease):
        await begin(channel, "t1", 1, "n1")
    agent.left_s = 30.0
    running = await begin(channel, "t1", 2, "n1")
    assert await finished(channel, running) == []


async def test_calls_that_follow_each_other_ask_once(agent: AgentSide) -> None:
    channel = WorkerChannel(agent.line)
    await finished(channel, await begin(channel, "t1", 1, "n1"))
    agent.disappear()
    for number in range(100):
        running = channel.begin(f"t{number}", 1, "n1", sent_at=time.monotonic())
        assert channel.end(running) == []


async def test_a_call_that_waited_in_ray_begins_only_with_permission(agent: AgentSide) -> None:
    agent.taken_back.add(("t2", 1))
    channel = WorkerChannel(agent.line)
    await finished(channel, await begin(channel, "t1", 1, "n1", sent_at=time.monotonic() - ASK_AFTER_S))
    with pytest.raises(TakenBack):
        await begin(channel, "t2", 1, "n1", sent_at=time.monotonic() - 60)
    assert channel._running is None
    with pytest.raises(TakenBack):
        await begin(channel, "t2", 1, "n1", sent_at=ALWAYS_ASK)
    await finished(channel, await begin(channel, "t2", 2, "n1", sent_at=ALWAYS_ASK))
    assert agent.questions == [("t1", 1), ("t2", 1), ("t2", 1), ("t2", 2)]


async def test_a_call_that_was_just_sent_begins_without_a_question(
    agent: AgentSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "ASK_AFTER_S", 100.0)  # on a busy machine a round trip takes a while
    channel = WorkerChannel(agent.line)
    for number in range(3):
        await finished(channel, await begin(channel, f"t{number}", 1, "n1", sent_at=time.monotonic()))
    assert agent.questions == []


async def test_the_age_of_a_call_is_measured_by_the_agents_clock(
    agent: AgentSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node's clock of this kind counts from when the node started."""
    monkeypatch.setattr(channel_module, "ASK_AFTER_S", 100.0)
    ahead_s = 10_000.0
    agent_time = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s)
    monkeypatch.setattr(worker_server, "time", agent_time)
    channel = WorkerChannel(agent.line)
    await finished(channel, await begin(channel, "t1", 1, "n1", sent_at=agent_time.monotonic()))
    assert agent.questions == []
    await finished(channel, await begin(channel, "t2", 1, "n1", sent_at=agent_time.monotonic() - 101.0))
    assert agent.questions == [("t2", 1)]


async def test_a_question_is_repeated_over_a_new_connection(agent: AgentSide) -> None:
    channel = WorkerChannel(agent.line)
    await finished(channel, await begin(channel, "t1", 1, "n1"))
    permit, lost = agent.may_begin, []

    def break_first(key: tuple[str, int]) -> bool:
        if not lost:
            lost.append(key)
            raise ConnectionResetError("the connection broke")
        return permit(key)

    agent.may_begin = break_first  # type: ignore[method-assign]
    await finished(channel, await begin(channel, "t2", 1, "n1", sent_at=ALWAYS_ASK))
    assert (lost, agent.questions) == ([("t2", 1)], [("t2", 1)])


async def test_no_call_begins_without_an_answer(agent: AgentSide) -> None:
    channel = WorkerChannel(agent.line._replace(lease_s=3.0))
    await finished(channel, await begin(channel, "t1", 1, "n1"))
    agent.disappear()
    with pytest.raises(NoLease):
        await begin(channel, "t2", 1, "n1", sent_at=ALWAYS_ASK)


def test_one_channel_serves_one_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "_channel", None)
    line = AgentEndpoint("127.0.0.1", 1, "s", 30.0)
    assert channel_for(line) is channel_for(AgentEndpoint("127.0.0.1", 1, "s", 30.0))
    assert channel_for(line._replace(port=2)) is not channel_for(line)


WORKER = """
import sys, time
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import AgentEndpoint
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.channel import WorkerChannel
host, port, secret, lease_s, seconds = sys.argv[1:]
channel = WorkerChannel(AgentEndpoint(host, int(port), secret, float(lease_s)))
running = channel.begin("t1", 2, "n1", sent_at=time.monotonic())
time.sleep(float(seconds))
channel.end(running)
print("ran to its end")
"""


async def worker(line: AgentEndpoint, seconds: float) -> asyncio.subprocess.Process:
    arguments = [line.host, str(line.port), line.secret, str(line.lease_s), str(seconds)]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


async def test_a_worker_whose_agent_is_not_counted_on_any_more_ends_itself(agent: AgentSide) -> None:
    agent.left_s = 3.0
    process = await worker(agent.line._replace(lease_s=3.0), 120)
    await eventually(lambda: agent.of("started"), timeout=60)
    agent.left_s = 0.0
    _, stderr = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 75
    assert b"no contact with the agent for 3 s; task t1 (attempt 2) will be run elsewhere" in stderr


async def test_a_worker_whose_agent_is_gone_ends_itself(agent: AgentSide) -> None:
    agent.left_s = 3.0
    process = await worker(agent.line._replace(lease_s=3.0), 120)
    await eventually(lambda: agent.of("started"), timeout=60)
    agent.disappear()
    await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 75


async def test_a_worker_that_was_stopped_for_longer_than_its_lease_ends_when_it_wakes(agent: AgentSide) -> None:
    """Its socket is full of the agent's old words by then."""
    agent.left_s = 2.0
    process = await worker(agent.line._replace(lease_s=2.0), 120)
    await eventually(lambda: agent.of("started"), timeout=60)
    process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(2.5)
    process.send_signal(signal.SIGCONT)
    stdout, _ = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, stdout) == (75, b"")


async def test_a_worker_whose_lease_is_renewed_runs_to_its_end(agent: AgentSide) -> None:
    agent.left_s = 3.0
    process = await worker(agent.line._replace(lease_s=3.0), 5)
    stdout, _ = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, stdout) == (0, b"ran to its end\n")
