"""RayClientPool with two ways to a cluster: which is taken, what is written down of it, and what stays of it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from ray_multicluster_scheduler.scheduler.connection import agent_launcher
from ray_multicluster_scheduler.scheduler.connection.agent_address import AgentAddress
from ray_multicluster_scheduler.scheduler.connection.agent_launcher import JoinInvitation
from ray_multicluster_scheduler.scheduler.connection.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.dialler import Admit
from ray_multicluster_scheduler.scheduler.connection.gateway import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.dial import Join
from ray_multicluster_scheduler.scheduler.connection.link_memory import RememberedAgent
from ray_multicluster_scheduler.scheduler.connection.link_messages import RESTARTED
from ray_multicluster_scheduler.scheduler.connection.link_problem import LinkProblem, from_connector
from tests.support.eventually import eventually
from tests.support.links import call
from tests.support.scripted_agent import ScriptedAgent
from tests.unit.connection.test_ray_client_pool import Fleet


class ByClient:
    """A Carrier whose agents are scripted ones; it keeps what it was asked."""

    def __init__(self, dashboard: Any) -> None:
        self.dashboard = dashboard
        self.problem: LinkProblem | None = None
        self.taken_back: list[tuple[RememberedAgent, int]] = []
        self.ended: list[str] = []
        self.let_gone: list[str] = []
        self.over: str | None = None
        self.closed = False

    def address(self, config: Any) -> AgentAddress:
        return AgentAddress("127.0.0.1", 0, "127.0.0.1", None)

    async def launch(self, link: AgentLink, invitation: JoinInvitation) -> None:
        if self.problem is not None:
            raise self.problem
        where = [(invitation.host, invitation.port)]
        agent = ScriptedAgent(Join(link.cluster, link.agent, where, invitation.token, carrier="ray_client"))
        await agent.dial()
        self.dashboard.agents.append(agent)
        await link.joined

    def remembers(self, agent: str) -> dict[str, Any]:
        return {}

    def take_back(self, agent: RememberedAgent, port: int, admit: Admit) -> None:
        self.taken_back.append((agent, port))

    async def is_over(self, cluster: str, agent: str) -> str | None:
        return self.over

    async def end(self, cluster: str, agent: str) -> None:
        self.ended.append(agent)

    async def let_go(self, agent: str) -> None:
        self.let_gone.append(agent)

    async def close(self) -> None:
        self.closed = True


def both_ways(**cluster: Any) -> tuple[Fleet, ByClient]:
    before = cluster.pop("before", None)
    fleet = Fleet(before, **cluster)
    client = ByClient(fleet.dashboard)
    fleet.pool._carriers["ray_client"] = cast("Any", client)
    return fleet, client


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_launcher, "_POLL_S", 0.02)


async def shut(fleet: Fleet) -> None:
    for agent in fleet.dashboard.agents:
        await agent.close()
    await fleet.pool.close()


@pytest.mark.parametrize("cluster", [{"carrier": "ray_client"}, {"dashboard": None}])
async def test_ray_client_where_it_is_asked_for_or_the_only_way(cluster: dict[str, Any]) -> None:
    fleet, _ = both_ways(**cluster)
    link = await fleet.pool.link("a")
    assert fleet.dashboard.submitted == []
    choice = fleet.pool.carrier("a")
    assert choice is not None
    assert choice.carrier == "ray_client"
    kept = fleet.agents[link.agent]
    assert (kept.carrier, kept.session, kept.fresh, kept.token) == ("ray_client", "session_1", False, "")
    await shut(fleet)


async def test_an_agent_that_can_neither_dial_nor_listen_is_followed_by_ray_client_and_it_is_said_why() -> None:
    fleet, client = both_ways()
    fleet.dashboard.joins = False
    fleet.dashboard.log = f"{m.DIAL_FAILED} 127.0.0.1:9 (no answer in time)"
    starting = asyncio.create_task(fleet.pool.link("a"))
    for tries, log in enumerate([fleet.dashboard.log, f"{m.LISTEN_FAILED} 127.0.0.1:7 (in use)"], 1):
        await eventually(lambda tries=tries: len(fleet.dashboard.jobs) == tries)
        fleet.dashboard.log = log
        for job in fleet.dashboard.jobs.values():
            job["status"] = "FAILED"
    fleet.dashboard.joins = True  # what follows does join
    link = await asyncio.wait_for(starting, 10)
    assert link.connected
    choice = fleet.pool.carrier("a")
    assert choice is not None
    assert choice.carrier == "ray_client"
    assert "cannot dial back to" in choice.why
    assert "cannot listen at 127.0.0.1:7" in choice.why
    assert [one.carrier for one in fleet.agents.values()] == ["ray_client"], "the first one is forgotten"
    await shut(fleet)
    assert client.closed


async def test_other_failures_of_an_agent_are_told_and_no_other_way_is_tried() -> None:
    fleet, _ = both_ways()
    fleet.dashboard.joins = False
    fleet.dashboard.log = f"{m.NO_RAY} no ray"
    starting = asyncio.create_task(fleet.pool.link("a"))
    await eventually(lambda: fleet.dashboard.jobs)
    for job in fleet.dashboard.jobs.values():
        job["status"] = "FAILED"
    with pytest.raises(LinkProblem, match="cannot run our agent"):
        await starting
    choice = fleet.pool.carrier("a")
    assert choice is not None
    assert choice.carrier == "agent"
    await shut(fleet)


async def test_a_launch_that_failed_leaves_nothing_here_and_is_forgotten() -> None:
    fleet, client = both_ways(dashboard=None)
    client.problem = from_connector("a", "python", "RAY_MISMATCH", "the cluster runs Ray 9")
    with pytest.raises(LinkProblem, match="the cluster runs Ray 9"):
        await fleet.pool.link("a")
    assert fleet.agents == {}
    assert client.ended == client.let_gone != []
    await shut(fleet)


async def test_a_gateway_of_another_session_is_told_as_a_restart_and_let_go() -> None:
    fleet, client = both_ways(dashboard=None)
    link = await fleet.pool.link("a")
    link.submit([call("t1")])
    client.over = RESTARTED
    await fleet.dashboard.agents[0].cut()
    await fleet.heard.until("link_closed")
    assert fleet.heard.result("t1").code == "CLUSTER_RESTARTED"
    await eventually(lambda: client.let_gone == [link.agent])
    assert fleet.agents == {}
    await shut(fleet)


async def test_the_next_process_takes_it_back_by_the_same_carrier_at_a_port_of_its_own() -> None:
    before, _ = both_ways(dashboard=None)
    link = await before.pool.link("a")
    scripted = before.dashboard.agents[0]
    await before.die()
    after, client = both_ways(before=before, dashboard=None)
    await after.pool.take_back(before.agents.values(), None)
    ((known, port),) = client.taken_back
    assert (known.agent, known.session) == (link.agent, "session_1")
    scripted.join.addresses[:] = [("127.0.0.1", port)]  # as its connector would
    await scripted.dial()
    await after.heard.until("link_up")
    await shut(after)


async def test_parked_links_leave_no_connector() -> None:
    fleet, client = both_ways(dashboard=None)
    await fleet.pool.link("a")
    await fleet.pool.park()
    assert client.closed
    assert client.ended == []
    for agent in fleet.dashboard.agents:
        await agent.close()
