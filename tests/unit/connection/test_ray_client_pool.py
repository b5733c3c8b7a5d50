"""RayClientPool with a dashboard whose jobs are scripted agents: started once, watched, and never left behind."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from ray_multicluster_scheduler.common.exception import ClusterConnectionError, TaskSubmissionError
from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, Settings
from ray_multicluster_scheduler.scheduler.connection import ray_client_pool
from ray_multicluster_scheduler.scheduler.connection.agents import agent_launcher
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecord
from ray_multicluster_scheduler.scheduler.connection.agents.tls_identity import identity_from, make_identity
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.link.connection import Join
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import LinkProblem
from ray_multicluster_scheduler.scheduler.connection.ray_client_pool import RayClientPool
from tests.support.eventually import eventually
from tests.support.links import FakeClock, RecordingListener, call
from tests.support.scripted_agent import ScriptedAgent


class Dashboard:
    """The Jobs API of one cluster; submitting an agent's job makes a scripted agent dial in."""

    name = "a"

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.submitted: list[dict[str, Any]] = []
        self.agents: list[ScriptedAgent] = []
        self.stopped: list[str] = []
        self.log = ""
        self.joins = True
        self.down = self.frozen = False
        self.refuses: Exception | None = None
        self.logs_read = 0

    async def submit_job(self, submission_id: str, entrypoint: str, **options: Any) -> None:
        self._check()
        if self.refuses is not None:
            raise self.refuses
        self.submitted.append({"id": submission_id, "entrypoint": entrypoint, **options})
        self.jobs[submission_id] = {"status": "RUNNING", "metadata": options["metadata"]}
        if self.joins:
            agent = self.agent_of(self.submitted[-1])
            await agent.dial()
            self.agents.append(agent)

    def agent_of(self, job: dict[str, Any]) -> ScriptedAgent:
        return ScriptedAgent(Join.from_dict(json.loads(job["runtime_env"]["env_vars"][m.JOIN_VARIABLE])))

    async def job_info(self, submission_id: str) -> dict[str, Any] | None:
        self._check()
        if self.frozen:
            await asyncio.sleep(1000)
        return self.jobs.get(submission_id)

    async def job_logs(self, submission_id: str) -> str:
        self.logs_read += 1
        return self.log

    async def stop_job(self, submission_id: str) -> None:
        self._check()
        self.stopped.append(submission_id)
        if submission_id in self.jobs:
            self.jobs[submission_id]["status"] = "STOPPED"

    async def list_jobs(self) -> list[dict[str, Any]]:
        return list(self.jobs.values())

    def _check(self) -> None:
        if self.down:
            raise ClusterConnectionError("the dashboard does not answer", cluster="a")


class Fleet:
    """The pool, and what it is made of."""

    def __init__(self, before: Fleet | None = None, settings: Settings | None = None, **cluster: Any) -> None:
        """``before``: the process whose clusters and agents it takes over."""
        self.dashboard, self.received = before.dashboard if before else Dashboard(), RecordingListener()
        self.agents: dict[str, AgentRecord] = dict(before.agents) if before else {}
        self.identity: bytes | None = before.identity if before else None
        config = ClusterConfig(
            **{"name": "a", "dashboard": "http://127.0.0.1:8265", "head_address": "127.0.0.1:10001", **cluster}
        )
        self.pool = RayClientPool(
            {"a": config},
            settings or Settings(heartbeat_s=0.5),  # three of these without a word end a connection
            cast("Any", self),
            self.received,
            FakeClock(),
            "cp1",
            cast("Any", self),
            self,
            2 if before else 1,
        )

    async def save(self, agent: AgentRecord) -> None:
        await asyncio.sleep(0.01)
        joined = self.dashboard.joins and any(one.join.agent == agent.agent for one in self.dashboard.agents)
        assert bool(agent.token) is not joined, "before it is started, with its token; without once that was used"
        self.agents[agent.agent] = agent

    def remove(self, agent: str) -> None:
        self.agents.pop(agent, None)

    async def save_identity(self, pem: bytes) -> None:
        self.identity = pem

    async def die(self) -> None:
        """As a process does that is killed: its ports and connections are gone, and nobody was notified."""
        for port in self.pool._ports.values():
            await port.close()
        for link in self.pool._links.values():
            for task in list(link._tasks):
                task.cancel()
            await asyncio.gather(*link._tasks, return_exceptions=True)
        for work in list(self.pool._background):
            work.cancel()

    def client(self, name: str) -> Dashboard:
        return self.dashboard

    async def ship(self, *given: object) -> str:
        return "gcs://own.zip"

    async def hang_up_when_asked(self) -> None:
        """An agent obeys CLOSE."""
        for agent in self.dashboard.agents:
            await agent.until(m.CLOSE)
            await agent.close()


@asynccontextmanager
async def running_fleet() -> AsyncIterator[Fleet]:
    made = Fleet()
    yield made
    for agent in made.dashboard.agents:
        await agent.close()
    await made.pool.close()


@pytest.fixture
async def fleet(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(agent_launcher, "_POLL_S", 0.02)
    async with running_fleet() as made:
        yield made


async def test_many_callers_share_one_agent(fleet: Fleet) -> None:
    first, *others = await asyncio.gather(*(fleet.pool.link("a") for _ in range(5)))
    assert all(link is first for link in others)
    assert await fleet.pool.link("a") is first
    assert fleet.pool.existing_link("a") is first
    assert fleet.pool.links() == [first]
    assert len(fleet.dashboard.submitted) == 1
    assert fleet.received.kinds() == ["link_up"]


async def test_that_an_agent_is_being_started_is_known_and_since_when(fleet: Fleet) -> None:
    fleet.dashboard.joins = False
    assert fleet.pool.starting_since("a") is None
    starting = asyncio.create_task(fleet.pool.link("a"))
    await eventually(lambda: fleet.dashboard.jobs)
    assert fleet.pool.starting_since("a") == 1000.0
    (job,) = fleet.dashboard.jobs.values()
    job["status"] = "FAILED"
    with pytest.raises(LinkProblem):
        await starting
    assert fleet.pool.starting_since("a") is None
    fleet.dashboard.joins = True
    await fleet.pool.link("a")
    assert fleet.pool.starting_since("a") is None


async def test_the_agents_job_takes_no_cpu_and_names_its_control_plane(fleet: Fleet) -> None:
    await fleet.pool.link("a")
    (job,) = fleet.dashboard.submitted
    assert job["entrypoint"].endswith("-m ray_multicluster_scheduler.scheduler.connection.gateway")
    assert (job["entrypoint_num_cpus"], job["runtime_env"]["py_modules"]) == (0, ["gcs://own.zip"])
    assert job["metadata"] == {"rmcs_control_plane": "cp1", "rmcs_agent": "a"}
    join = json.loads(job["runtime_env"]["env_vars"][m.JOIN_VARIABLE])
    assert (join["cluster"], join["agent"], join["addresses"][0][0]) == ("a", job["id"], "127.0.0.1")
    assert join["certificate"] is None, "on loopback"


async def test_an_agent_that_ends_before_it_joins_is_explained_and_the_next_try_is_fresh(fleet: Fleet) -> None:
    fleet.dashboard.joins = False
    fleet.dashboard.log = f"{m.NO_RAY} /usr/bin/python3 cannot import ray: No module named 'ray'"
    starting = asyncio.gather(*(fleet.pool.link("a") for _ in range(2)), return_exceptions=True)
    await eventually(lambda: fleet.dashboard.jobs)
    (job,) = fleet.dashboard.jobs.values()
    job["status"] = "FAILED"
    problems = await starting
    assert all(isinstance(problem, LinkProblem) and problem.code == "AGENT_NO_RAY" for problem in problems)
    assert fleet.pool.existing_link("a") is None
    fleet.dashboard.joins = True
    link = await fleet.pool.link("a")
    assert link.connected
    first, second = (job["id"] for job in fleet.dashboard.submitted)
    assert first != second


async def test_a_frozen_dashboard_does_not_delay_an_agent_that_has_joined(fleet: Fleet) -> None:
    fleet.dashboard.joins, fleet.dashboard.frozen = False, True
    starting = asyncio.create_task(fleet.pool.link("a"))
    await eventually(lambda: fleet.dashboard.submitted)
    await asyncio.sleep(0.1)  # a look is under way
    fleet.dashboard.joins = True
    agent = fleet.dashboard.agent_of(fleet.dashboard.submitted[0])
    fleet.dashboard.agents.append(agent)
    await agent.dial()
    assert (await asyncio.wait_for(starting, 60)).connected


async def test_a_late_agent_is_reported_despite_a_frozen_dashboard(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_launcher, "JOIN_TIMEOUT_S", 0.1)
    fleet.dashboard.joins, fleet.dashboard.frozen = False, True
    with pytest.raises(LinkProblem, match="did not join within .*its job is unknown"):
        await asyncio.wait_for(fleet.pool.link("a"), 60)


async def test_a_failed_and_frozen_dashboard_is_reported_instead_of_a_late_agent(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    async def job_info(_: str) -> None:
        nonlocal looks
        looks += 1
        if looks > 1:
            await asyncio.sleep(1000)
        raise DashboardProblem("the dashboard does not answer in time", code="DASHBOARD_TIMEOUT")

    monkeypatch.setattr(agent_launcher, "JOIN_TIMEOUT_S", 0.3)
    monkeypatch.setattr(fleet.dashboard, "job_info", job_info)
    fleet.dashboard.joins = False
    with pytest.raises(DashboardProblem, match="does not answer in time"):
        await asyncio.wait_for(fleet.pool.link("a"), 60)
    assert looks == 2


async def test_a_refused_job_is_reported_as_an_agent_that_cannot_be_started(fleet: Fleet) -> None:
    fleet.dashboard.refuses = TaskSubmissionError("Ray refuses the job.", next_step="ask Ray")
    with pytest.raises(
        LinkProblem, match="agent of cluster 'a' cannot be started there: Ray refuses the job"
    ) as reported:
        await fleet.pool.link("a")
    assert (reported.value.code, reported.value.permanent, reported.value.next_step) == (
        "AGENT_FAILED",
        False,
        "ask Ray",
    )


async def test_an_agent_that_does_not_come_is_stopped(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_launcher, "JOIN_TIMEOUT_S", 0.1)
    fleet.dashboard.joins = False
    with pytest.raises(LinkProblem, match="did not join within") as caught:
        await fleet.pool.link("a")
    assert (caught.value.code, caught.value.permanent) == ("AGENT_SLOW", False)
    assert fleet.dashboard.stopped
    assert all(job["status"] == "STOPPED" for job in fleet.dashboard.jobs.values())


async def test_a_dashboard_that_is_down_is_the_answer_and_not_for_ever(fleet: Fleet) -> None:
    fleet.dashboard.down = True
    with pytest.raises(ClusterConnectionError, match="does not answer"):
        await fleet.pool.link("a")
    fleet.dashboard.down = False
    assert (await fleet.pool.link("a")).connected


async def test_a_cluster_that_was_restarted_ends_the_link_and_gets_a_new_agent(fleet: Fleet) -> None:
    link = await fleet.pool.link("a")
    link.submit([call("t1")])
    fleet.dashboard.jobs.clear()
    await fleet.dashboard.agents[0].cut()
    await fleet.received.until("link_closed")
    assert "was restarted" in fleet.received.result("t1").message
    assert fleet.received.result("t1").code == "CLUSTER_RESTARTED"
    assert fleet.pool.existing_link("a") is None
    assert await fleet.pool.link("a") is not link


async def test_without_an_answer_only_the_lease_decides(fleet: Fleet) -> None:
    await fleet.pool.link("a")
    fleet.dashboard.down = True
    await fleet.dashboard.agents[0].cut()
    await fleet.received.until("link_down")
    await asyncio.sleep(0.2)
    assert fleet.received.of("link_closed") == []
    await fleet.dashboard.agents[0].dial()
    await fleet.received.until("link_up", 2)


async def test_a_new_link_starts_only_after_the_closed_one_has_ended(fleet: Fleet) -> None:
    link = await fleet.pool.link("a")
    closing = asyncio.create_task(fleet.pool.close_link("a", "idle"))
    await fleet.dashboard.agents[0].until(m.CLOSE)
    assert fleet.pool.existing_link("a") is None
    next_one = asyncio.create_task(fleet.pool.link("a"))
    await asyncio.sleep(0.05)
    assert len(fleet.dashboard.submitted) == 1
    await fleet.dashboard.agents[0].close()
    await closing
    assert await next_one is not link
    kinds = [kind for kind in fleet.received.kinds() if kind != "link_down"]
    assert kinds == ["link_up", "link_closed", "link_up"]


async def test_close_while_an_agent_starts_leaves_no_job(fleet: Fleet) -> None:
    fleet.dashboard.joins = False
    starting = asyncio.create_task(fleet.pool.link("a"))
    await eventually(lambda: fleet.dashboard.submitted)
    await fleet.pool.close()
    await asyncio.gather(starting, return_exceptions=True)
    assert [job["status"] for job in fleet.dashboard.jobs.values()] == ["STOPPED"]


async def test_close_stops_the_job_of_an_agent_that_is_not_connected(fleet: Fleet) -> None:
    link = await fleet.pool.link("a")
    await fleet.dashboard.agents[0].cut()
    await fleet.received.until("link_down")
    await fleet.pool.close()
    assert fleet.dashboard.stopped == [link.agent]


@pytest.mark.usefixtures("leak_check")
async def test_close_ends_agents_and_port(fleet: Fleet) -> None:
    link = await fleet.pool.link("a")
    link.submit([call("t1")])
    obeying = asyncio.create_task(fleet.hang_up_when_asked())
    await fleet.pool.close("the program ends")
    await obeying
    assert "the program ends" in fleet.received.result("t1").message
    assert fleet.received.kinds()[-1] == "link_closed"
    assert fleet.dashboard.stopped == [], "it hung up when asked, so it ends by itself"


async def test_another_control_planes_agent_is_noticed(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    foreign = {"rmcs_control_plane": "other", "rmcs_agent": "a"}
    fleet.dashboard.jobs["x"] = {"status": "RUNNING", "metadata": foreign}
    with caplog.at_level(logging.WARNING, "ray_multicluster_scheduler"):
        await fleet.pool.link("a")
    assert "another control plane (other)" in caplog.text
    assert fleet.pool.other_control_planes("a") == ("other",)
    assert fleet.pool.other_control_planes("b") == ()


async def test_names_of_other_control_planes_are_shortened_and_escaped(fleet: Fleet) -> None:
    names = [None, "a\nb", "n" * 1000, *(f"z{number:02}" for number in range(20))]
    for at, name in enumerate(names):
        metadata = {"rmcs_agent": "a"} if name is None else {"rmcs_agent": "a", "rmcs_control_plane": name}
        fleet.dashboard.jobs[f"x{at}"] = {"status": "RUNNING", "metadata": metadata}
    await fleet.pool.link("a")
    reported = fleet.pool.other_control_planes("a")
    assert reported[:3] == ("a\\nb", "n" * 64, "z00")
    assert len(reported) == 10


# ---- agents of the process before


async def fleet_killed_with_work(settings: Settings | None = None) -> Fleet:
    """A process that was killed while its agent ran t1 and had been sent t2."""
    before = Fleet(settings=settings)
    link = await before.pool.link("a")
    link.submit([call("t1"), call("t2")])
    (agent,) = before.dashboard.agents
    agent.accept(("t1", 1))
    agent.start(("t1", 1))
    await before.received.until("started")
    await before.die()
    await agent.cut()
    return before


async def test_an_agent_is_recorded_from_before_its_first_call_until_its_end(fleet: Fleet) -> None:
    link = await fleet.pool.link("a")
    (remembered,) = fleet.agents.values()
    (agent,) = fleet.dashboard.agents
    assert remembered == AgentRecord.from_dict(remembered.to_dict())
    assert (remembered.agent, remembered.cluster) == (agent.join.agent, "a")
    assert [remembered.host, remembered.port] == list(agent.join.addresses[0])
    await asyncio.gather(fleet.pool.close_link("a", "enough"), fleet.hang_up_when_asked())
    await eventually(lambda: not fleet.agents)
    assert not link.connected


async def test_the_next_process_takes_the_agent_back_with_all_it_has() -> None:
    before = await fleet_killed_with_work()
    fleet = Fleet(before)
    await fleet.pool.restore_agents(before.agents.values(), None)
    link = await fleet.pool.link("a")  # it is there, and no other agent is started
    link.adopt("t1", 1)
    link.submit([call("t2")])
    (agent,) = fleet.dashboard.agents
    agent.received.clear()
    await agent.dial()
    await fleet.received.until("link_up")
    assert (await agent.until(m.RESUME)).head["keys"] == [["t1", 1], ["t2", 1]]
    agent.say(m.UNKNOWN, {"keys": [["t2", 1]]})
    await eventually(agent.calls)
    assert agent.calls() == [("t2", 1)]
    agent.finish(("t1", 1), ("t2", 1))
    await fleet.received.until("finished", 2)
    assert sorted(result.task_id for result in fleet.received.results()) == ["t1", "t2"]
    assert len(fleet.dashboard.submitted) == 1
    await asyncio.gather(fleet.pool.close(), fleet.hang_up_when_asked())
    assert fleet.agents == {}


async def test_starting_agent_is_abandoned_and_calls_go_to_another() -> None:
    before = Fleet()
    before.dashboard.joins = False
    starting = asyncio.create_task(before.pool.link("a"))
    await eventually(lambda: before.dashboard.submitted)
    (remembered,) = before.agents.values()
    left = dict(before.agents)
    await before.die()  # it is killed now; what follows here it would not have done
    for task in (starting, *before.pool._starting.values()):
        task.cancel()
    await asyncio.gather(starting, *before.pool._starting.values(), return_exceptions=True)
    before.agents, before.dashboard.joins = left, True
    before.dashboard.stopped.clear()

    fleet = Fleet(before)
    await fleet.pool.restore_agents(left.values(), None)
    assert fleet.pool.existing_link("a") is None, "nobody could be asked, and nothing was given to it"
    assert fleet.agents == {}
    link = await fleet.pool.link("a")
    link.submit([call("t2")])
    (agent,) = fleet.dashboard.agents
    await eventually(agent.calls)
    assert remembered.agent in fleet.dashboard.stopped
    assert agent.join.agent != remembered.agent
    await asyncio.gather(fleet.pool.close(), fleet.hang_up_when_asked())


async def test_ended_agent_is_dead_and_successor_is_renamed() -> None:
    before = await fleet_killed_with_work()
    fleet = Fleet(before)
    fleet.dashboard.jobs[next(iter(before.agents))]["status"] = "FAILED"
    await fleet.pool.restore_agents(before.agents.values(), None)
    link = fleet.pool.existing_link("a")
    assert link is not None
    link.adopt("t1", 1)
    await fleet.received.until("finished")
    (result,) = fleet.received.results()
    assert (result.task_id, result.failure) == ("t1", FailureClass.CLUSTER)
    await eventually(lambda: not fleet.agents)
    assert (await fleet.pool.link("a")).connected
    first, second = (job["id"] for job in fleet.dashboard.submitted)
    assert first != second
    for agent in fleet.dashboard.agents:
        await agent.close()
    await fleet.pool.close()


async def test_an_agent_with_a_taken_port_is_given_up_when_its_lease_expires(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = await fleet_killed_with_work(Settings(heartbeat_s=0.05, lease_s=0.2, lost_after_s=10.3))
    port = next(iter(before.agents.values())).port
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
    fleet = Fleet(before, Settings(heartbeat_s=0.05, lease_s=0.2, lost_after_s=10.3))
    fleet.pool._settings = fleet.pool._settings.model_copy(update={"lost_after_s": 0.5})
    fleet.dashboard.down = True
    with caplog.at_level(logging.WARNING):
        await fleet.pool.restore_agents(before.agents.values(), None)
    assert "cannot return" in caplog.text
    link = fleet.pool.existing_link("a")
    assert link is not None
    link.adopt("t1", 1)
    await fleet.received.until("finished")
    assert fleet.received.results()[0].code == "CLUSTER_LOST"
    server.close()
    await server.wait_closed()
    await fleet.pool.close()


async def test_an_agent_that_was_given_a_longer_lease_is_waited_for_that_much_longer() -> None:
    before = await fleet_killed_with_work(Settings(heartbeat_s=0.05, lease_s=1.2, lost_after_s=11.3))
    assert [one.lease_s for one in before.agents.values()] == [1.2]
    fleet = Fleet(before, Settings(heartbeat_s=0.05, lease_s=0.2, lost_after_s=10.3))
    fleet.pool._settings = fleet.pool._settings.model_copy(update={"lost_after_s": 0.4})
    fleet.dashboard.down = True
    began = asyncio.get_running_loop().time()
    await fleet.pool.restore_agents(before.agents.values(), None)
    link = fleet.pool.existing_link("a")
    assert link is not None
    link.adopt("t1", 1)
    await fleet.received.until("finished")
    assert asyncio.get_running_loop().time() - began > 1.2, "what it runs may have been alive"
    assert "after 1.2 s" in fleet.received.results()[0].message
    await fleet.pool.close()


@pytest.mark.parametrize("given", [0.1, 0.0])
async def test_a_shorter_or_unrecorded_lease_changes_nothing(given: float) -> None:
    before = await fleet_killed_with_work(Settings(heartbeat_s=0.03, lease_s=0.1, lost_after_s=10.3))
    agents = [replace(one, lease_s=given) for one in before.agents.values()]
    fleet = Fleet(before, Settings(heartbeat_s=0.05, lease_s=0.2, lost_after_s=10.3))
    fleet.pool._settings = fleet.pool._settings.model_copy(update={"lost_after_s": 0.4})
    fleet.dashboard.down = True
    await fleet.pool.restore_agents(agents, None)
    link = fleet.pool.existing_link("a")
    assert link is not None
    link.adopt("t1", 1)
    await fleet.received.until("finished")
    assert "after 0.2 s" in fleet.received.results()[0].message
    await fleet.pool.close()


def test_a_key_that_was_kept_is_the_same_again() -> None:
    made = make_identity()
    again = identity_from(made.pem)
    assert (again.certificate, again.pem) == (made.certificate, made.pem)
    assert again.certificate.startswith("-----BEGIN CERTIFICATE-----")
    with pytest.raises(ValueError, match="no certificate"):
        identity_from(b"something else")


def test_of_two_agents_of_one_cluster_the_newer_one_is_taken_for_it() -> None:
    names = ["rmcs-agent-cp-my-mac-2-9", "rmcs-agent-cp-my-mac-10-1", "rmcs-agent-cp-my-mac-2-10"]
    agents = [AgentRecord("my-mac", name, "s", "127.0.0.1", 1) for name in names]
    assert [one.agent for one in sorted(agents, key=AgentRecord.sequence)] == [names[0], names[2], names[1]]


async def left_for_ten_minutes() -> tuple[Fleet, ScriptedAgent]:
    """A process that stopped after it announced that to its agent, which it wrote down first."""
    before = Fleet()
    await before.pool.link("a")
    (agent,) = before.dashboard.agents
    parking = asyncio.create_task(before.pool.park(600.0))
    await agent.until(m.AWAY)
    assert [one.away_s for one in before.agents.values()] == [600.0]
    agent.say(m.AWAY, {})
    assert await parking == ["a"]
    with pytest.raises(OSError):  # an agent that were let in now would take us for back
        await asyncio.open_connection(*agent.join.addresses[0])
    await agent.cut()
    return before, agent


async def test_an_absence_is_recorded_before_it_is_announced_until_agents_return() -> None:
    before, agent = await left_for_ten_minutes()
    second = Fleet(before)  # it stops before the agent is back, which so knows only what the first one said
    await second.pool.restore_agents(before.agents.values(), None)
    assert await second.pool.park(5.0) == []
    assert [one.away_s for one in second.agents.values()] == [600.0]

    third = Fleet(second)
    await third.pool.restore_agents(second.agents.values(), None)
    await agent.dial()
    await third.received.until("link_up")
    assert [one.away_s for one in third.agents.values()] == [600.0], "it may not know yet that it was let in"
    agent.say(m.PING, {"t": 1.0})
    await eventually(lambda: [one.away_s for one in third.agents.values()] == [0.0])
    await asyncio.gather(third.pool.close(), third.hang_up_when_asked())
    assert third.agents == {}


async def test_an_agent_that_reconnects_during_the_stop_does_not_undo_the_record() -> None:
    before, agent = await left_for_ten_minutes()
    fleet = Fleet(before)
    await fleet.pool.restore_agents(before.agents.values(), None)
    await agent.dial()
    await fleet.received.until("link_up")
    agent.received.clear()
    parking = asyncio.create_task(fleet.pool.park(300.0))
    agent.say(m.PING, {"t": 1.0})
    await agent.until(m.AWAY)
    agent.say(m.AWAY, {})
    await parking
    assert [one.away_s for one in fleet.agents.values()] == [600.0], "never less than what the agent may count on"


async def test_an_absence_that_cannot_be_recorded_is_not_announced(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await fleet.pool.link("a")
    monkeypatch.setattr(ray_client_pool, "_WRITE_TIMEOUT_S", 0.05)

    async def never(_: AgentRecord) -> None:
        await asyncio.sleep(1000)

    monkeypatch.setattr(fleet.pool._record_store, "save", never)
    with caplog.at_level(logging.WARNING):
        assert await asyncio.wait_for(fleet.pool.park(600.0), 60) == []
    assert "not announced" in caplog.text
    (agent,) = fleet.dashboard.agents
    assert not [one for one in agent.received if one.kind == m.AWAY]
