"""Method calls sent by the previous process: resumed when adopted, and reported once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links import pending_calls
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import MethodCall
from tests.support.eventually import eventually
from tests.support.links import call
from tests.support.scripted_agent import ScriptedAgent
from tests.unit.connection.conftest import Plane

ACTOR, GANG = ("a1", 2), ("g1", 2)
C1, C2, C3 = ("call-1", 1), ("call-2", 1), ("call-3", 1)


def acknowledged(agent: ScriptedAgent) -> list[str]:
    return [key[0] for message in agent.of(m.ACK) for key in message.head["keys"]]


def asked_for(agent: ScriptedAgent) -> list[dict[str, Any]]:
    """What RESUME asked for, but for the empty one of each connection."""
    heads = [message.head for message in agent.of(m.RESUME)]
    return [
        {name: head[name] for name in ("keys", "before", "again") if name in head} for head in heads if head["keys"]
    ]


# ---- what travels


async def test_the_life_travels_with_the_call_unless_it_is_0(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("call-1", method=MethodCall("a1", 2, "f", 0))])
    link.submit([call("call-2", method=MethodCall("a1", 2, "f", 0, life=3))])
    await eventually(lambda: len(agent.entries()) == 2)
    first, second = agent.entries()
    assert "life" not in first
    assert (second["method"], second["life"]) == (["a1", 2, "f", 0], 3)


async def test_the_life_travels_with_a_number_that_is_not_called(plane: Plane) -> None:
    link, agent = await plane.pair()
    await agent.cut()
    await plane.received.until("link_down")
    link.submit([call("call-1", method=MethodCall("a1", 2, "f", 0, life=3))])
    link.cancel(*C1, force=False)
    await agent.dial()
    await agent.until(m.RESUME)
    agent.say(m.UNKNOWN, {"keys": [list(C1)]})
    await eventually(lambda: agent.calls() == [C1])
    assert (agent.entries()[0]["cancelled"], agent.entries()[0]["life"]) == (True, 3)


# ---- naming a call


async def test_an_adopted_method_call_is_requested_and_finished_for_its_actor(plane: Plane) -> None:
    link, agent = await plane.pair(inherited=True)
    link.adopt(*GANG)
    link.adopt_method("call-1", ACTOR, GANG)
    await eventually(lambda: {"keys": [list(C1)], "before": True} in asked_for(agent))
    agent.accept(C1)
    agent.start(C1)
    agent.finish(C1, payload=b"v", method=True, at=1.0, node="n1", parts=[["stdout", "hello"]])
    await plane.received.until("finished")
    result = plane.received.result("call-1")
    assert (result.actor_id, result.payload, result.started_at) == ("a1", b"v", None)
    assert plane.received.kinds_of("call-1") == ["finished"]
    assert plane.received.of("output") == [("output", "g1", 2, "stdout", "hello")]
    await eventually(lambda: acknowledged(agent) == ["call-1"])


async def test_named_call_unknown_to_agent_is_lost_with_own_message(plane: Plane) -> None:
    link, agent = await plane.pair(inherited=True)
    link.adopt_method("call-1", ACTOR, ACTOR)
    await agent.until(m.RESUME)
    agent.say(m.UNKNOWN, {"keys": [list(C1)]})
    await plane.received.until("finished")
    result = plane.received.result("call-1")
    assert (result.status, result.failure, result.actor_id) == ("failed", FailureClass.CLUSTER, "a1")
    assert "on its way when the service was restarted" in result.message
    assert agent.calls() == []


async def test_calls_adopted_before_the_reconnect_are_requested_after_it(plane: Plane) -> None:
    link = plane.link(inherited=True)
    link.adopt(*ACTOR)
    link.adopt_method("call-1", ACTOR, ACTOR)
    link.adopt_method("call-2", ACTOR, ACTOR)
    link.cancel(*C2, force=False)
    agent = await ScriptedAgent.joined(plane.number, plane.port.expect("a", "agent-1", link)[0])
    plane.agents.append(agent)
    await agent.until(m.RESUME, 2)
    assert asked_for(agent) == [{"keys": [list(ACTOR)]}, {"keys": [list(C1), list(C2)], "before": True}]
    assert (await agent.until(m.CANCEL)).head == {"id": "call-2", "attempt": 1, "force": False}
    agent.finish(C1, method=True)
    await plane.received.until("finished")
    await agent.cut()
    await plane.received.until("link_down")
    agent.received.clear()
    await agent.dial()
    await agent.until(m.RESUME, 2)
    assert asked_for(agent)[1] == {"keys": [list(C2)], "before": True}


async def test_a_call_adopted_by_an_ended_link_is_lost(plane: Plane) -> None:
    link, agent = await plane.pair(inherited=True)
    await asyncio.gather(link.close("enough"), agent.close_when_asked())
    link.adopt_method("call-1", ACTOR, ACTOR)
    assert plane.received.result("call-1").actor_id == "a1"
    assert plane.received.result("call-1").failure is FailureClass.CLUSTER


# ---- answers that come first


async def test_an_answer_waits_unacknowledged_until_its_call_is_named(plane: Plane) -> None:
    link, agent = await plane.pair(inherited=True)
    link.adopt(*ACTOR)
    agent.finish(C1, C2, payload=b"v", method=True, parts=[["stdout", "hello"]])
    agent.finish(("t1", 1))
    await eventually(lambda: acknowledged(agent) == ["t1"])  # what is no method's is not kept
    assert plane.received.results() == []
    assert link.idle_s == 0.0
    link.adopt_method("call-1", ACTOR, ACTOR)
    (result,) = plane.received.results()
    assert (result.task_id, result.actor_id, result.payload) == ("call-1", "a1", b"v")
    assert plane.received.of("output") == [("output", "a1", 2, "stdout", "hello")]
    await eventually(lambda: acknowledged(agent) == ["t1", "call-1"])
    assert [one for one in asked_for(agent) if list(C1) in one["keys"]] == []


async def test_a_claimed_answer_is_acknowledged_only_when_it_is_kept(plane: Plane) -> None:
    plane.received.slow = True
    link, agent = await plane.pair(inherited=True)
    agent.finish(C1, method=True)
    await eventually(lambda: link.idle_s == 0.0)
    link.adopt_method("call-1", ACTOR, ACTOR)
    assert len(plane.received.results()) == 1
    await asyncio.sleep(2 * m.LAZY_S)
    await link.health(60)
    assert acknowledged(agent) == []
    plane.received.keep()
    await eventually(lambda: acknowledged(agent) == ["call-1"])


async def test_a_link_of_our_own_keeps_no_answers(plane: Plane) -> None:
    _, agent = await plane.pair()
    agent.finish(C1, method=True)
    await eventually(lambda: acknowledged(agent) == ["call-1"])


async def test_the_oldest_answer_is_acknowledged_when_there_are_too_many(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_calls.OrphanedResults.__init__, "__defaults__", (2, 100))
    link, agent = await plane.pair(inherited=True)
    agent.finish(C1, C2, C3, method=True)
    await eventually(lambda: acknowledged(agent) == ["call-1"])
    link.adopt_method("call-3", ACTOR, ACTOR)
    assert [result.task_id for result in plane.received.results()] == ["call-3"]
    link.adopt_method("call-1", ACTOR, ACTOR)
    await eventually(lambda: {"keys": [list(C1)], "before": True} in asked_for(agent))


async def test_an_orphan_that_was_too_large_to_keep_is_requested_again(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_calls.OrphanedResults.__init__, "__defaults__", (10, 100))
    link, agent = await plane.pair(inherited=True)
    agent.finish(C1, payload=b"x" * 101, method=True)
    await eventually(lambda: link.idle_s == 0.0)
    link.adopt_method("call-1", ACTOR, ACTOR)
    await eventually(lambda: {"keys": [list(C1)], "again": True} in asked_for(agent))
    assert (plane.received.results(), acknowledged(agent)) == ([], [])
    agent.accept(C1)
    agent.finish(C1, payload=b"x" * 101, method=True)
    await eventually(lambda: acknowledged(agent) == ["call-1"])
    assert plane.received.result("call-1").payload == b"x" * 101


async def test_orphans_that_are_not_adopted_are_acknowledged_after_a_timeout(plane: Plane) -> None:
    link, agent = await plane.pair(inherited=True, orphan_ttl_s=1.0)
    agent.finish(C1, C2, method=True)
    await eventually(lambda: link.idle_s == 0.0)
    assert acknowledged(agent) == []
    await eventually(lambda: acknowledged(agent) == ["call-1", "call-2"])
    agent.finish(C3, method=True)
    await eventually(lambda: acknowledged(agent)[2:] == ["call-3"])  # from then on none is kept
    assert plane.received.results() == []


async def test_a_parked_link_acknowledges_nothing(plane: Plane) -> None:
    link, agent = await plane.pair(inherited=True, orphan_ttl_s=60.0)
    agent.finish(C1, method=True)
    await eventually(lambda: link.idle_s == 0.0)
    await link.park()
    assert acknowledged(agent) == []
    assert not link._tasks


# ---- when an answer was heard


async def test_a_result_is_acknowledged_when_its_caller_has_it(plane: Plane) -> None:
    link, agent = await plane.pair()
    plane.received.acknowledges_later = True
    link.submit([call("call-1", method=MethodCall("a1", 2, "f", 0)), call("t1")])
    await eventually(lambda: len(agent.calls()) == 2)
    agent.accept(C1, ("t1", 1))
    agent.finish(C1, payload=b"v", method=True)
    agent.finish(("t1", 1), payload=b"w")
    await eventually(lambda: acknowledged(agent) == ["t1"])
    await agent.cut()
    await agent.dial()
    await agent.until(m.RESUME)
    agent.finish(C1, payload=b"v", method=True)
    agent.finish(("t1", 1), payload=b"w")
    await eventually(lambda: acknowledged(agent).count("t1") == 2)
    assert "call-1" not in acknowledged(agent), "it comes again, and is still not heard"
    assert plane.received.kinds_of("call-1") == ["finished"], "it is reported once"
    plane.received.unacknowledged.pop("call-1")()
    await eventually(lambda: "call-1" in acknowledged(agent))


# ---- an agent that an older version of us has started


async def test_readmitted_older_agent_gets_no_calls_of_this_process(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, agent = await plane.pair(inherited=True)
    await agent.cut()
    await plane.received.until("link_down")
    monkeypatch.setattr("ray_multicluster_scheduler.scheduler.connection.gateway.link.connection.PROTOCOL_VERSION", 2)
    link.submit([call("t1"), call("call-2", method=MethodCall("a1", 2, "f", 0, life=2))])
    await agent.dial()
    await agent.until(m.RESUME)
    agent.say(m.UNKNOWN, {"keys": [["t1", 1], list(C2)]})
    await eventually(lambda: ("t1", 1) in agent.calls())
    await plane.received.until("finished")
    result = plane.received.result("call-2")
    assert (result.code, result.actor_id, result.failure) == ("OLDER_AGENT", "a1", FailureClass.PERMANENT)
    assert "protocol 2" in result.message
    assert link.info.protocol == 2
    assert C2 not in agent.calls()


async def test_readmitted_older_agent_gets_no_generators(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    link, agent = await plane.pair(inherited=True)
    await agent.cut()
    await plane.received.until("link_down")
    monkeypatch.setattr("ray_multicluster_scheduler.scheduler.connection.gateway.link.connection.PROTOCOL_VERSION", 3)
    link.submit([call("t1", streams=True), call("t2")])
    await agent.dial()
    await agent.until(m.RESUME)
    agent.say(m.UNKNOWN, {"keys": [["t1", 1], ["t2", 1]]})
    await eventually(lambda: ("t2", 1) in agent.calls())
    await plane.received.until("finished")
    assert plane.received.result("t1").code == "OLDER_AGENT"
    assert ("t1", 1) not in agent.calls()
