"""RayClientPool with several carriers: which one is used, what is recorded of it, and clean-up."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.scheduler.connection import ray_client_pool
from ray_multicluster_scheduler.scheduler.connection.agents import agent_launcher, job_carrier
from ray_multicluster_scheduler.scheduler.connection.agents.agent_address import AgentAddress
from ray_multicluster_scheduler.scheduler.connection.agents.agent_launcher import JoinInvitation
from ray_multicluster_scheduler.scheduler.connection.agents.agent_listener import Admit
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecord
from ray_multicluster_scheduler.scheduler.connection.agents.carrier import CARRIER_RETRY_S
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.link.connection import CannotDial, DialInServer, Join
from ray_multicluster_scheduler.scheduler.connection.gateway.worker import process_lock
from ray_multicluster_scheduler.scheduler.connection.links.agent_link import AgentLink
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import ClusterLink
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import (
    CLUSTER_RESTARTED,
    LinkProblem,
    from_connector,
)
from tests.support import scripted_agent
from tests.support.eventually import eventually
from tests.support.links import call
from tests.support.scripted_agent import ScriptedAgent
from tests.unit.connection.test_ray_client_pool import Fleet


class ScriptedClientCarrier:
    """A Carrier whose agents are scripted ones; it keeps what it was asked."""

    def __init__(self, dashboard: Any) -> None:
        self.dashboard = dashboard
        self.problem: LinkProblem | None = None
        self.restored: list[tuple[AgentRecord, int]] = []
        self.ended: list[str] = []
        self.released: list[str] = []
        self.over: str | None = None
        self.delay_s = 0.0
        self.closed = False
        self.messages_when_dialing_stopped: list[str] | None = None

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

    def record_fields(self, agent: str) -> dict[str, Any]:
        return {}

    def restore(self, agent: AgentRecord, port: int, admit: Admit) -> None:
        self.restored.append((agent, port))

    async def death_reason(self, cluster: str, agent: str) -> str | None:
        await asyncio.sleep(self.delay_s)
        return self.over

    async def stop(self, cluster: str, agent: str) -> None:
        self.ended.append(agent)

    async def stop_dialing(self) -> None:
        self.messages_when_dialing_stopped = [one.kind for agent in self.dashboard.agents for one in agent.received]

    async def release(self, agent: str) -> None:
        self.released.append(agent)

    async def close(self) -> None:
        self.closed = True


def fleet_with_two_carriers(**cluster: Any) -> tuple[Fleet, ScriptedClientCarrier]:
    before = cluster.pop("before", None)
    fleet = Fleet(before, **cluster)
    client = ScriptedClientCarrier(fleet.dashboard)
    fleet.pool._carriers["ray_client"] = cast("Any", client)
    return fleet, client


@pytest.fixture(autouse=True)
def _fast_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_launcher, "_POLL_S", 0.02)


async def close_fleet(fleet: Fleet) -> None:
    for agent in fleet.dashboard.agents:
        await agent.close()
    await fleet.pool.close()


@pytest.mark.parametrize("cluster", [{"carrier": "ray_client"}, {"dashboard": None}])
async def test_ray_client_if_configured_or_the_only_carrier(cluster: dict[str, Any]) -> None:
    fleet, _ = fleet_with_two_carriers(**cluster)
    link = await fleet.pool.link("a")
    assert fleet.dashboard.submitted == []
    choice = fleet.pool.carrier("a")
    assert choice is not None
    assert choice.carrier == "ray_client"
    kept = fleet.agents[link.agent]
    assert (kept.carrier, kept.session, kept.fresh, kept.token) == ("ray_client", "session_1", False, "")
    await close_fleet(fleet)


async def fall_back_to_ray_client(fleet: Fleet) -> ClusterLink:
    """Let the agent fail to dial and to listen; the link of the gateway that Ray Client then starts."""
    fleet.dashboard.joins = False
    fleet.dashboard.log = f"{m.DIAL_FAILED} 127.0.0.1:9 (no answer in time)"
    starting = asyncio.create_task(fleet.pool.link("a"))
    for tries, log in enumerate([fleet.dashboard.log, f"{m.LISTEN_FAILED} 127.0.0.1:7 (in use)"], 1):
        await eventually(lambda tries=tries: len(fleet.dashboard.jobs) == tries)
        fleet.dashboard.log = log
        for job in fleet.dashboard.jobs.values():
            job["status"] = "FAILED"
    fleet.dashboard.joins = True
    return await asyncio.wait_for(starting, 60)


async def test_ray_client_is_the_last_carrier_with_the_reason() -> None:
    fleet, client = fleet_with_two_carriers()
    link = await fall_back_to_ray_client(fleet)
    assert link.connected
    choice = fleet.pool.carrier("a")
    assert choice is not None
    assert choice.carrier == "ray_client"
    assert "cannot dial back to" in choice.why
    assert "cannot listen at 127.0.0.1:7" in choice.why
    cast("Any", fleet.pool._clock).time += 2 * CARRIER_RETRY_S
    assert fleet.pool.carrier("a") == choice, "as it came, for as long as it is there"
    fleet.pool.update({"a": fleet.pool._clusters["a"].model_copy(update={"tags": ("new",)})})
    assert fleet.pool.carrier("a") == choice, "tags are no way"
    assert [one.carrier for one in fleet.agents.values()] == ["ray_client"], "the first one is forgotten"
    await close_fleet(fleet)
    assert client.closed


async def test_the_log_of_a_dialled_agent_is_read_only_until_it_has_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_carrier, "REACH_S", 0.5)
    fleet, _ = fleet_with_two_carriers(carrier="dial_in")
    fleet.dashboard.joins = False
    fleet.dashboard.log = m.listens_line("127.0.0.1", 1, "ab" * 32)
    with pytest.raises(LinkProblem, match="listens at 127.0.0.1:1, but cannot be reached from here"):
        await asyncio.wait_for(fleet.pool.link("a"), 60)
    assert fleet.dashboard.logs_read == 1
    (job,) = fleet.dashboard.submitted
    assert "PRIVATE KEY" not in str(job)
    await close_fleet(fleet)


async def test_dialled_agent_joins_without_a_port_of_ours() -> None:
    """Who reads the environment of its job, and is on our machine, gets no further than who does not."""
    fleet, _ = fleet_with_two_carriers(carrier="dial_in")
    port = fleet.pool._admission(AgentAddress("127.0.0.1", 0, "127.0.0.1", None))  # for agents that do dial
    number = await port.start()
    fleet.dashboard.joins = False
    starting = asyncio.create_task(fleet.pool.link("a"))
    await eventually(lambda: fleet.dashboard.submitted)
    reported = fleet.dashboard.agent_of(fleet.dashboard.submitted[0]).join
    assert reported.listen is not None
    stranger = ScriptedAgent(replace(reported, addresses=[("127.0.0.1", number)]))
    with pytest.raises(CannotDial, match="this agent is not expected"):
        await stranger.dial(patience_s=3)
    assert list(fleet.pool._ports) == [("127.0.0.1", 0)], "no other port is open either"
    door = DialInServer(str(reported.listen["certificate"]))
    place = m.listens_line("127.0.0.1", await door.open("127.0.0.1", 0), door.fingerprint)
    fleet.dashboard.log = place
    agent = ScriptedAgent(replace(reported, addresses=[("its control plane", 0)], opener=door.next))
    await agent.dial()
    fleet.dashboard.agents.append(agent)
    fleet.dashboard.joins = True
    link = await asyncio.wait_for(starting, 60)
    assert link.connected
    await fleet.pool._carriers["dial_in"].close()
    await fleet.die()
    after, _ = fleet_with_two_carriers(before=fleet, carrier="dial_in")
    await after.pool.restore_agents(fleet.agents.values(), None)
    assert after.pool._ports == {}
    await agent.dial()
    await after.received.until("link_up")
    door.close()
    await close_fleet(after)


async def test_other_failures_of_an_agent_are_raised_without_another_carrier() -> None:
    fleet, _ = fleet_with_two_carriers()
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
    await close_fleet(fleet)


async def test_a_launch_that_failed_leaves_nothing_here_and_is_forgotten() -> None:
    fleet, client = fleet_with_two_carriers(dashboard=None)
    client.problem = from_connector("a", "python", "RAY_MISMATCH", "the cluster runs Ray 9")
    with pytest.raises(LinkProblem, match="the cluster runs Ray 9"):
        await fleet.pool.link("a")
    assert fleet.agents == {}
    assert client.ended == client.released != []
    await close_fleet(fleet)


async def test_a_gateway_of_another_session_means_a_restart_and_is_released() -> None:
    fleet, client = fleet_with_two_carriers(dashboard=None)
    link = await fleet.pool.link("a")
    link.submit([call("t1")])
    client.over = CLUSTER_RESTARTED
    await fleet.dashboard.agents[0].cut()
    await fleet.received.until("link_closed")
    assert fleet.received.result("t1").code == "CLUSTER_RESTARTED"
    await eventually(lambda: client.released == [link.agent])
    assert fleet.agents == {}
    await close_fleet(fleet)


@pytest.mark.parametrize(("answer", "code"), [(None, "PROCESSES_DEAD"), (CLUSTER_RESTARTED, "CLUSTER_RESTARTED")])
async def test_a_free_lock_file_proves_the_death_unless_the_cluster_says_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str | None, code: str
) -> None:
    fleet, client = fleet_with_two_carriers(dashboard=None)
    lock_file = process_lock.create(str(tmp_path))
    monkeypatch.setitem(scripted_agent.WHO, "lock_file", lock_file)
    link = await fleet.pool.link("a")
    assert fleet.agents[link.agent].lock_file == lock_file, "the next process may need it"
    link.submit([call("t1")])
    await fleet.dashboard.agents[0].cut()
    await fleet.received.until("link_down")
    client.over = answer
    os.close(process_lock._held.pop(lock_file))  # as if this process, which holds it, had died
    await fleet.received.until("link_closed")
    assert fleet.received.result("t1").code == code
    await close_fleet(fleet)


async def test_a_cluster_that_does_not_answer_cannot_delay_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_client_pool, "_DEATH_REASON_TIMEOUT_S", 0.05)
    fleet, client = fleet_with_two_carriers(dashboard=None)
    lock_file = process_lock.create(str(tmp_path))
    monkeypatch.setitem(scripted_agent.WHO, "lock_file", lock_file)
    link = await fleet.pool.link("a")
    link.submit([call("t1")])
    os.close(process_lock._held.pop(lock_file))
    client.delay_s = 600
    await fleet.dashboard.agents[0].cut()
    await fleet.received.until("link_closed")
    assert fleet.received.result("t1").code == "PROCESSES_DEAD"
    await close_fleet(fleet)


@pytest.mark.parametrize(("moved", "code"), [(True, "CLUSTER_LOST"), (False, "CLUSTER_RESTARTED")])
async def test_unknown_agent_at_new_address_proves_no_death(moved: bool, code: str) -> None:
    quick = Settings(heartbeat_s=0.05, lease_s=0.2, lost_after_s=10.3)
    before = Fleet(settings=quick)
    await before.pool.link("a")
    (agent,) = before.dashboard.agents
    await before.die()
    await agent.cut()
    (known,) = before.agents.values()
    assert known.reached_at == "http://127.0.0.1:8265"
    before.dashboard.jobs.clear()
    there = "http://127.0.0.2:8265" if moved else "http://127.0.0.1:8265"
    after = Fleet(before, settings=quick, dashboard=there)
    after.pool._settings = quick.model_copy(update={"lost_after_s": 0.8})
    await after.pool.restore_agents(before.agents.values(), None)
    link = after.pool.existing_link("a")
    assert link is not None
    link.adopt("t1", 1)
    await after.received.until("finished")
    assert after.received.result("t1").code == code
    await after.pool.close()


async def test_next_process_adopts_agent_by_same_carrier() -> None:
    before, _ = fleet_with_two_carriers(dashboard=None)
    link = await before.pool.link("a")
    scripted = before.dashboard.agents[0]
    await before.die()
    after, client = fleet_with_two_carriers(before=before, dashboard=None)
    await after.pool.restore_agents(before.agents.values(), None)
    ((known, port),) = client.restored
    assert (known.agent, known.session) == (link.agent, "session_1")
    scripted.join.addresses[:] = [("127.0.0.1", port)]  # as its connector would
    await scripted.dial()
    await after.received.until("link_up")
    await close_fleet(after)


async def test_no_agent_is_dialled_after_an_absence_is_announced() -> None:
    fleet, client = fleet_with_two_carriers(dashboard=None)
    await fleet.pool.link("a")
    (agent,) = fleet.dashboard.agents
    parking = asyncio.create_task(fleet.pool.park(600.0))
    await agent.until(m.AWAY)
    assert client.messages_when_dialing_stopped is not None
    assert m.AWAY not in client.messages_when_dialing_stopped
    agent.say(m.AWAY, {})
    assert await parking == ["a"]
    await agent.close()


async def test_parked_links_leave_no_connector() -> None:
    fleet, client = fleet_with_two_carriers(dashboard=None)
    (await fleet.pool.link("a")).submit([call("t")])
    await fleet.pool.park()
    assert client.closed
    assert client.ended == []
    for agent in fleet.dashboard.agents:
        await agent.close()


async def test_a_dialled_agent_with_a_lost_key_is_stopped_and_its_link_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fleet = Fleet()
    agent = AgentRecord("a", "rmcs-agent-cp1-a-1-1", "s", "", 0, carrier="dial_in", listens=(("127.0.0.1", 9),))
    fleet.agents[agent.agent] = agent
    fleet.dashboard.jobs[agent.agent] = {"status": "RUNNING"}
    await fleet.pool.restore_agents([agent], None)
    assert fleet.pool.existing_link("a") is not None, "what it ran is waited for"
    assert "the key that the agent accepts is lost" in caplog.text
    await eventually(lambda: fleet.pool.existing_link("a") is None and not fleet.agents)
    assert set(fleet.dashboard.stopped) == {agent.agent}
    await fleet.pool.close()
