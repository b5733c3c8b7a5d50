"""AgentLink whose agent does not return, or that is closed: every call is reported, then nothing more."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.common.frames import CHUNK_BYTES
from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.link.connection import Rejected
from ray_multicluster_scheduler.scheduler.connection.links import agent_link
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import PROCESSES_DEAD
from tests.support.eventually import eventually
from tests.support.links import call
from tests.unit.connection.conftest import Plane

T1, T2, T3 = ("t1", 1), ("t2", 1), ("t3", 1)


async def test_when_the_agents_job_has_ended_all_calls_are_finished_and_the_link_ends(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1"), call("t2"), call("t3")])
    link.cancel("t3", 1, force=False)
    agent.accept(T1)
    await plane.received.until("accepted")
    plane.job_over = "exit code 137"
    await agent.cut()
    await plane.received.until("link_closed")
    for task_id in ("t1", "t2"):
        result = plane.received.result(task_id)
        assert (result.status, result.failure, result.error_type) == (
            "failed",
            FailureClass.CLUSTER,
            "ClusterLostError",
        )
        assert "exit code 137" in result.message
        assert result.code == "CLUSTER_LOST"
    assert plane.received.result("t3").status == "cancelled", "what was to be cancelled is over, as asked"
    assert plane.received.kinds()[-1] == "link_closed"
    assert link.ended.is_set()


async def test_a_silent_agent_is_dead_when_its_lease_has_expired(plane: Plane) -> None:
    began = time.monotonic()
    link, agent = await plane.pair(heartbeat_s=0.05, lease_s=0.2, lost_after_s=0.6)
    link.submit([call("t1")])
    await agent.cut()
    await plane.received.until("link_closed")
    assert time.monotonic() - began >= 0.6
    result = plane.received.result("t1")
    assert result.failure is FailureClass.CLUSTER
    assert "for 0.6 s" in result.message
    assert "after 0.2 s" in result.message


async def test_missed_heartbeats_break_the_connection(plane: Plane) -> None:
    link, agent = await plane.pair(heartbeat_s=0.1)
    agent.mute = True
    ((_, cluster, sentence),) = await plane.received.until("link_down")
    assert cluster == "a"
    assert "the agent sent nothing for" in sentence
    assert plane.received.silent_s > 3 * 0.1, "of the time after which it is lost, this has passed"
    assert not link.connected


async def test_an_agent_that_answers_is_not_given_up(plane: Plane) -> None:
    link, _ = await plane.pair(heartbeat_s=0.7)
    await asyncio.sleep(2.6)  # longer than the three heartbeats that may be missed
    assert plane.received.kinds() == ["link_up"]
    assert link.connected


async def test_the_lease_counts_from_the_last_message_that_the_agent_may_have_received(plane: Plane) -> None:
    """The agent asks late in the life of a connection; our answer renews its lease, and so our own count."""
    _, agent = await plane.pair(heartbeat_s=0.6, lease_s=1.0, lost_after_s=2.0)
    await asyncio.sleep(1.6)
    asked = time.monotonic()
    agent.say(m.PING, {"t": 1.0})
    await agent.until(m.PONG)
    await agent.cut()
    await plane.received.until("link_closed")
    assert 2.0 <= time.monotonic() - asked < 30


async def test_the_agents_job_is_ended_before_its_calls_are_declared_dead(plane: Plane) -> None:
    explanation: list[str] = []

    async def stop_agent() -> None:
        explanation.append(f"ending, {len(plane.received.results())} answered")
        await asyncio.sleep(0.1)
        explanation.append(f"ended, {len(plane.received.results())} answered")

    link, agent = await plane.pair(heartbeat_s=0.05, lease_s=0.1, lost_after_s=0.3, stop_agent=stop_agent)
    link.submit([call("t1")])
    await agent.cut()
    await plane.received.until("link_closed")
    assert explanation == ["ending, 0 answered", "ended, 0 answered"]
    assert plane.received.result("t1").failure is FailureClass.CLUSTER


async def test_an_agent_that_returns_while_its_job_is_being_ended_stays_outside(plane: Plane) -> None:
    ending, go_on = asyncio.Event(), asyncio.Event()

    async def stop_agent() -> None:
        ending.set()
        await go_on.wait()

    link, agent = await plane.pair(heartbeat_s=0.05, lease_s=0.1, lost_after_s=0.3, stop_agent=stop_agent)
    await agent.cut()
    await asyncio.wait_for(ending.wait(), 60)
    with pytest.raises(Rejected, match="has ended"):
        await agent.dial()
    assert not link.connected
    go_on.set()
    await plane.received.until("link_closed")


@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_a_job_that_cannot_be_ended_does_not_keep_its_calls_waiting(
    plane: Plane, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_link, "_STOP_TIMEOUT_S", 0.1)

    async def stop_agent() -> None:
        if how == "raises":
            raise ClusterConnectionError("the dashboard is gone", cluster="a")
        await asyncio.sleep(60)

    link, agent = await plane.pair(heartbeat_s=0.05, lease_s=0.1, lost_after_s=0.3, stop_agent=stop_agent)
    link.submit([call("t1")])
    await agent.cut()
    await plane.received.until("link_closed")
    assert plane.received.result("t1").failure is FailureClass.CLUSTER


async def test_one_poll_that_finds_no_job_is_not_enough(plane: Plane) -> None:
    """A head that is just coming up may know of no jobs for a moment."""
    answers = ["it knows nothing of it", None, "it knows nothing of it", None, None]

    async def death_reason() -> str | None:
        return answers.pop(0) if answers else None

    link, agent = await plane.pair(death_reason=death_reason, heartbeat_s=0.05)
    link.submit([call("t1")])
    await agent.cut()
    await eventually(lambda: not answers)
    await asyncio.sleep(0.1)
    assert not link.ended.is_set()
    assert plane.received.results() == []


async def test_processes_that_are_known_to_be_dead_are_reported_at_once(plane: Plane) -> None:
    """Before the ends of the calls, so that none is repeated there; the lease would end in a minute."""
    answers: list[str | None] = [PROCESSES_DEAD]

    async def death_reason() -> str | None:
        return answers.pop(0)

    link, agent = await plane.pair(death_reason=death_reason)
    link.submit([call("t1")])
    await agent.cut()
    await plane.received.until("link_closed")
    assert plane.received.kinds()[-4:] == ["link_down", "processes_dead", "finished", "link_closed"]
    result = plane.received.result("t1")
    assert (result.failure, result.code) == (FailureClass.CLUSTER, "PROCESSES_DEAD")
    assert result.message == f"the agent in cluster 'a' has ended: {PROCESSES_DEAD}"


async def test_a_connection_that_is_given_up_delivers_nothing_more(plane: Plane) -> None:
    """Calls that wait in a buffer of ours must not reach the agent after we stopped counting on it."""
    link, agent = await plane.pair(heartbeat_s=0.1)
    agent.mute = True
    assert agent._reading is not None
    agent._reading.cancel()  # it reads nothing, so that our buffers fill
    link.submit([call("t1", arguments=b"x" * (64 * CHUNK_BYTES))])
    await plane.received.until("link_down")
    assert agent._connection is not None
    received = 0
    with contextlib.suppress(ConnectionResetError):
        while data := await asyncio.wait_for(agent._connection.reader.read(1 << 20), 60):
            received += len(data)
    assert received < 32 * CHUNK_BYTES


async def test_a_short_return_renews_the_lease(plane: Plane) -> None:
    """Down, back for a moment, down again: the second silence counts from the second break."""
    _, agent = await plane.pair(heartbeat_s=0.5, lease_s=0.5, lost_after_s=4.0)
    await agent.cut()
    await plane.received.until("link_down")
    await asyncio.sleep(1.0)
    returning = time.monotonic()
    await agent.dial()
    await plane.received.until("link_up", 2)
    await agent.cut()
    await plane.received.until("link_down", 2)
    await plane.received.until("link_closed")
    assert time.monotonic() - returning >= 4.0


async def test_an_agent_that_returns_in_time_is_not_declared_dead(plane: Plane) -> None:
    link, agent = await plane.pair(heartbeat_s=1.0, lease_s=0.3, lost_after_s=2.0)
    link.submit([call("t1")])
    await agent.cut()
    await plane.received.until("link_down")
    await agent.dial()
    await plane.received.until("link_up", 2)
    await asyncio.sleep(2.2)
    assert not link.ended.is_set()
    agent.finish(T1)
    await plane.received.until("finished")
    assert plane.received.result("t1").status == "succeeded"


async def test_a_dashboard_that_fails_in_a_new_way_does_not_stop_the_watch(plane: Plane) -> None:
    asked = 0

    async def broken() -> str | None:
        nonlocal asked
        asked += 1
        raise RuntimeError("a defect in the look-up")

    link, agent = await plane.pair(death_reason=broken, heartbeat_s=0.05, lease_s=0.1, lost_after_s=0.3)
    link.submit([call("t1")])
    await agent.cut()
    await plane.received.until("link_closed")
    assert asked > 1
    assert plane.received.result("t1").failure is FailureClass.CLUSTER


async def test_close_sends_close_and_finishes_all_calls(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1"), call("t2")])
    link.cancel("t2", 1, force=False)
    closing = asyncio.create_task(link.close("the control plane ends"))
    assert (await agent.until(m.CLOSE)).head == {"sentence": "the control plane ends"}
    await agent.close()
    await closing
    assert plane.received.result("t1").failure is FailureClass.CLUSTER
    assert "the control plane ends" in plane.received.result("t1").message
    assert plane.received.result("t2").status == "cancelled"
    assert plane.received.kinds()[-1] == "link_closed"


async def test_an_answer_that_comes_while_closing_still_counts(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1")])
    closing = asyncio.create_task(link.close("bye"))
    await agent.until(m.CLOSE)
    agent.finish(T1)
    await plane.received.until("finished")
    await agent.close()
    await closing
    assert plane.received.result("t1").status == "succeeded"


async def test_close_is_idempotent_and_does_not_wait_for_ever(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_link, "_CLOSE_TIMEOUT_S", 0.1)
    link, _ = await plane.pair()
    link.submit([call("t1")])
    await asyncio.gather(link.close("one"), link.close("two"))
    await link.close("three")
    assert len(plane.received.of("link_closed")) == 1
    assert len(plane.received.results()) == 1


async def test_a_call_given_to_a_closed_link_is_answered_at_once(plane: Plane) -> None:
    link, agent = await plane.pair()
    await agent.cut()
    await plane.received.until("link_down")
    await link.close("bye")
    link.submit([call("t1")])
    link.cancel("t1", 1, force=False)
    assert plane.received.result("t1").failure is FailureClass.CLUSTER


async def test_no_event_is_reported_after_the_end(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_link, "_CLOSE_TIMEOUT_S", 0.05)
    link, agent = await plane.pair()
    link.submit([call("t1")])
    await link.close("bye")
    seen = list(plane.received.events)
    agent.accept(T1)
    agent.start(T1)
    agent.finish(T1)
    agent.snapshot()
    agent.say(m.OUTPUT, {"id": "t1", "attempt": 1, "parts": [["stdout", "late"]]})
    await asyncio.sleep(0.1)
    assert plane.received.events == seen


@pytest.mark.usefixtures("leak_check")
async def test_a_closed_link_leaves_nothing_behind(plane: Plane) -> None:
    link, agent = await plane.pair(heartbeat_s=0.05)
    link.submit([call("t1")])
    await agent.cut()
    await link.close("bye")
    await plane.port.close()
    mine = asyncio.current_task()
    assert [task for task in asyncio.all_tasks() if task is not mine] == []


async def test_an_absence_is_announced_and_confirmed_by_the_agent(plane: Plane) -> None:
    link, agent = await plane.pair()
    parking = asyncio.create_task(link.announce_absence(600.0))
    assert (await agent.until(m.AWAY)).head == {"seconds": 600.0}
    await asyncio.sleep(0.05)
    assert not parking.done()
    agent.say(m.AWAY, {})
    assert await asyncio.wait_for(parking, 60)
    assert plane.received.kinds() == ["link_up"], "nothing is reported"


async def test_an_unconfirmed_absence_times_out(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_link, "_CLOSE_TIMEOUT_S", 0.05)
    link, _ = await plane.pair()
    assert not await asyncio.wait_for(link.announce_absence(600.0), 60)


async def test_an_announced_absence_extends_the_lease(plane: Plane) -> None:
    began = time.monotonic()
    link = plane.link(heartbeat_s=0.05, lease_s=0.2, lost_after_s=0.3, inherited=True, away_s=0.6)
    link.adopt("t1", 1)
    await plane.received.until("link_closed")
    assert time.monotonic() - began >= 0.9
    assert "for 0.9 s" in plane.received.result("t1").message
    assert "after 0.8 s" in plane.received.result("t1").message


async def test_an_agent_has_returned_only_after_its_first_ping(plane: Plane) -> None:
    """The welcome was lost on its way: the agent goes on for as long as it was granted before."""
    began = time.monotonic()
    link, agent = await plane.pair(heartbeat_s=0.05, lease_s=0.2, lost_after_s=0.3, inherited=True, away_s=0.6)
    link.adopt("t1", 1)
    await agent.cut()
    await plane.received.until("link_closed")
    assert time.monotonic() - began >= 0.9
    assert not link.lease_renewed.is_set()


async def test_an_absence_is_announced_again_after_a_reconnect(plane: Plane) -> None:
    link, agent = await plane.pair()
    announcing = asyncio.create_task(link.announce_absence(600.0))
    await agent.until(m.AWAY)
    await agent.cut()
    agent.received.clear()
    await agent.dial()
    assert (await agent.until(m.AWAY)).head == {"seconds": 600.0}
    agent.say(m.AWAY, {})
    assert await asyncio.wait_for(announcing, 60)


async def test_once_it_is_back_its_lease_is_as_short_as_any(plane: Plane) -> None:
    link, agent = await plane.pair(heartbeat_s=0.05, lease_s=0.2, lost_after_s=0.3, inherited=True, away_s=600.0)
    link.adopt("t1", 1)
    agent.say(m.PING, {"t": 1.0})
    await link.lease_renewed.wait()
    await agent.cut()
    await asyncio.wait_for(plane.received.until("link_closed"), 60)
    assert "for 0.3 s" in plane.received.result("t1").message
