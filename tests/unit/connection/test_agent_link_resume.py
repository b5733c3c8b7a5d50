"""AgentLink whose connection breaks and whose agent returns: nothing is lost, run twice or reported twice."""

from __future__ import annotations

import asyncio

from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links.agent_link import AgentLink
from tests.support.eventually import eventually
from tests.support.links import call
from tests.support.scripted_agent import ScriptedAgent
from tests.unit.connection.conftest import Plane

T1, T2, T3 = ("t1", 1), ("t2", 1), ("t3", 1)


async def come_back(plane: Plane, link: AgentLink, agent: ScriptedAgent) -> list[list[object]]:
    """After a cut: dial again; returns the keys of RESUME."""
    agent.received.clear()
    ups = len(plane.received.of("link_up"))
    await agent.dial()
    await plane.received.until("link_up", ups + 1)
    keys: list[list[object]] = (await agent.until(m.RESUME)).head["keys"]
    return keys


async def cut(plane: Plane, link: AgentLink, agent: ScriptedAgent) -> None:
    downs = len(plane.received.of("link_down"))
    await agent.cut()
    await plane.received.until("link_down", downs + 1)
    assert not link.connected


async def test_a_first_join_resumes_nothing(plane: Plane) -> None:
    link, agent = await plane.pair()
    await link.health(5)
    assert agent.of(m.RESUME) == []


async def test_unanswered_calls_are_listed_and_nothing_is_answered_meanwhile(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1"), call("t2"), call("t3")])
    agent.accept(T1, T2, T3)
    agent.finish(T1)
    await plane.received.until("finished")
    await cut(plane, link, agent)
    assert [event[0] for event in plane.received.events][-1] == "link_down"
    assert "'a'" in plane.received.of("link_down")[0][2]
    assert await come_back(plane, link, agent) == [["t2", 1], ["t3", 1]]
    assert len(plane.received.results()) == 1


async def test_calls_that_never_arrived_are_sent_again_once(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1"), call("t2")])
    agent.accept(T1)
    await plane.received.until("accepted")
    await cut(plane, link, agent)
    link.submit([call("t3", function=b"other")])
    assert await come_back(plane, link, agent) == [["t1", 1], ["t2", 1], ["t3", 1]]
    agent.accept(T1)
    agent.say(m.UNKNOWN, {"keys": [["t2", 1], ["t3", 1]]})
    await eventually(lambda: len(agent.calls()) == 2)
    assert agent.calls() == [T2, T3]
    (message,) = agent.of(m.CALLS)
    bench = [message.blobs[head["fn_blob"]] for head in message.head["calls"]]
    assert bench == [b"fn", b"other"], "a new connection knows no function"
    agent.finish(T1, T2, T3)
    await plane.received.until("finished", 3)
    assert sorted(result.task_id for result in plane.received.results()) == ["t1", "t2", "t3"]


async def test_a_call_that_was_cancelled_before_it_arrived_is_answered_cancelled(plane: Plane) -> None:
    link, agent = await plane.pair()
    await cut(plane, link, agent)
    link.submit([call("t1")])
    link.cancel("t1", 1, force=False)
    assert plane.received.results() == [], "it may have arrived: only the agent knows"
    assert await come_back(plane, link, agent) == [["t1", 1]]
    assert (await agent.until(m.CANCEL)).head == {"id": "t1", "attempt": 1, "force": False}
    agent.say(m.UNKNOWN, {"keys": [["t1", 1]]})
    await plane.received.until("finished")
    assert plane.received.result("t1").status == "cancelled"
    await link.health(5)
    assert agent.calls() == []


async def test_a_cancel_during_the_cut_reaches_a_call_that_had_arrived(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1"), call("t2")])
    agent.accept(T1, T2)
    await plane.received.until("accepted", 2)
    await cut(plane, link, agent)
    link.cancel("t1", 1, force=True)
    await come_back(plane, link, agent)
    assert (await agent.until(m.CANCEL)).head == {"id": "t1", "attempt": 1, "force": True}
    agent.accept(T1, T2)
    agent.finish(T1, payload=b"", status="cancelled")
    agent.finish(T2)
    await plane.received.until("finished", 2)
    assert (plane.received.result("t1").status, plane.received.result("t2").status) == ("cancelled", "succeeded")


async def test_a_result_that_comes_again_after_the_reconnect_settles_once(plane: Plane) -> None:
    """The acknowledgement was lost in the cut, so the agent sends the result again."""
    link, agent = await plane.pair()
    link.submit([call("t1")])
    agent.finish(T1)
    await plane.received.until("finished")
    await cut(plane, link, agent)
    assert await come_back(plane, link, agent) == []
    agent.finish(T1)
    assert (await agent.until(m.ACK)).head["keys"] == [["t1", 1]]
    assert len(plane.received.results()) == 1


async def test_accepted_call_unknown_to_agent_is_lost_not_repeated(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1")])
    agent.accept(T1)
    await plane.received.until("accepted")
    await cut(plane, link, agent)
    await come_back(plane, link, agent)
    agent.say(m.UNKNOWN, {"keys": [["t1", 1]]})
    await plane.received.until("finished")
    assert plane.received.result("t1").failure is FailureClass.CLUSTER
    assert agent.calls() == []


async def test_an_agent_may_dial_again_before_we_noticed_the_break(plane: Plane) -> None:
    """A half-open connection: the agent gave it up, we did not hear of it yet."""
    link, agent = await plane.pair()
    link.submit([call("t1")])
    await agent.until(m.CALLS)
    old = agent._reading
    assert await come_back(plane, link, agent) == [["t1", 1]]  # nobody listens to the old connection any more
    agent.accept(T1)
    agent.finish(T1)
    await plane.received.until("finished")
    assert plane.received.kinds_of("t1") == ["accepted", "finished"]
    assert plane.received.of("link_down") == []
    assert link.connected
    assert old is not None
    await old  # the old connection was hung up by the link
    assert await link.health(5) < 5


async def test_a_link_survives_many_cuts(plane: Plane) -> None:
    link, agent = await plane.pair()
    for number in range(5):
        link.submit([call(f"t{number}")])
        await cut(plane, link, agent)
        keys = await come_back(plane, link, agent)
        assert [f"t{number}", 1] in keys
        unknown = [key for key in keys if tuple(key) not in agent.calls()]
        agent.say(m.UNKNOWN, {"keys": unknown})
        await eventually(lambda keys=keys: len(agent.calls()) == len(keys))
    agent.finish(*((f"t{number}", 1) for number in range(5)))
    await plane.received.until("finished", 5)
    assert all(plane.received.kinds_of(f"t{number}").count("finished") == 1 for number in range(5))


async def test_unencodable_call_is_refused_after_reconnect(
    plane: Plane,
) -> None:
    link, agent = await plane.pair()
    await cut(plane, link, agent)
    link.submit([call("wrong", runtime_env={"hook": print}), call("t1")])
    keys = await come_back(plane, link, agent)
    agent.say(m.UNKNOWN, {"keys": keys})
    await plane.received.until("finished")
    assert plane.received.result("wrong").code == "NOT_SENDABLE"
    await eventually(lambda: agent.calls() == [T1])
    assert await link.health(5) < 5
    assert len(plane.received.of("link_down")) == 1


async def test_a_start_that_is_repeated_after_a_reconnect_is_reported_once(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1"), call("t2")])
    agent.accept(T1, T2)
    agent.start(T1)
    await plane.received.until("started")
    await cut(plane, link, agent)
    await come_back(plane, link, agent)
    agent.accept(T1, T2)
    agent.start(T1, T2)
    await plane.received.until("started", 2)
    assert plane.received.kinds_of("t1") == ["accepted", "started"]
    assert plane.received.kinds_of("t2") == ["accepted", "started"]


# ---- calls that the process before ours has sent


async def test_a_call_of_the_previous_process_is_requested_and_its_result_reported(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.adopt(*T1)
    assert (await agent.until(m.RESUME)).head["keys"] == [["t1", 1]]
    agent.accept(T1)
    agent.start(T1)
    agent.finish(T1)
    await plane.received.until("finished")
    assert [result.task_id for result in plane.received.results()] == ["t1"]
    assert plane.received.of("accepted") == plane.received.of("started") == []  # that was known
    assert agent.calls() == []


async def test_a_call_of_the_process_before_that_the_agent_does_not_know_is_lost(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.adopt(*T1)
    await agent.until(m.RESUME)
    agent.say(m.UNKNOWN, {"keys": [["t1", 1]]})
    await plane.received.until("finished")
    (result,) = plane.received.results()
    assert (result.status, result.failure) == ("failed", FailureClass.CLUSTER)
    assert agent.calls() == []


async def test_a_call_of_the_previous_process_is_requested_after_the_reconnect(plane: Plane) -> None:
    link, agent = await plane.pair()
    await cut(plane, link, agent)
    link.adopt(*T1)
    link.cancel(*T1, force=False)
    assert await come_back(plane, link, agent) == [["t1", 1]]
    assert (await agent.until(m.CANCEL)).head == {"id": "t1", "attempt": 1, "force": False}


async def test_a_call_of_the_previous_process_is_lost_with_an_ended_link(plane: Plane) -> None:
    link, agent = await plane.pair()
    await asyncio.gather(link.close("enough"), agent.close_when_asked())
    link.adopt(*T1)
    (result,) = plane.received.results()
    assert (result.task_id, result.failure) == ("t1", FailureClass.CLUSTER)


# ---- what must be kept before the agent may forget it


async def test_an_answer_is_acknowledged_only_when_it_is_kept(plane: Plane) -> None:
    plane.received.slow = True
    link, agent = await plane.pair()
    link.submit([call("t1"), call("t2")])
    agent.accept(T1, T2)
    agent.finish(T1)
    await plane.received.until("finished")
    await link.health(5)
    assert agent.of(m.ACK) == []
    plane.received.keep()
    assert (await agent.until(m.ACK)).head["keys"] == [["t1", 1]]


async def test_a_result_that_is_repeated_before_it_is_durable_is_reported_once(plane: Plane) -> None:
    plane.received.slow = True
    link, agent = await plane.pair()
    link.submit([call("t1")])
    agent.accept(T1)
    agent.finish(T1)
    await plane.received.until("finished")
    await cut(plane, link, agent)
    assert await come_back(plane, link, agent) == []
    agent.finish(T1)
    await eventually(lambda: len(plane.received.kept_later) == 2)
    assert agent.of(m.ACK) == []
    plane.received.keep()
    await agent.until(m.ACK)
    assert len(plane.received.results()) == 1
