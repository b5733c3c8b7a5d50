"""FaultyLink injects the planned faults into messages, and the same ones for the same seed."""

from __future__ import annotations

import asyncio

import pytest

from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.common.model import FailureClass
from tests.support.fake_link import FakeLink, success
from tests.support.faulty_link import Fault, Faults, FaultyLink
from tests.support.links import RecordingListener, call


def wrapped(*planned: Fault, **values: object) -> tuple[FaultyLink, FakeLink, Faults, RecordingListener]:
    received, faults = RecordingListener(), Faults(planned, **values)
    inner = FakeLink("a", faults.between(received))
    return FaultyLink(inner, faults), inner, faults, received


def run_through(inner: FakeLink, *task_ids: str) -> None:
    for task_id in task_ids:
        inner.accept(task_id)
        inner.begin(task_id)
        inner.finish(task_id)


async def test_without_faults_nothing_changes() -> None:
    link, inner, _, received = wrapped()
    inner.up()
    link.submit([call("t1")])
    run_through(inner, "t1")
    link.cancel("t1", 1, force=False)
    assert received.kinds() == ["link_up", "accepted", "started", "finished"]
    assert (link.cluster, link.info.cluster) == ("a", "a")
    assert await link.health(1) < 1
    assert (await link.snapshot(1)).cluster == "a"
    await link.close("over")
    assert received.kinds()[-1] == "link_closed"


async def test_a_dropped_message_never_comes() -> None:
    link, inner, _, received = wrapped(Fault("drop", "started", task_id="t2"), Fault("drop", "submit", task_id="t3"))
    link.submit([call("t1"), call("t2"), call("t3")])
    run_through(inner, "t1", "t2")
    assert (received.kinds_of("t1"), received.kinds_of("t2")) == (
        ["accepted", "started", "finished"],
        ["accepted", "finished"],
    )
    assert [one.task_id for one in inner.calls] == ["t1", "t2"]


async def test_a_duplicate_comes_twice_and_a_plan_is_used_up() -> None:
    link, inner, faults, received = wrapped(Fault("duplicate", "finished", times=2))
    link.submit([call("t1"), call("t2"), call("t3")])
    run_through(inner, "t1", "t2", "t3")
    assert [received.kinds_of(task_id).count("finished") for task_id in ("t1", "t2", "t3")] == [2, 2, 1]
    faults.add(Fault("duplicate"))
    link.submit([call("t4")])
    assert [one.task_id for one in inner.calls].count("t4") == 2


async def test_a_reordered_message_comes_after_the_next() -> None:
    link, inner, _, received = wrapped(Fault("reorder", "accepted"), Fault("reorder", "started", task_id="t2"))
    link.submit([call("t1"), call("t2")])
    run_through(inner, "t1", "t2")
    assert received.kinds_of("t1") == ["started", "accepted", "finished"]
    assert received.kinds_of("t2") == ["accepted", "finished", "started"]


async def test_a_delayed_message_waits_for_its_time_or_for_release() -> None:
    link, inner, faults, received = wrapped(Fault("delay", "accepted"), Fault("delay", "finished", seconds=0.02))
    link.submit([call("t1")])
    run_through(inner, "t1")
    assert received.kinds_of("t1") == ["started"]
    await received.until("finished")
    faults.release()
    assert received.kinds_of("t1") == ["started", "finished", "accepted"]


async def test_a_refused_call_never_reaches_the_cluster() -> None:
    link, inner, _, received = wrapped(Fault("refuse", "submit", task_id="t1"))
    link.submit([call("t1"), call("t2")])
    assert received.result("t1").failure is FailureClass.CLUSTER
    assert [one.task_id for one in inner.calls] == ["t2"]


async def test_a_cut_holds_all_messages_until_it_is_restored() -> None:
    link, inner, faults, received = wrapped()
    link.submit([call("t1")])
    faults.cut()
    inner.accept("t1")
    inner.begin("t1")
    link.submit([call("t2")])
    with pytest.raises(ClusterConnectionError):
        await link.health(0.01)
    assert (received.events, len(inner.calls)) == ([], 1)
    faults.restore()
    assert received.kinds_of("t1") == ["accepted", "started"]
    assert [one.task_id for one in inner.calls] == ["t1", "t2"]


async def test_lost_messages_stay_lost() -> None:
    link, inner, faults, received = wrapped(Fault("delay", "accepted", seconds=0.01))
    link.submit([call("t1")])
    inner.accept("t1")
    faults.cut()
    inner.begin("t1")
    faults.lose()
    faults.restore()
    inner.finish("t1")
    link.submit([call("t2")])
    await asyncio.sleep(0.03)
    assert received.events == []
    assert len(inner.calls) == 1
    with pytest.raises(ClusterConnectionError):
        await link.snapshot(0.01)


async def by_chance(seed: int) -> list[tuple[str, str]]:
    received = RecordingListener()
    faults = Faults(rates={"drop": 0.2, "duplicate": 0.2, "reorder": 0.2, "delay": 0.1}, seed=seed)
    link = FaultyLink(FakeLink("a", faults.between(received), answer=success), faults)
    link.submit([call(f"t{number}") for number in range(50)])
    await asyncio.sleep(0.01)
    faults.release(shuffle=True)
    return [(event[0], str(event[1])) for event in received.events]


async def test_chance_is_the_same_for_the_same_seed() -> None:
    first, again, other = await by_chance(1), await by_chance(1), await by_chance(2)
    assert first == again
    assert first != other
    kinds = [kind for kind, _ in first]
    assert {"accepted", "started", "finished"} <= set(kinds)
