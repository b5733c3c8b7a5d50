"""Shared objects are sent once per connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ray_multicluster_scheduler.common.frames import CHUNK_BYTES
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links import call_sender
from ray_multicluster_scheduler.scheduler.connection.links.call_sender import CallSender
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import SharedObject
from tests.support.eventually import eventually
from tests.support.links import call
from tests.unit.connection.conftest import Plane

BIG = SharedObject("big", b"x" * (20 * CHUNK_BYTES))
SMALL = SharedObject("small", b"y" * 100)


async def test_a_large_object_of_a_hundred_calls_is_sent_once(plane: Plane) -> None:
    link, agent = await plane.pair()
    calls = [call(f"t{number}", objects=[BIG]) for number in range(100)]
    link.submit(calls[:50])
    for one in calls[50:]:
        link.submit([one])
    await agent.until(m.CALLS)
    await link.health(5)
    assert agent.calls() == [("t0", 1)], "the others wait until it arrived"
    agent.accept(("t0", 1))
    await eventually(lambda: len(agent.calls()) == 100)
    assert agent.calls() == [(f"t{number}", 1) for number in range(100)]
    assert [entry["objects"][0][1] is None for entry in agent.entries()] == [False, *[True] * 99]
    assert len(BIG.data) < agent.blob_bytes() < len(BIG.data) + 10_000


async def test_small_objects_travel_with_the_first_call_that_needs_them(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1", objects=[SMALL, SMALL]), call("t2", objects=[SMALL])])
    message = await agent.until(m.CALLS)
    first, second = message.head["calls"]
    (digest, position), again = first["objects"]
    assert (digest, bytes(message.blobs[position])) == ("small", SMALL.data)
    assert again == ["small", None]
    assert second["objects"] == [["small", None]]
    link.submit([call("t3", objects=[SMALL]), call("t4")])
    later = await agent.until(m.CALLS, 2)
    assert later.head["calls"][0]["objects"] == [["small", None]]
    assert "objects" not in later.head["calls"][1], "what is empty is left out"


async def test_an_object_that_the_agent_dropped_is_sent_again_once(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1", objects=[BIG])])
    await agent.until(m.CALLS)
    agent.accept(("t1", 1))
    await plane.received.until("accepted")
    link.submit([call("t2", objects=[BIG]), call("t3", objects=[BIG])])
    await eventually(lambda: len(agent.calls()) == 3)
    agent.say(m.UNKNOWN, {"keys": [["t2", 1], ["t3", 1]]})
    await eventually(lambda: len(agent.calls()) == 4)
    assert agent.entries()[-1]["objects"][0][1] is not None
    agent.accept(("t2", 1))
    await eventually(lambda: len(agent.calls()) == 5)
    assert agent.entries()[-1]["objects"] == [["big", None]]
    assert agent.blob_bytes() < 2 * len(BIG.data) + 10_000


async def test_a_call_that_waits_for_a_lost_object_carries_it(plane: Plane) -> None:
    """The call that bench it lacked something else and was cancelled meanwhile."""
    link, agent = await plane.pair()
    link.submit([call("t1", objects=[BIG]), call("t2", objects=[BIG])])
    await agent.until(m.CALLS)
    link.cancel("t1", 1, force=False)
    agent.say(m.UNKNOWN, {"keys": [["t1", 1]]})
    await eventually(lambda: len(agent.calls()) == 2)
    assert agent.calls()[-1] == ("t2", 1)
    assert agent.entries()[-1]["objects"][0][1] is not None
    assert plane.received.result("t1").status == "cancelled"


async def test_after_a_cut_the_object_is_sent_once_more(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1", objects=[BIG]), call("t2", objects=[BIG])])
    await agent.until(m.CALLS)
    await agent.cut()
    await plane.received.until("link_down")
    agent.received.clear()
    await agent.dial()
    await agent.until(m.RESUME)
    agent.say(m.UNKNOWN, {"keys": [["t1", 1], ["t2", 1]]})
    await agent.until(m.CALLS)
    agent.accept(("t1", 1))
    await eventually(lambda: agent.calls() == [("t1", 1), ("t2", 1)])
    assert agent.blob_bytes() < len(BIG.data) + 10_000


def test_the_record_of_sent_blobs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_sender, "_MAX_KNOWN", 3)
    sent: list[int] = []

    def put(kind: str, head: dict[str, Any], blobs: Sequence[bytes]) -> bool:
        sent.append(len(blobs))
        return True

    sender = CallSender(put, lambda key, error: None)
    for name in ("a", "b", "c", "d", "a", "d"):
        sender.send([call(name, function=name.encode())])
    assert sent == [2, 2, 2, 2, 2, 1], "function and arguments; a was forgotten, d was not"
    assert len(sender._known) == 3
