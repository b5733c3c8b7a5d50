"""Calls that are sent ahead: started, recalled, and moved to a slot."""

from __future__ import annotations

from ray_multicluster_scheduler.common.frames import CHUNK_BYTES
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from tests.support.eventually import eventually
from tests.support.links import call
from tests.support.scripted_agent import ScriptedAgent
from tests.unit.connection.conftest import Plane

T1, T2 = ("t1", 1), ("t2", 1)


async def resumed(plane: Plane, agent: ScriptedAgent) -> None:
    await agent.cut()
    await plane.received.until("link_down")
    agent.received.clear()
    await agent.dial()
    await agent.until(m.RESUME)


async def test_a_move_is_reported_before_the_results(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1"), call("t2", ahead="overlap"), call("t3", ahead="queue")])
    await agent.until(m.CALLS)
    assert [entry.get("ahead") for entry in agent.entries()] == [None, "overlap", "queue"]
    agent.move(T1, T2)
    agent.finish(T1, at=1.0, node="n1", took=0.25)
    agent.finish(T2)
    await plane.received.until("finished", 2)
    kinds = [event for event in plane.received.kinds() if event in ("moved", "finished")]
    assert kinds == ["moved", "finished", "finished"]
    assert plane.received.of("moved") == [("moved", T1, T2)]
    assert (plane.received.result("t1").took, plane.received.result("t2").took) == (0.25, None)


async def test_a_repeated_move_is_reported_once_and_none_after_the_result(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1"), call("t2", ahead="overlap")])
    agent.move(T1, T2)
    await plane.received.until("moved")
    await resumed(plane, agent)
    agent.move(T1, T2)
    agent.finish(T1)
    agent.move(T1, T2)
    await agent.until(m.ACK)
    await link.health(5)
    assert plane.received.of("moved") == [("moved", T1, T2)]


async def test_start_and_recall_are_sent_once_and_only_for_pending_calls(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1", ahead="queue"), call("t2", ahead="queue")])
    await agent.until(m.CALLS)
    agent.accept(T1, T2)
    await plane.received.until("accepted", 2)
    for _ in range(2):
        link.start("t1", 1)
        link.recall("t2", 1)
        link.start("never", 1)
        link.recall("never", 1)
    await link.health(5)
    assert [message.head["keys"] for message in agent.of(m.START)] == [[["t1", 1]]]
    assert [message.head["keys"] for message in agent.of(m.RECALL)] == [[["t2", 1]]]
    agent.finish(T2, payload=b"", status="cancelled", code="RECALLED")
    await plane.received.until("finished")
    result = plane.received.result("t2")
    assert (result.status, result.code, result.failure) == ("cancelled", "RECALLED", None)


async def test_a_request_that_overtakes_its_large_call_is_repeated(plane: Plane) -> None:
    link, agent = await plane.pair()
    large = b"x" * (40 * CHUNK_BYTES)
    link.submit([call("t1", arguments=large, ahead="queue"), call("t2", arguments=large, ahead="queue")])
    link.start("t1", 1)
    link.recall("t2", 1)
    await agent.until(m.CALLS, 2)
    position = len(agent.received)
    agent.accept(T1, T2)
    await plane.received.until("accepted", 2)
    await link.health(5)
    after = [(message.kind, message.head["keys"]) for message in agent.received[position:] if "keys" in message.head]
    assert after == [(m.START, [["t1", 1]]), (m.RECALL, [["t2", 1]])]


async def test_after_a_reconnect_both_requests_are_repeated(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1", ahead="queue"), call("t2", ahead="queue")])
    agent.accept(T1, T2)
    await plane.received.until("accepted", 2)
    await agent.cut()
    await plane.received.until("link_down")
    link.start("t1", 1)
    link.recall("t2", 1)
    agent.received.clear()
    await agent.dial()
    await agent.until(m.RECALL)
    assert agent.of(m.START)[0].head["keys"] == [["t1", 1]]
    assert agent.of(m.RECALL)[0].head["keys"] == [["t2", 1]]


async def test_a_recalled_call_that_never_arrived_is_answered_and_not_sent(plane: Plane) -> None:
    link, agent = await plane.pair()
    await agent.cut()
    await plane.received.until("link_down")
    link.submit([call("t1", ahead="queue"), call("t2", ahead="queue")])
    link.recall("t1", 1)
    assert plane.received.results() == [], "it may have arrived: only the agent knows"
    agent.received.clear()
    await agent.dial()
    await agent.until(m.RESUME)
    agent.say(m.UNKNOWN, {"keys": [["t1", 1], ["t2", 1]]})
    await eventually(lambda: agent.calls() == [T2])
    assert plane.received.result("t1").code == "RECALLED"
