"""The line of an actor's process: open for life, with or without a lease, and moved from one agent to the next."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from ray_multicluster_scheduler.common.frames import Message
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.actor_channel import CANCEL, LEAVING, ActorChannel
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.channel import TakenBack
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import AgentEndpoint
from tests.support.eventually import eventually
from tests.unit.connection.agent_side import AgentSide, agent_side

A1 = ("a1", 2)


@pytest.fixture
async def agent() -> AsyncIterator[AgentSide]:
    side = await agent_side()
    yield side
    side.disappear()


def ended(channel: ActorChannel) -> None:
    """Let the channel's thread stop dialling before the test ends."""
    running = channel._running
    assert running is not None
    channel.end(running)


async def test_the_connection_stays_open_and_its_end_is_reported(agent: AgentSide) -> None:
    channel = ActorChannel(agent.line, *A1, detached=False)
    running = await asyncio.to_thread(channel.begin_actor, "n1")
    await eventually(lambda: agent.lines == [(A1, True)])
    await asyncio.sleep(1.5)  # longer than a task's line stays open without work
    assert agent.lines == [(A1, True)]
    assert agent.of("started") == [], "it is started when it is ready, which its agent knows first"
    channel.report_exit(running)
    await eventually(lambda: [message.head for message in agent.of(LEAVING)] == [{"id": "a1", "attempt": 2}])
    channel._shut_down()
    await eventually(lambda: (A1, False) in agent.lines)
    ended(channel)


async def test_an_actor_that_was_taken_back_does_not_begin(agent: AgentSide) -> None:
    agent.taken_back.add(A1)
    channel = ActorChannel(agent.line, *A1, detached=False)
    with pytest.raises(TakenBack):
        await asyncio.to_thread(channel.begin_actor, "n1")
    channel._shut_down()


async def test_output_is_sent_before_the_result_and_in_order(agent: AgentSide) -> None:
    channel = ActorChannel(agent.line, *A1, detached=False)
    running = await asyncio.to_thread(channel.begin_actor, "n1")
    for number in range(50):
        channel.write(running, "stdout", f"{number} ")
        if number % 5 == 0:
            assert channel.flush(running) == []
    channel.flush(running)
    await eventually(lambda: len(agent.of("output")) == running.chunks)
    assert agent.text() == "".join(f"{number} " for number in range(50))
    ended(channel)


async def test_without_a_connection_output_goes_with_the_result() -> None:
    unavailable = AgentEndpoint("127.0.0.1", 1, "s", 30.0)
    channel = ActorChannel(unavailable, *A1, detached=True)
    running = channel.begin_actor("n1")  # a detached one needs no lease
    channel.write(running, "stdout", "hello")
    assert channel.flush(running) == [("stdout", "hello")]
    assert running.chunks == 0
    ended(channel)


async def test_a_cancelled_method_does_not_begin(agent: AgentSide) -> None:
    channel = ActorChannel(agent.line, *A1, detached=False)
    await asyncio.to_thread(channel.begin_actor, "n1")
    await eventually(lambda: agent.lines)
    agent.server.send_to_actor(A1, Message(CANCEL, {"id": "m1", "attempt": 1}))
    agent.server.send_to_actor(("unknown", 1), Message(CANCEL, {"id": "m2", "attempt": 1}))
    await eventually(lambda: channel._cancelled)
    assert [channel.begin_method(("m1", 1)), channel.begin_method(("m1", 1)), channel.begin_method(("m2", 1))] == [
        False,
        True,
        True,
    ]
    ended(channel)


async def test_a_detached_actor_connects_to_the_agent_that_attends_to_it(agent: AgentSide) -> None:
    channel = ActorChannel(agent.line, *A1, detached=True)
    running = channel.begin_actor("n1")
    await eventually(lambda: agent.lines == [(A1, True)])
    other = await agent_side()
    channel.report_to(other.line, "b1", 7)
    channel.write(running, "stdout", "for the new one")
    await eventually(lambda: other.lines == [(("b1", 7), True)])
    await eventually(lambda: other.text() == "for the new one")
    assert other.of("output")[0].head["id"] == "b1"
    assert (running.chunks, agent.text()) == (1, "")
    await eventually(lambda: agent.lines[-1] == (A1, False))
    channel.report_to(other.line, "b1", 7)  # the same again changes nothing
    await asyncio.sleep(0.1)
    assert len(other.lines) == 1
    ended(channel)
    other.disappear()


ACTOR = """
import sys, time
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.actor_channel import ActorChannel
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.channel import TakenBack
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import AgentEndpoint
host, port, secret, lease_s, detached = sys.argv[1:]
address = AgentEndpoint(host, int(port), secret, float(lease_s))
ActorChannel(address, "a1", 2, detached=detached == "detached").begin_actor("n1")
time.sleep(6 if detached == "detached" else 60)
print("lived")
"""


@pytest.mark.parametrize(("kind", "code"), [("plain", 75), ("detached", 0)])
async def test_an_idle_actor_ends_with_its_lease_unless_it_is_detached(agent: AgentSide, kind: str, code: int) -> None:
    line = agent.line._replace(lease_s=3.0)
    granted: list[float] = []
    over = False

    def left_s() -> float:
        granted.append(0.0 if over else 3.0)
        return granted[-1]

    agent.server._left_s = left_s
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", ACTOR, line.host, str(line.port), line.secret, str(line.lease_s), kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    await eventually(lambda: agent.lines and (granted or kind == "detached"), timeout=60)
    over = True
    await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == code
