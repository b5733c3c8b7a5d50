"""AgentLink with a stable connection: messages sent, and events reported exactly once."""

from __future__ import annotations

import asyncio
import time

import pytest

from ray_multicluster_scheduler.common import frames
from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.common.frames import CHUNK_BYTES
from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links.agent_link import AgentLink
from tests.support.eventually import eventually
from tests.support.links import FakeClock, RecordingListener, call
from tests.unit.connection.conftest import Plane

T1, T2, T3 = ("t1", 1), ("t2", 1), ("t3", 1)


async def test_a_call_is_accepted_started_and_finished_in_this_order(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1")])
    await agent.until(m.CALLS)
    agent.accept(T1)
    agent.start(T1, at=12.5, node="n7")
    agent.finish(T1, payload=b"forty-two")
    await plane.received.until("finished")
    assert plane.received.kinds_of("t1") == ["accepted", "started", "finished"]
    assert plane.received.of("started") == [("started", "t1", 1, 12.5, "n7")]
    result = plane.received.result("t1")
    assert (result.status, result.payload, result.failure) == ("succeeded", b"forty-two", None)
    assert (await agent.until(m.ACK)).head["keys"] == [["t1", 1]]


async def test_everything_of_a_call_arrives_over_there(plane: Plane) -> None:
    link, agent = await plane.pair()
    sent = call(
        "t1",
        3,
        function=b"code",
        arguments=b"1,2",
        fence=17,
        resources={"CPU": 2.0, "GPU": 0.5},
        runtime_env={"env_vars": {"A": "1"}},
        homes=("/home/alice",),
        target_home="/Users/alice",
    )
    link.submit([sent])
    message = await agent.until(m.CALLS)
    (head,) = message.head["calls"]
    assert (head["id"], head["attempt"], head["fence"], head["name"]) == ("t1", 3, 17, "t1")
    assert (head["res"], head["env"]) == ({"CPU": 2.0, "GPU": 0.5}, {"env_vars": {"A": "1"}})
    assert (head["homes"], head["home"]) == (["/home/alice"], "/Users/alice")
    assert message.blobs[head["fn_blob"]] == b"code"
    assert message.blobs[head["args_blob"]] == b"1,2"
    assert head["fn"] == sent.function_digest


async def test_repeated_events_are_reported_once_and_still_acknowledged(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1")])
    for _ in range(2):
        agent.accept(T1)
        agent.start(T1)
    for _ in range(3):
        agent.finish(T1)
    await agent.until(m.ACK, 3)
    agent.start(T1)
    agent.accept(T1)
    await link.health(60)
    assert plane.received.kinds_of("t1") == ["accepted", "started", "finished"]
    assert all(message.head["keys"] == [["t1", 1]] for message in agent.of(m.ACK))


async def test_a_short_call_may_report_its_start_with_its_end(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1"), call("t2")])
    parts = [["stdout", "hello\n"], ["stderr", "oh\n"]]
    agent.finish(T1, at=3.0, node="n2", parts=parts, dropped=10)
    agent.start(T2, at=4.0, node="n3")
    agent.finish(T2, at=4.0, node="n3")
    await plane.received.until("finished", 2)
    assert plane.received.kinds_of("t1") == ["output", "output", "dropped", "finished"]
    assert plane.received.of("dropped") == [("dropped", "t1", 1, 10)]
    assert plane.received.kinds_of("t2") == ["started", "finished"]
    ends = {event[1]: (event[3].started_at, event[3].node_id) for event in plane.received.of("finished")}
    assert ends == {"t1": (3.0, "n2"), "t2": (None, None)}  # each start is reported once
    texts = [(event[3], event[4]) for event in plane.received.of("output")]
    assert texts[:2] == [("stdout", "hello\n"), ("stderr", "oh\n")]


async def test_output_comes_as_it_is_printed(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1")])
    agent.say(m.OUTPUT, {"id": "t1", "attempt": 1, "parts": [["stdout", "a"], ["stdout", "b"]]})
    await plane.received.until("output", 2)
    assert [event[4] for event in plane.received.of("output")] == ["a", "b"]


async def test_a_failure_keeps_its_class_text_and_traceback(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1")])
    agent.finish(
        T1,
        payload=b"pickled error",
        status="failed",
        failure="user",
        error_type="ValueError",
        message="bad",
        traceback="Traceback …",
    )
    await plane.received.until("finished")
    result = plane.received.result("t1")
    assert (result.status, result.failure, result.error_type) == ("failed", FailureClass.USER, "ValueError")
    assert (result.message, result.traceback, result.payload) == ("bad", "Traceback …", b"pickled error")


async def test_a_batch_of_results_is_one_message_and_one_acknowledgement(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call(f"t{number}") for number in range(100)])
    agent.finish(*((f"t{number}", 1) for number in range(100)))
    await plane.received.until("finished", 100)
    await agent.until(m.ACK)
    assert [result.task_id for result in plane.received.results()] == [f"t{number}" for number in range(100)]
    assert len(agent.of(m.ACK)) == 1


async def test_many_calls_travel_in_few_messages_and_a_function_once(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call(f"t{number}", function=b"f") for number in range(600)])
    link.submit([call("last", function=b"f"), call("other", function=b"g")])
    await eventually(lambda: len(agent.calls()) == 602)
    assert agent.calls() == [*((f"t{number}", 1) for number in range(600)), ("last", 1), ("other", 1)]
    assert len(agent.of(m.CALLS)) == 4
    bench = [
        bytes(message.blobs[head["fn_blob"]])
        for message in agent.of(m.CALLS)
        for head in message.head["calls"]
        if head["fn_blob"] is not None
    ]
    assert bench == [b"f", b"g"]


async def test_a_large_call_travels_alone_and_delays_no_other(plane: Plane) -> None:
    link, agent = await plane.pair()
    large = call("large", arguments=b"x" * (40 * CHUNK_BYTES))
    link.submit([call("t1"), large, call("t2")])
    await eventually(lambda: len(agent.calls()) == 3)
    assert agent.calls() == [T1, T2, ("large", 1)]
    (message,) = [x for x in agent.of(m.CALLS) if x.head["calls"][0]["id"] == "large"]
    assert len(message.head["calls"]) == 1
    assert message.blobs[message.head["calls"][0]["args_blob"]] == large.arguments


def unknown_functions(agent_messages: list[object]) -> list[str]:
    """Calls that arrived before their function did."""
    known: set[str] = set()
    missing = []
    for message in agent_messages:
        for head in message.head["calls"]:
            if head["fn_blob"] is not None:
                known.add(head["fn"])
            if head["fn"] not in known:
                missing.append(head["id"])
    return missing


async def test_a_small_call_that_overtakes_a_large_one_has_its_function(plane: Plane) -> None:
    """Both use one function; the large call was sent first, but is still under way when the small one arrives."""
    link, agent = await plane.pair()
    link.submit([call("large", function=b"f", arguments=b"x" * (40 * CHUNK_BYTES))])
    link.submit([call("t1", function=b"f")])
    link.submit([call("t2", function=b"f")])
    await eventually(lambda: len(agent.calls()) == 3)
    assert agent.calls()[-1] == ("large", 1), "the test shows nothing if it did not overtake"
    assert unknown_functions(agent.of(m.CALLS)) == []


async def test_a_large_function_is_sent_once_and_calls_that_need_it_wait_until_it_arrived(plane: Plane) -> None:
    link, agent = await plane.pair()
    function = b"f" * (4 * CHUNK_BYTES)
    link.submit([call("t1", function=function)])
    link.submit([call("t2", function=function), call("t3", function=b"g")])
    await eventually(lambda: len(agent.calls()) == 2)
    assert sorted(agent.calls()) == [T1, T3]
    agent.accept(T1)
    message = await agent.until(m.CALLS, 3)
    assert [(head["id"], head["fn_blob"]) for head in message.head["calls"]] == [("t2", None)]
    assert unknown_functions(agent.of(m.CALLS)) == []


async def test_cancel_sends_a_request_and_the_result_ends_the_call(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1")])
    agent.accept(T1)
    await plane.received.until("accepted")
    link.cancel("t1", 1, force=True)
    assert (await agent.until(m.CANCEL)).head == {"id": "t1", "attempt": 1, "force": True}
    assert plane.received.results() == []
    agent.finish(T1, payload=b"", status="cancelled")
    await plane.received.until("finished")
    assert plane.received.result("t1").status == "cancelled"


async def test_cancel_of_unknown_or_finished_calls_is_ignored(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1")])
    agent.finish(T1)
    await plane.received.until("finished")
    link.cancel("t1", 1, force=False)
    link.cancel("never", 1, force=False)
    await link.health(60)
    assert agent.of(m.CANCEL) == []


async def test_a_cancel_that_overtakes_its_large_call_is_repeated(plane: Plane) -> None:
    """The agent ignores a cancel for a call it does not know; it must hear of it again once it has the call."""
    link, agent = await plane.pair()
    link.submit([call("large", arguments=b"x" * (40 * CHUNK_BYTES))])
    link.cancel("large", 1, force=True)
    await agent.until(m.CALLS)
    agent.accept(("large", 1))
    await plane.received.until("accepted")
    await link.health(60)
    position = agent.received.index(agent.of(m.CALLS)[0])
    after = [message.head for message in agent.received[position:] if message.kind == m.CANCEL]
    assert after == [{"id": "large", "attempt": 1, "force": True}]


async def test_health_is_the_round_trip(plane: Plane) -> None:
    link, _ = await plane.pair()
    assert 0 < await link.health(60) < 5


async def test_health_of_two_callers_at_once(plane: Plane) -> None:
    link, _ = await plane.pair()
    both = await asyncio.gather(link.health(60), link.health(60))
    assert all(0 < seconds < 5 for seconds in both)


async def test_health_is_not_fooled_by_the_answer_to_an_earlier_ping(plane: Plane) -> None:
    link, agent = await plane.pair()
    agent.mute = True
    asking = asyncio.create_task(link.health(0.4))
    agent.say(m.PONG, {"t": 1.0})
    with pytest.raises(ClusterConnectionError):
        await asking


async def test_a_silent_agent_is_a_sentence_in_time(plane: Plane) -> None:
    link, agent = await plane.pair()
    agent.mute = True
    began = time.monotonic()
    with pytest.raises(ClusterConnectionError, match=r"the agent of cluster 'a' did not answer within 0.2 s") as caught:
        await link.health(0.2)
    assert caught.value.cluster == "a"
    assert caught.value.next_step
    with pytest.raises(ClusterConnectionError, match=r"did not answer within 0.2 s"):
        await link.snapshot(0.2)
    assert time.monotonic() - began < 30


async def test_a_snapshot_is_requested_and_reported_to_the_listener(plane: Plane) -> None:
    link, agent = await plane.pair()
    agent.snapshot(cpus=1.0)
    await plane.received.until("snapshot")
    asking = asyncio.create_task(link.snapshot(60))
    await agent.until(m.PROBE)
    plane.clock.time = 2000.0
    agent.snapshot(cpus=8.0)
    snapshot = await asking
    assert snapshot.total() == {"CPU": 8.0}
    assert (snapshot.cluster, snapshot.source, snapshot.taken_at) == ("a", "agent", 2000.0)
    assert (snapshot.session_id, snapshot.ray_version, snapshot.arch) == ("session_1", "2.60.0", "x86_64")
    assert plane.received.of("snapshot")[-1][1] == snapshot


async def test_a_silent_head_is_reported(plane: Plane) -> None:
    _, agent = await plane.pair()
    agent.say(m.HEAD, {"silent_s": 16.5})
    assert await plane.received.until("head_silent") == [("head_silent", plane.received.events[0][1].cluster, 16.5)]


async def test_pings_go_both_ways(plane: Plane) -> None:
    _, agent = await plane.pair(heartbeat_s=0.3)
    await agent.until(m.PING, 3)
    agent.say(m.PING, {"t": 77})
    await agent.until(m.PONG)
    assert agent.of(m.PONG)[0].head == {"t": 77}


async def test_a_message_of_a_later_version_is_ignored(plane: Plane) -> None:
    link, agent = await plane.pair()
    agent.say("telemetry", {"x": 1})
    assert await link.health(60) < 60


async def test_a_message_that_cannot_be_read_breaks_the_connection_and_loses_no_call(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1"), call("t2")])
    agent.finish(T1)
    agent.finish(T2, status="failed", failure="of a kind nobody knows")
    ((_, _, sentence),) = await plane.received.until("link_down")
    assert "'finished'" in sentence
    assert [result.task_id for result in plane.received.results()] == ["t1"]
    plane.job_over = "it failed"
    await plane.received.until("finished", 2)
    assert plane.received.result("t2").failure is FailureClass.CLUSTER


async def test_idle_time_counts_from_the_last_use(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1")])
    await asyncio.sleep(0.05)
    assert link.idle_s == 0.0
    agent.finish(T1)
    await plane.received.until("finished")
    first = link.idle_s
    await asyncio.sleep(0.05)
    assert 0 <= first < link.idle_s


async def test_before_the_agent_joined_there_is_no_info() -> None:
    async def never() -> None:
        return None

    link = AgentLink(
        "a", "x", RecordingListener(), FakeClock(), heartbeat_s=5, lease_s=45, lost_after_s=60, death_reason=never
    )
    with pytest.raises(ClusterConnectionError, match="has not joined"):
        _ = link.info
    await link.close("over")


async def test_a_call_that_cannot_be_encoded_is_refused_and_harms_no_other(plane: Plane) -> None:
    link, agent = await plane.pair()
    wrong = call("wrong", runtime_env={"worker_process_setup_hook": print})
    link.submit([call("t1"), wrong, call("t2")])
    await eventually(lambda: agent.calls() == [T1, T2])
    result = plane.received.result("wrong")
    assert (result.status, result.failure, result.code) == ("failed", FailureClass.PERMANENT, "NOT_SENDABLE")
    assert "runtime_env must be plain data" in result.message
    agent.finish(T1, T2)
    await plane.received.until("finished", 3)
    assert link.idle_s > 0, "nothing is owed"
    assert unknown_functions(agent.of(m.CALLS)) == []


async def test_a_call_that_is_too_large_to_be_sent_is_refused(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    link, agent = await plane.pair()
    monkeypatch.setattr(frames, "MAX_MESSAGE_BYTES", 1000)
    link.submit([call("large", arguments=b"x" * 2000), call("t1")])
    await eventually(lambda: agent.calls() == [T1])
    assert plane.received.result("large").code == "NOT_SENDABLE"
    assert "2" in plane.received.result("large").message


async def test_a_function_that_the_agent_has_dropped_is_sent_again_with_the_call(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1", function=b"f")])
    await agent.until(m.CALLS)
    agent.accept(T1)
    link.submit([call("t2", function=b"f"), call("t3", function=b"f")])
    second = await agent.until(m.CALLS, 2)
    assert [head["fn_blob"] for head in second.head["calls"]] == [None, None]
    agent.say(m.UNKNOWN, {"keys": [["t2", 1], ["t3", 1]]})
    again = await agent.until(m.CALLS, 3)
    assert [head["id"] for head in again.head["calls"]] == ["t2", "t3"]
    assert again.blobs[again.head["calls"][0]["fn_blob"]] == b"f"
    assert again.head["calls"][1]["fn_blob"] is None
    agent.finish(T1, T2, T3)
    await plane.received.until("finished", 3)
    assert plane.received.kinds_of("t2") == ["finished"]


async def test_an_error_of_the_listener_ends_the_connection_and_pending_calls_are_watched(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, agent = await plane.pair(heartbeat_s=0.05)
    link.submit([call("t1")])

    def broken(*_: object) -> None:
        raise AttributeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(plane.received, "started", broken)
        agent.start(T1)
        await plane.received.until("link_down")
    plane.job_over = "it failed"
    await plane.received.until("finished")


async def test_observed_use_is_part_of_the_snapshot(plane: Plane) -> None:
    _, agent = await plane.pair()
    agent.say(m.SNAPSHOT, {"nodes": [], "observed": {"cpu": 0.5, "memory": 0.25}})
    agent.snapshot()
    await plane.received.until("snapshot", 2)
    reported = [event[1].observed for event in plane.received.of("snapshot")]
    assert reported == [{"cpu": 0.5, "memory": 0.25}, None]


async def test_output_of_a_finished_call_is_not_reported(plane: Plane) -> None:
    link, agent = await plane.pair()
    link.submit([call("t1")])
    agent.finish(T1)
    agent.say(m.OUTPUT, {"id": "t1", "attempt": 1, "parts": [["stdout", "late"]]})
    await plane.received.until("finished")
    await link.health(60)
    assert plane.received.of("output") == []
