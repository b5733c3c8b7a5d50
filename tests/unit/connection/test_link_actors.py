"""Actors and their methods over a link: messages, events, and gapless numbers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ray_multicluster_scheduler.common import frames
from ray_multicluster_scheduler.common.frames import CHUNK_BYTES
from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import Call, MethodCall, NewActor
from tests.support.eventually import eventually
from tests.support.links import call
from tests.unit.connection.conftest import Plane

A1 = ("a1", 2)


def actor(**values: Any) -> Call:
    return call("a1", 2, actor=NewActor("rmcs-a1", {"CPU": 1.0}, **values), resources={})


def method(number: int, *, arguments: bytes = b"args", **values: Any) -> Call:
    return call(
        f"m{number}",
        function=b"",
        arguments=arguments,
        resources={},
        method=MethodCall("a1", 2, "f", number),
        **values,
    )


def key(number: int) -> tuple[str, int]:
    return (f"m{number}", 1)


async def test_everything_of_an_actor_arrives_over_there(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([actor(detached=True, max_restarts=3, max_concurrency=7, asynchronous=True)])
    await agent.until(m.CALLS)
    assert agent.entries()[0]["actor"] == {
        "ray_name": "rmcs-a1",
        "placement": {"CPU": 1.0},
        "detached": True,
        "adopt": False,
        "max_restarts": 3,
        "max_concurrency": 7,
        "asynchronous": True,
    }


async def test_methods_are_answered_but_neither_accepted_nor_started(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([actor()])
    agent.accept(A1)
    agent.start(A1)
    await plane.received.until("started")
    link.submit([method(0), method(1)])
    message = await agent.until(m.CALLS, 2)
    first = message.head["calls"][0]
    assert first["method"] == ["a1", 2, "f", 0]
    assert "fn" not in first, "its function is over there"
    agent.accept(key(0), key(1))
    agent.finish(key(0), payload=b"v", at=1.0, node="n1", took=0.5, parts=[["stdout", "hello"]])
    agent.finish(key(1), payload=b"", status="failed", failure="crash", code="ACTOR_DIED", error_type="ActorDiedError")
    await plane.received.until("finished", 2)
    assert plane.received.kinds_of("m0") == plane.received.kinds_of("m1") == ["finished"]
    result = plane.received.result("m0")
    assert (result.actor_id, result.payload, result.took) == ("a1", b"v", 0.5)
    assert plane.received.of("output") == [("output", "a1", 2, "stdout", "hello")]
    assert (plane.received.result("m1").actor_id, plane.received.result("m1").error_type) == ("a1", "ActorDiedError")


async def test_a_method_waits_for_the_making_of_its_actor_to_arrive(plane: Plane) -> None:
    """The making may be large and overtaken; over there, a method of an unknown actor means a dead one."""
    link, agent = await plane.pair()
    link.submit([call("a1", 2, arguments=b"x" * (40 * CHUNK_BYTES), actor=NewActor("n")), method(0)])
    link.submit([method(1)])
    await agent.until(m.CALLS)
    assert agent.calls() == [A1]
    agent.accept(A1)
    await eventually(lambda: agent.calls() == [A1, key(0), key(1)])


async def test_methods_of_an_actor_that_cannot_be_sent_are_answered_over_there(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("a1", 2, actor=NewActor("n"), runtime_env={"hook": print}), method(0)])
    await eventually(lambda: agent.calls() == [key(0)])
    assert plane.received.result("a1").code == "NOT_SENDABLE"


async def test_a_lost_link_reports_the_actor_of_each_method_call(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([actor(), method(0)])
    await asyncio.gather(link.close("over"), agent.close_when_asked())
    result = plane.received.result("m0")
    assert (result.actor_id, result.failure, result.code) == ("a1", FailureClass.CLUSTER, "CLUSTER_LOST")
    assert plane.received.result("a1").actor_id is None


async def test_a_method_that_cannot_be_sent_keeps_its_number_and_is_answered_over_there(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, agent = await plane.pair()
    monkeypatch.setattr(frames, "MAX_MESSAGE_BYTES", 1000)
    link.submit([method(0), method(1, arguments=b"x" * 2000), method(2)])
    await eventually(lambda: sorted(agent.calls()) == [key(0), key(1), key(2)])
    (refused,) = [entry for entry in agent.entries() if entry["id"] == "m1"]
    assert refused["method"] == ["a1", 2, "f", 1]
    assert "cannot be sent" in refused["refused"]
    assert plane.received.results() == [], "it is answered by the agent, as any other"


async def test_a_method_that_was_cancelled_before_it_arrived_keeps_its_number(plane: Plane) -> None:
    link, agent = await plane.pair()
    await agent.cut()
    await plane.received.until("link_down")
    link.submit([method(0), method(1)])
    link.cancel("m0", 1, force=False)
    agent.received.clear()
    await agent.dial()
    await agent.until(m.RESUME)
    agent.say(m.UNKNOWN, {"keys": [["m0", 1], ["m1", 1]]})
    await eventually(lambda: sorted(agent.calls()) == [key(0), key(1)])
    (skipped,) = [entry for entry in agent.entries() if entry["id"] == "m0"]
    assert (skipped["method"], skipped["cancelled"]) == (["a1", 2, "f", 0], True)
    assert "args_blob" not in skipped
    agent.finish(key(0), payload=b"", status="cancelled")
    await plane.received.until("finished")
    assert (plane.received.result("m0").status, plane.received.result("m0").actor_id) == ("cancelled", "a1")


async def test_output_after_the_end_of_an_actor_is_not_reported(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([actor()])
    agent.accept(A1)
    await plane.received.until("accepted")
    link.submit([method(0)])
    agent.finish(A1, payload=b"")
    agent.finish(key(0), parts=[["stdout", "late"]])
    await plane.received.until("finished", 2)
    assert plane.received.of("output") == []
