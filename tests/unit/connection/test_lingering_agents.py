"""Agents that a program leaves idle: recorded for their user alone, claimed once, taken over by the next program, and
replaced if they do not come."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ray_multicluster_scheduler.control_plane.config import ClusterConfig, Settings
from ray_multicluster_scheduler.scheduler.connection import ray_client_pool
from ray_multicluster_scheduler.scheduler.connection.agents import agent_launcher, lingering_agents
from ray_multicluster_scheduler.scheduler.connection.agents.agent_address import AgentAddress
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecord
from ray_multicluster_scheduler.scheduler.connection.agents.lingering_agents import LingeringAgents
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.link.connection import Rejected
from ray_multicluster_scheduler.scheduler.connection.ray_client_pool import RayClientPool
from tests.support.eventually import eventually
from tests.support.links import FakeClock, RecordingListener, call
from tests.support.scripted_agent import ScriptedAgent
from tests.unit.connection.test_ray_client_pool import Dashboard

CONFIG = ClusterConfig(name="a", dashboard="http://127.0.0.1:8265")
ADDRESS = AgentAddress("127.0.0.1", 0, "127.0.0.1", None)
NUMBERS = itertools.count(1)
RECORD = AgentRecord("a", "rmcs-agent-cp1-a-1-1", "", "127.0.0.1", 4242, token="next")


class Program:
    """An embedded program: its pool, over the dashboard of the cluster that all programs share."""

    def __init__(self, dashboard: Dashboard, folder: Path, **settings: Any) -> None:
        self.dashboard, self.received = dashboard, RecordingListener()
        self.pool = RayClientPool(
            {"a": CONFIG},
            Settings(heartbeat_s=0.5, **settings),
            cast("Any", self),
            self.received,
            FakeClock(),
            f"cp{next(NUMBERS)}",
            cast("Any", self),
            lingering=LingeringAgents(30.0, folder),
        )

    def client(self, name: str) -> Dashboard:
        return self.dashboard

    async def ship(self, *given: object) -> str:
        return "gcs://own.zip"


@asynccontextmanager
async def program(dashboard: Dashboard, folder: Path, **settings: Any) -> AsyncIterator[Program]:
    """Its end is orderly: the agent is asked to linger, and does."""
    one = Program(dashboard, folder, **settings)
    yield one
    closing = asyncio.create_task(one.pool.close())
    used = {link.agent for link in one.pool._links.values()}
    agents = [agent for agent in dashboard.agents if agent.connected and agent.join.agent in used]
    for agent in agents:
        await agent.until(m.LINGER)
        agent.say(m.LINGER)
    await closing
    for agent in agents:
        await agent.close()


def executed_anew(agent: ScriptedAgent) -> ScriptedAgent:
    """What the process of this agent is after LINGER."""
    following = ScriptedAgent(replace(agent.join, token=agent.of(m.LINGER)[-1].head["token"], lingers=True))
    agent.received.clear()
    return following


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch) -> Dashboard:
    monkeypatch.setattr(agent_launcher, "_POLL_S", 0.02)
    monkeypatch.setattr(ray_client_pool, "_TAKE_OVER_S", 0.2)
    return Dashboard()


@pytest.fixture
async def left(dashboard: Dashboard, tmp_path: Path) -> AsyncIterator[ScriptedAgent]:
    """The agent that a first program left."""
    async with program(dashboard, tmp_path) as first:
        await first.pool.link("a")
    agent = executed_anew(dashboard.agents[0])
    yield agent
    await agent.close()


# The records -------------------------------------------------------------------------------------------


def test_an_agent_is_claimed_once_by_the_terms_under_which_it_was_left(tmp_path: Path) -> None:
    agents = LingeringAgents(30.0, tmp_path / "agents")
    terms = agents.terms(CONFIG, ADDRESS)
    assert agents.claim(terms) is None
    agents.leave(RECORD, terms, 2.0)
    assert agents.names() == {RECORD.agent}
    for other in (
        agents.terms(CONFIG.model_copy(update={"python": "/other/python"}), ADDRESS),
        agents.terms(CONFIG.model_copy(update={"dashboard": "http://127.0.0.1:1"}), ADDRESS),
        agents.terms(CONFIG, replace(ADDRESS, host="10.0.0.1")),
        {**terms, "package": "another version"},
    ):
        assert agents.claim(other) is None
    claimed = agents.claim(terms)
    assert claimed is not None
    assert (claimed.record, claimed.start_s) == (RECORD, 2.0)
    assert claimed.left_s_ago < 30
    assert agents.claim(terms) is None


def test_only_one_of_two_programs_that_saw_the_record_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = LingeringAgents(30.0, tmp_path), LingeringAgents(30.0, tmp_path)
    terms = first.terms(CONFIG, ADDRESS)
    first.leave(RECORD, terms, 2.0)
    read, found = lingering_agents.read_private, []

    def read_while_the_other_claims(path: Path) -> str:
        text = read(path)
        monkeypatch.setattr(lingering_agents, "read_private", read)
        found.append(second.claim(terms))
        return text

    monkeypatch.setattr(lingering_agents, "read_private", read_while_the_other_claims)
    found.append(first.claim(terms))
    assert [one is not None for one in found] == [True, False]


def test_records_are_private_and_nothing_else_is_read(tmp_path: Path) -> None:
    agents = LingeringAgents(30.0, tmp_path / "agents")
    terms = agents.terms(CONFIG, ADDRESS)
    agents.leave(RECORD, terms, 2.0)
    (path,) = (tmp_path / "agents").iterdir()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    path.chmod(0o644)
    assert agents.claim(terms) is None, "others may know its token"
    path.chmod(0o600)
    path.write_text("{}")
    assert agents.claim(terms) is None


def test_the_record_of_an_agent_that_has_ended_is_removed(tmp_path: Path) -> None:
    agents = LingeringAgents(0.5, tmp_path)
    terms = agents.terms(CONFIG, ADDRESS)
    agents.leave(RECORD, terms, 2.0)
    assert agents.claim(terms) is None
    assert not list(tmp_path.iterdir())


# Two programs ------------------------------------------------------------------------------------------


async def test_the_next_program_takes_the_agent_over(dashboard: Dashboard, tmp_path: Path, left: ScriptedAgent) -> None:
    async with program(dashboard, tmp_path, lease_s=20) as second:
        link = asyncio.create_task(second.pool.link("a"))
        await left.dial()
        assert (await link).agent == dashboard.submitted[0]["id"]  # type: ignore[attr-defined]
        assert (left.welcome["lease_s"], second.received.kinds()) == (20, ["link_up"])
        (await link).submit([call("t")])
        await eventually(left.calls)
        dashboard.agents.append(left)
    assert (len(dashboard.submitted), dashboard.stopped) == (1, [])
    (path,) = tmp_path.iterdir()
    again = json.loads(path.read_text())["agent"]
    assert again["token"] == left.of(m.LINGER)[0].head["token"] != left.join.token
    assert not again["secret"]
    assert second.received.kinds()[-1] == "link_closed", "its work has ended"


async def test_a_token_joins_once(dashboard: Dashboard, tmp_path: Path, left: ScriptedAgent) -> None:
    async with program(dashboard, tmp_path) as second:
        link = asyncio.create_task(second.pool.link("a"))
        await left.dial()
        await link
        dashboard.agents.append(left)
        copy = ScriptedAgent(replace(left.join, lingers=False))
        with pytest.raises(Rejected, match="used already"):
            await copy.dial()


async def test_an_agent_whose_job_has_ended_is_replaced_at_once(
    dashboard: Dashboard, tmp_path: Path, left: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_client_pool, "_TAKE_OVER_S", 600.0)
    dashboard.jobs[dashboard.submitted[0]["id"]]["status"] = "STOPPED"
    async with program(dashboard, tmp_path) as second:
        await second.pool.link("a")
    assert len(dashboard.submitted) == 2


async def test_an_agent_that_does_not_come_is_replaced_and_stopped(
    dashboard: Dashboard, tmp_path: Path, left: ScriptedAgent
) -> None:
    async with program(dashboard, tmp_path) as second:
        await second.pool.link("a")
        assert len(dashboard.submitted) == 2
        await eventually(lambda: dashboard.stopped == [dashboard.submitted[0]["id"]])
        with pytest.raises(Rejected):
            await left.dial()
        assert second.received.kinds() == ["link_up"]


async def test_an_agent_whose_port_another_program_has_is_replaced(
    dashboard: Dashboard, tmp_path: Path, left: ScriptedAgent
) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), *left.join.addresses[0])
    async with server, program(dashboard, tmp_path) as second:
        await second.pool.link("a")
    assert len(dashboard.submitted) == 2


async def test_two_programs_at_once_do_not_share_an_agent(
    dashboard: Dashboard, tmp_path: Path, left: ScriptedAgent
) -> None:
    async with program(dashboard, tmp_path) as second, program(dashboard, tmp_path) as third:
        links = asyncio.gather(second.pool.link("a"), third.pool.link("a"))
        await left.dial()
        names = [link.agent for link in await links]  # type: ignore[attr-defined]
        dashboard.agents.append(left)
        assert len(set(names)) == len(dashboard.submitted) == 2


async def test_an_agent_that_waits_for_a_program_is_no_other_control_plane(
    dashboard: Dashboard, tmp_path: Path, left: ScriptedAgent
) -> None:
    dashboard.jobs[dashboard.submitted[0]["id"]]["submission_id"] = dashboard.submitted[0]["id"]
    for folder, others in ((tmp_path, 0), (tmp_path / "of another user", 1)):
        elsewhere = Program(dashboard, folder)
        elsewhere.pool._lingering.claim = lambda terms: None  # type: ignore[union-attr, method-assign]
        await elsewhere.pool.link("a")
        assert len(elsewhere.pool.other_control_planes("a")) == others
        dashboard.jobs.popitem()
        await dashboard.agents.pop().close()
        await elsewhere.pool.close()


async def test_a_cancelled_take_over_leaves_nothing(dashboard: Dashboard, tmp_path: Path, left: ScriptedAgent) -> None:
    second = Program(dashboard, tmp_path)
    link = asyncio.create_task(second.pool.link("a"))
    await eventually(lambda: second.pool._ports)
    await second.pool.close()
    assert link.cancelled() or isinstance(link.exception(), asyncio.CancelledError)
    assert dashboard.stopped == [dashboard.submitted[0]["id"]]


async def test_an_agent_that_does_not_answer_is_stopped_and_not_recorded(
    dashboard: Dashboard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray_multicluster_scheduler.scheduler.connection.links.agent_link._CLOSE_TIMEOUT_S", 0.1)
    one = Program(dashboard, tmp_path)
    await one.pool.link("a")
    await one.pool.close()
    assert dashboard.stopped == [dashboard.submitted[0]["id"]]
    assert not list(tmp_path.iterdir())
    await dashboard.agents[0].close()


async def test_a_folder_that_cannot_be_written_costs_only_the_next_start(dashboard: Dashboard, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with program(dashboard, tmp_path / "file") as one:
        await one.pool.link("a")
    assert dashboard.agents[0].of(m.LINGER)
