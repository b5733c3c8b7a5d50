"""FakeLink keeps the guarantees of cluster_link.py, so that tests with it hold for a real link."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import ClusterLink, MethodCall, NewActor
from tests.support.fake_link import FakeLink, success
from tests.support.links import RecordingListener, call, idle_snapshot

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "accept", "begin", "finish", "fail", "cancel", "print", "down", "up", "lose"]),
        st.sampled_from(["t1", "t2", "t3"]),
    ),
    max_size=40,
)


@given(STEPS)
def test_whatever_happens_the_promises_hold(steps: list[tuple[str, str]]) -> None:
    async def play() -> tuple[RecordingListener, FakeLink]:
        received = RecordingListener()
        link = FakeLink("a", received)
        for step, task_id in steps:
            match step:
                case "submit" if all(task_id != one.task_id for one in link.calls):
                    link.submit([call(task_id)])
                case "cancel":
                    link.cancel(task_id, 1, force=False)
                case "print":
                    link.print(task_id, "text")
                case "accept" | "begin" | "finish" | "fail":
                    getattr(link, step)(task_id)
                case "down" | "up" if not link.closed:
                    getattr(link, step)()
                case "lose":
                    link.lose()
            await asyncio.sleep(0)
        await link.close("over")
        return received, link

    received, link = asyncio.run(play())
    for sent in link.calls:
        explanation = [kind for kind in received.kinds_of(sent.task_id) if kind != "output"]
        assert explanation.count("finished") == 1
        assert explanation[-1] == "finished"
        assert explanation.count("accepted") <= 1
        assert explanation.count("started") <= 1
    assert received.kinds().count("link_closed") == 1
    after = received.events[received.kinds().index("link_closed") + 1 :]
    assert all(event[0] == "finished" for event in after), "only the answers to calls that came too late"
    assert link.unanswered == []


async def test_calls_can_finish_automatically() -> None:
    received = RecordingListener()
    link: ClusterLink = FakeLink("a", received, answer=success)
    link.submit([call("t1", arguments=b"x"), call("t2")])
    assert received.events == [], "as with a real link, nothing comes back inside submit"
    await received.until("finished", 2)
    assert received.kinds_of("t1") == ["accepted", "started", "finished"]
    assert received.result("t1").payload == b"x"


async def test_calls_end_on_command() -> None:
    received = RecordingListener()
    link = FakeLink("a", received)
    link.submit([call("t1"), call("t2")])
    link.accept("t1")
    link.begin("t1", node_id="n5")
    link.print("t1", "hello", stream="stderr")
    link.fail("t1", FailureClass.CRASH, message="killed")
    assert received.kinds_of("t1") == ["accepted", "started", "output", "finished"]
    assert (received.result("t1").failure, received.result("t1").message) == (FailureClass.CRASH, "killed")
    assert link.unanswered == [("t2", 1)]


async def test_cancel_is_obeyed_or_only_noted() -> None:
    received = RecordingListener()
    link = FakeLink("a", received, obeys_cancel=False)
    link.submit([call("t1")])
    link.cancel("t1", 1, force=True)
    link.cancel("unknown", 1, force=True)
    await asyncio.sleep(0)
    assert (link.cancelled, received.results()) == ([("t1", 1, True)], [])
    link.obeys_cancel = True
    link.cancel("t1", 1, force=False)
    await received.until("finished")
    assert received.result("t1").status == "cancelled"


async def test_health_and_snapshot_answer_or_time_out() -> None:
    received = RecordingListener()
    link = FakeLink("a", received, snapshot=idle_snapshot("a", 16))
    assert await link.health(1) < 1
    assert (await link.snapshot(1)).total() == {"CPU": 16}
    assert len(received.of("snapshot")) == 1
    link.answers = False
    for ask in (link.health, link.snapshot):
        with pytest.raises(ClusterConnectionError, match=r"within 0.01 s"):
            await ask(0.01)


async def test_a_lost_cluster_answers_everything_once() -> None:
    received = RecordingListener()
    link = FakeLink("a", received)
    link.submit([call("t1")])
    link.lose("power cut")
    await link.close("again")
    link.submit([call("t2")])
    assert [received.result(task_id).failure for task_id in ("t1", "t2")] == [FailureClass.CLUSTER] * 2
    assert received.kinds() == ["finished", "link_closed", "finished"]


async def test_calls_sent_ahead_take_over_places_or_are_started_or_recalled() -> None:
    received = RecordingListener()
    link = FakeLink("a", received)
    link.submit([call("t1"), *(call(f"t{number}", ahead="queue") for number in (2, 3, 4))])
    link.begin("t2")
    assert received.events == [], "without a place nothing begins"
    link.finish("t1")
    assert received.events[0] == ("moved", ("t1", 1), ("t2", 1)), "before the result"
    link.begin("t2")
    link.start("t3", 1)
    link.start("t3", 1)
    link.begin("t3")
    link.recall("t4", 1)
    link.recall("t3", 1)
    await received.until("finished", 2)
    assert (received.result("t4").status, received.result("t4").code) == ("cancelled", "RECALLED")
    assert (link.started, link.recalled, link.ahead) == ([("t3", 1)], [("t4", 1)], [])
    assert link.unanswered == [("t2", 1), ("t3", 1)]


async def test_methods_are_only_answered_and_actors_live_until_a_test_ends_them() -> None:
    received = RecordingListener()
    link = FakeLink("a", received, answer=success)
    link.submit([call("a1", actor=NewActor("n")), call("m1", method=MethodCall("a1", 1, "f", 0))])
    await received.until("finished")
    assert (received.kinds_of("a1"), received.kinds_of("m1")) == (["accepted", "started"], ["finished"])
    assert received.result("m1").actor_id == "a1"
    link.fail("a1", FailureClass.CRASH, code="ACTOR_DIED")
    assert received.result("a1").actor_id is None


async def test_methods_of_the_process_before_are_answered_as_their_actors() -> None:
    received = RecordingListener()
    link = FakeLink("a", received)
    link.adopt_method("call-1", ("a1", 1), ("a1", 1))
    link.adopt_method("call-2", ("a1", 1), ("g1", 1))
    link.adopt_method("call-2", ("a1", 1), ("g1", 1))
    assert link.adopted_methods == [("call-1", ("a1", 1), ("a1", 1)), ("call-2", ("a1", 1), ("g1", 1))]
    link.finish("call-1", b"v")
    link.lose()
    link.adopt_method("call-3", ("a1", 1), ("a1", 1))
    assert [(one.task_id, one.status, one.actor_id) for one in received.results()] == [
        ("call-1", "succeeded", "a1"),
        ("call-2", "failed", "a1"),
        ("call-3", "failed", "a1"),
    ]
