"""Parked links: an agent lives on if the next process may need it, otherwise it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ray_multicluster_scheduler.common.pickling import dumps
from ray_multicluster_scheduler.scheduler.connection.agents import agent_launcher
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links import agent_link
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import MethodCall
from tests.support.eventually import eventually
from tests.support.links import call
from tests.support.scripted_agent import ScriptedAgent
from tests.unit.connection.test_ray_client_pool import Fleet, running_fleet

KEY = ("t", 1)


@pytest.fixture
async def fleet(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(agent_launcher, "_POLL_S", 0.02)
    async with running_fleet() as made:
        yield made


async def ran(fleet: Fleet, **head: object) -> ScriptedAgent:
    """An agent that was given something, and has said how it ended."""
    (await fleet.pool.link("a")).submit([call("t")])
    (agent,) = fleet.dashboard.agents
    await agent.until(m.CALLS)
    agent.accept(KEY)
    agent.finish(KEY, payload=dumps(1), **head)
    await fleet.received.until("finished")
    return agent


async def test_an_agent_that_has_nothing_to_do_is_ended_and_forgotten(fleet: Fleet) -> None:
    agent = await ran(fleet)
    await asyncio.gather(fleet.pool.park(), fleet.hang_up_when_asked())
    assert "not needed" in agent.of(m.CLOSE)[0].head["sentence"]
    assert fleet.agents == {}
    assert fleet.dashboard.stopped == [], "it ends by itself"


async def runs(fleet: Fleet) -> None:
    (await fleet.pool.link("a")).submit([call("t")])


async def is_not_written(fleet: Fleet) -> None:
    fleet.received.slow = True
    await ran(fleet)


async def keeps_a_value(fleet: Fleet) -> None:
    await ran(fleet, kept=9)


async def is_not_received(fleet: Fleet) -> None:
    """The answer to a call of a method, which nobody has but the agent."""
    fleet.received.acknowledges_later = True
    (await fleet.pool.link("a")).submit([call("t", method=MethodCall("a1", 1, "f", 0))])
    (agent,) = fleet.dashboard.agents
    await agent.until(m.CALLS)
    agent.accept(KEY)
    agent.finish(KEY, method=True)
    await fleet.received.until("finished")


@pytest.mark.parametrize("what", [runs, is_not_written, is_not_received, keeps_a_value])
async def test_an_agent_with_something_for_the_next_process_goes_on(
    fleet: Fleet, what: Callable[[Fleet], Awaitable[None]]
) -> None:
    await what(fleet)
    await asyncio.wait_for(fleet.pool.park(), 60)
    (agent,) = fleet.dashboard.agents
    assert agent.of(m.CLOSE) == []
    assert len(fleet.agents) == 1


async def test_an_inherited_agent_may_have_orphans_and_is_not_unused(fleet: Fleet) -> None:
    await fleet.pool.link("a")
    (agent,) = fleet.dashboard.agents
    await fleet.die()
    after = Fleet(fleet)
    await after.pool.restore_agents(fleet.agents.values(), None)
    await agent.cut()
    await agent.dial()
    await after.received.until("link_up")
    await asyncio.wait_for(after.pool.park(), 60)
    assert agent.of(m.CLOSE) == []
    assert len(after.agents) == 1


async def test_an_agent_that_does_not_close_in_time_stays_recorded(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_link, "_CLOSE_TIMEOUT_S", 0.2)
    agent = await ran(fleet)
    began = time.monotonic()
    await fleet.pool.park()
    assert time.monotonic() - began < 30
    assert len(agent.of(m.CLOSE)) == 1
    assert len(fleet.agents) == 1, "it may live until its lease ends"


async def test_an_agent_with_an_announced_absence_is_not_stopped(fleet: Fleet) -> None:
    agent = await ran(fleet)
    parking = asyncio.create_task(fleet.pool.park(600.0))
    await agent.until(m.AWAY)
    agent.say(m.AWAY, {})
    assert await parking == ["a"]
    assert agent.of(m.CLOSE) == []


@pytest.mark.parametrize(("away_s", "reported"), [(600.0, m.AWAY), (0.0, m.CLOSE)])
async def test_an_announced_absence_closes_the_port_and_keeps_connections(
    fleet: Fleet, away_s: float, reported: str
) -> None:
    """One that has heard it and is let in again takes us for back, and its lease for as short as any."""
    agent = await ran(fleet)
    parking = asyncio.create_task(fleet.pool.park(away_s))
    await agent.until(reported)
    ((host, port),) = agent.join.addresses
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, port)
    agent.say(m.PING, {"t": 7.0})
    await eventually(lambda: any(one.head == {"t": 7.0} for one in agent.of(m.PONG)))
    agent.say(m.AWAY, {})
    if reported == m.CLOSE:
        await agent.close()
    assert await parking == (["a"] if away_s else [])
