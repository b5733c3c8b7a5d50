"""Checks of an Agent without a cluster, run by the interpreter that has Ray: `python agent_checks.py NAME`.

Ray is installed there but not connected, so calls to it fail unless a check replaces them; the agent itself is real.
pytest is not installed there, hence plain asserts.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from ray_multicluster_scheduler.common.current_item import CurrentItem
from ray_multicluster_scheduler.common.frames import FrameReader, FrameWriter, Message, Pieces
from ray_multicluster_scheduler.scheduler.connection.gateway.agent import Agent, LeaseExpired
from ray_multicluster_scheduler.scheduler.connection.gateway.calls import actors as methods_module
from ray_multicluster_scheduler.scheduler.connection.gateway.calls import calls as calls_module
from ray_multicluster_scheduler.scheduler.connection.gateway.calls import gangs as gangs_module
from ray_multicluster_scheduler.scheduler.connection.gateway.calls import reporting as results_module
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.actors import ActorAttempt
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import CallRecord
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.link.connection import Connection, Join
from ray_multicluster_scheduler.scheduler.connection.gateway.worker import worker as worker_module
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.channel import RunningCall
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import (
    AgentEndpoint,
    MethodOrder,
    TaskOrder,
    pack_success,
    unpack,
)

KEY = ("t1", 1)


class Wire:
    """The agent's end of a connection: a check feeds messages and reads the sent ones."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.received: list[Message] = []
        self._frames = FrameReader()
        self.transport = self
        self.aborted = False
        self._protocol: Any = asyncio.StreamReaderProtocol(self.reader)

    def write(self, data: bytes) -> None:
        self.received += self._frames.feed(data)

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.aborted = True

    def feed(self, kind: str, head: dict[str, Any], blobs: Any = ()) -> None:
        frames = FrameWriter()
        frames.put(Message(kind, head, blobs))
        asyncio.get_running_loop().call_soon(self._receive, frames.take())

    def end(self) -> None:
        self._protocol.eof_received()

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self.aborted

    def _receive(self, data: bytes) -> None:
        if isinstance(self._protocol, asyncio.StreamReaderProtocol):
            self._protocol.data_received(data)
            return
        while data:
            room = self._protocol.get_buffer(-1)
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self._protocol.buffer_updated(count)
            data = data[count:]

    def connection(self) -> Connection:
        return Connection(self.reader, self, FrameReader(), {}, [], time.monotonic())

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message.head for message in self.received if message.kind == kind]

    async def until(self, kind: str) -> dict[str, Any]:
        for _ in range(500):
            if self.of(kind):
                return self.of(kind)[-1]
            await asyncio.sleep(0.01)
        raise AssertionError(f"no {kind}, heard {self.received}")


def new_agent(lease_s: float = 60.0) -> Agent:
    made = Agent(Join("a", "agent", [], "token"))
    made._lease.seconds, made._heartbeat_s = lease_s, 5.0
    return made


def call(function_at: int | None, arguments_at: int, key: tuple[str, int] = KEY) -> dict[str, Any]:
    return {
        "id": key[0],
        "attempt": key[1],
        "fence": 1,
        "name": "f",
        "fn": "digest",
        "fn_blob": function_at,
        "args_blob": arguments_at,
        "res": {"CPU": 1},
        "env": {},
        "homes": [],
        "home": None,
    }


class NoProbe:
    """No query is open, so the head need not answer."""

    def silent_s(self) -> float:
        return 0.0


def serve(agent: Agent, wire: Wire) -> asyncio.Task[None]:
    return asyncio.create_task(agent._serve(wire.connection(), NoProbe()))


async def a_call_without_its_function_is_asked_for_again() -> None:
    agent, wire = new_agent(), Wire()
    serving = serve(agent, wire)
    wire.feed(m.CALLS, {"calls": [call(None, 0)]}, [b"args"])
    assert (await wire.until(m.UNKNOWN))["keys"] == [["t1", 1]]
    assert wire.of(m.ACCEPTED)[-1]["keys"] == []
    wire.feed(m.CALLS, {"calls": [call(0, 1)]}, [b"function", b"args"])
    await wire.until(m.FINISHED)
    assert wire.of(m.ACCEPTED)[-1]["keys"] == [["t1", 1]]
    serving.cancel()


async def a_function_that_cannot_be_stored_is_that_calls_answer() -> None:
    def full(_: object) -> None:
        raise MemoryError("the object store is full")

    calls_module.ray.put = full
    agent, wire = new_agent(), Wire()
    serving = serve(agent, wire)
    wire.feed(m.CALLS, {"calls": [call(0, 1)]}, [b"x" * 100_000, b"args"])
    (result,) = (await wire.until(m.FINISHED))["results"]
    assert result["status"] == "failed", result
    assert "the object store is full" in result["message"]
    assert not serving.done()
    serving.cancel()


async def a_cancel_that_ray_refuses_ends_nothing_else() -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("not a task of yours")

    calls_module.ray.cancel = refuse
    agent, wire = new_agent(), Wire()
    serving = serve(agent, wire)
    agent._calls.accept = lambda record: agent._calls.records.update({record.key: record})
    wire.feed(m.CALLS, {"calls": [call(0, 1)]}, [b"function", b"args"])
    await wire.until(m.ACCEPTED)
    record = agent._calls.records[KEY]
    record.ref = object()
    wire.feed(m.CANCEL, {"id": "t1", "attempt": 1, "force": False})
    wire.feed(m.PING, {"t": 7})
    await wire.until(m.PONG)
    assert not serving.done()
    assert len(record.timers) == 1, "force follows"
    record.timers[0].cancel()
    serving.cancel()


async def a_message_that_cannot_be_handled_costs_the_connection_only() -> None:
    agent, wire = new_agent(), Wire()
    serving = serve(agent, wire)
    wire.feed(m.CALLS, {"calls": [{"id": "t1"}]})
    await asyncio.wait_for(serving, 5)
    assert wire.aborted
    again = Wire()
    serving = serve(agent, again)
    again.feed(m.PING, {"t": 7})
    await again.until(m.PONG)
    serving.cancel()


async def a_result_that_is_too_large_is_a_failure_with_a_sentence() -> None:
    results_module.MAX_VALUE_BYTES = 1000
    agent, wire = new_agent(), Wire()
    value: Future[Pieces] = Future()
    value.set_result([b"x" * 1000] * 2)
    agent._calls.accept = lambda record: agent._calls.records.update({record.key: record})
    agent._results._read_back = lambda _: value
    serving = serve(agent, wire)
    wire.feed(m.CALLS, {"calls": [call(0, 1)]}, [b"function", b"args"])
    await wire.until(m.ACCEPTED)
    record = agent._calls.records[KEY]
    record.head, record.ref = {"status": "succeeded", "at": 1.0, "node": "n"}, object()
    agent._results.add([record])
    (result,) = (await wire.until(m.FINISHED))["results"]
    assert (result["status"], result["failure"], result["code"]) == ("failed", "permanent", "RESULT_TOO_LARGE")
    assert "2000 bytes" in result["message"]
    serving.cancel()


async def with_one_call() -> tuple[Any, Wire, Any]:
    """An agent that has accepted the call t1 and does not start it."""
    agent, wire = new_agent(), Wire()
    agent._calls.accept = lambda record: agent._calls.records.update({record.key: record})
    serving = serve(agent, wire)
    wire.feed(m.CALLS, {"calls": [call(0, 1)]}, [b"function", b"args"])
    await wire.until(m.ACCEPTED)
    return agent, wire, serving


async def events_during_a_cut_are_reported_after_it() -> None:
    agent, wire, serving = await with_one_call()
    wire.end()
    await asyncio.wait_for(serving, 5)
    about = {"id": "t1", "attempt": 1}
    agent._handle_worker(Message("started", {**about, "at": 5.0, "node": "n1", "pid": 7}))
    agent._handle_worker(Message("output", {**about, "parts": [["stdout", "hello"]]}))
    again = Wire()
    serving = serve(agent, again)
    again.feed(m.RESUME, {"keys": [["t1", 1]]})
    assert (await again.until(m.STARTED))["calls"] == [["t1", 1, 5.0, "n1"]]
    assert (await again.until(m.OUTPUT))["parts"] == [["stdout", "hello"]]
    kinds = [message.kind for message in again.received]
    assert kinds.index(m.ACCEPTED) < kinds.index(m.STARTED)
    serving.cancel()


async def a_repeated_call_is_reported_as_it_is() -> None:
    """As from a restarted service that may have sent it before."""
    agent, wire, serving = await with_one_call()
    agent._handle_worker(Message("started", {"id": "t1", "attempt": 1, "at": 5.0, "node": "n1", "pid": 7}))
    wire.feed(m.CALLS, {"calls": [call(0, 1)]}, [b"function", b"args"])
    await receive_all(wire)
    assert [head["calls"] for head in wire.of(m.STARTED)] == [[["t1", 1, 5.0, "n1"]]] * 2
    serving.cancel()


async def old_bytes_do_not_renew_a_lease_that_is_over() -> None:
    """As after SIGSTOP: an answer to an earlier query, and calls, are in its buffers."""
    agent, wire = new_agent(lease_s=0.2), Wire()
    early = time.monotonic()
    serving = serve(agent, wire)
    await asyncio.sleep(0)
    time.sleep(0.4)  # the whole process, loop and all
    wire.feed(m.PONG, {"t": early})
    wire.feed(m.CALLS, {"calls": [call(0, 1)]}, [b"function", b"args"])
    try:
        await asyncio.wait_for(serving, 5)
    except LeaseExpired:
        assert agent._calls.records == {}
    else:
        raise AssertionError("it went on")


async def an_answer_renews_the_lease_from_when_it_was_asked_for() -> None:
    agent, wire = new_agent(lease_s=10.0), Wire()
    serving = serve(agent, wire)
    asked = (await wire.until(m.PING))["t"]
    await asyncio.sleep(0.3)
    wire.feed(m.PONG, {"t": asked})
    wire.feed(m.PING, {"t": 7})
    await wire.until(m.PONG)
    assert agent._lease.until == asked + 10.0
    serving.cancel()


def gang_call() -> dict[str, Any]:
    part = {"name": "f", "fn": "digest", "fn_blob": 0, "args_blob": 1, "res": {"CPU": 1}}
    whole = {"id": "g1", "attempt": 1, "fence": 1, "name": "g", "res": {"CPU": 2}}
    return {**whole, "gang": {"strategy": "PACK", "of": "task", "members": [part, part]}}


async def a_gang_whose_places_cannot_be_asked_for_is_answered_and_leaves_none() -> None:
    class Group:
        def ready(self) -> None:
            raise ConnectionError("the head is gone")

    group, removed = Group(), []
    gangs_module.placement_group = lambda bundles, strategy, name: group
    gangs_module.remove_placement_group = removed.append
    agent, wire = new_agent(), Wire()
    serving = serve(agent, wire)
    wire.feed(m.CALLS, {"calls": [gang_call()]}, [b"function", b"args"])
    (result,) = (await wire.until(m.FINISHED))["results"]
    assert (result["id"], result["status"]) == ("g1", "failed"), result
    assert "the head is gone" in result["message"]
    assert removed == [group]
    wire.feed(m.ACK, {"keys": [["g1", 1]]})
    wire.feed(m.PING, {"t": 7})
    await wire.until(m.PONG)
    assert agent._calls.records == {}
    assert agent._gangs._gangs == {}
    serving.cancel()


async def a_gang_that_ray_refuses_is_answered() -> None:
    agent, wire = new_agent(), Wire()
    serving = serve(agent, wire)
    wire.feed(m.CALLS, {"calls": [gang_call()]}, [b"function", b"args"])
    (result,) = (await wire.until(m.FINISHED))["results"]
    assert (result["status"], result["id"]) == ("failed", "g1"), result
    serving.cancel()


class ActorOfRay:
    """Replaces an actor handle: records calls, and answers on command of a check."""

    def __init__(self, agent: Agent, key: tuple[str, int] = ("a1", 1)) -> None:
        record = CallRecord(key, name="A", actor={})
        agent._calls.records[key] = record
        agent._actors._actors[key] = ActorAttempt(record, {"asynchronous": False}, handle=self)
        self.run, self.given = self, list[str]()
        self.answers: dict[str, Future[bytes]] = {}

    def remote(self, order: bytes, *_: object) -> Any:
        name = MethodOrder.unpacked(order).key[0]
        self.given.append(name)
        value: Future[bytes] = Future()
        self.answers[name] = value
        return type("Ref", (), {"future": lambda _: value})()


def method_call(name: str, number: int, life: int, **values: Any) -> dict[str, Any]:
    head = {"id": name, "attempt": 1, "method": ["a1", 1, "f", number], "life": life}
    full = {"fence": 0, "name": name, "args_blob": 0, "res": {}}
    return {**head, **values} if values else {**head, **full}


async def receive_all(wire: Wire) -> None:
    """Wait until all fed messages are handled."""
    before = len(wire.of(m.PONG))
    wire.feed(m.PING, {"t": 7})
    while len(wire.of(m.PONG)) == before:
        await asyncio.sleep(0.01)


async def methods_of_two_processes_are_given_in_order_and_nobody_waits_for_what_never_comes() -> None:
    agent, wire = new_agent(), Wire()
    actor = ActorOfRay(agent)
    serving = serve(agent, wire)
    old = [method_call(f"old{number}", number, 1) for number in (5, 0, 3)]
    wire.feed(m.CALLS, {"calls": [*old, method_call("old1", 1, 1, cancelled=True)]}, [b"args"])
    await receive_all(wire)
    assert actor.given == ["old0"], "2 has not come"
    stored = Future[None]()
    methods_module.ray.put = lambda _: stored.result(10)
    wire.feed(m.CALLS, {"calls": [method_call("large", 4, 1)]}, [b"x" * 100_000])
    wire.feed(m.CALLS, {"calls": [method_call("new1", 1, 2)]}, [b"args"])
    wire.feed(m.CALLS, {"calls": [method_call("new0", 0, 2, refused="too large")]}, [b"args"])
    await receive_all(wire)
    assert actor.given == ["old0", "old3"], "the next of them is being stored"
    stored.set_result(None)
    while len(actor.given) < 5:
        await asyncio.sleep(0.01)
    assert actor.given == ["old0", "old3", "large", "old5", "new1"]
    results = {one["id"]: one for head in wire.of(m.FINISHED) for one in head["results"]}
    assert (results["old1"]["status"], results["new0"]["code"]) == ("cancelled", "NOT_SENDABLE")
    assert results["old1"]["method"] is True
    serving.cancel()


async def a_method_that_comes_after_those_of_a_later_process_is_refused() -> None:
    agent, wire = new_agent(), Wire()
    actor = ActorOfRay(agent)
    serving = serve(agent, wire)
    wire.feed(m.CALLS, {"calls": [method_call("new0", 0, 2), method_call("old0", 0, 1)]}, [b"args"])
    (result,) = (await wire.until(m.FINISHED))["results"]
    assert (result["id"], result["status"], result["code"]) == ("old0", "failed", "CAME_TOO_LATE")
    assert "not run" in result["message"]
    wire.feed(m.CALLS, {"calls": [method_call("new1", 1, 2)]}, [b"args"])
    await receive_all(wire)
    assert actor.given == ["new0", "new1"]
    serving.cancel()


async def a_method_of_a_process_that_is_gone_waits_for_nobody_and_its_answer_is_repeated() -> None:
    agent, wire = new_agent(), Wire()
    actor = ActorOfRay(agent)
    serving = serve(agent, wire)
    wire.feed(m.CALLS, {"calls": [method_call(f"c{number}", number, 1) for number in (1, 3, 5)]}, [b"args"])
    wire.feed(m.RESUME, {"keys": [["c3", 1]]})
    await receive_all(wire)
    assert actor.given == [], "who sent it may send 0 and 2"
    wire.feed(m.RESUME, {"keys": [["c3", 1], ["c2", 1]], "before": True})
    await receive_all(wire)
    assert actor.given == ["c1", "c3"]
    assert wire.of(m.UNKNOWN)[-1]["keys"] == [["c2", 1]]
    actor.answers["c3"].set_result(pack_success(1.0, 0.5, "n1", [b"value"]))
    (result,) = (await wire.until(m.FINISHED))["results"]
    assert (result["id"], result["status"], result["method"]) == ("c3", "succeeded", True)
    wire.feed(m.RESUME, {"keys": [["c3", 1], ["c1", 1]], "again": True})
    while len(wire.of(m.FINISHED)) < 2:
        await asyncio.sleep(0.01)
    await receive_all(wire)
    assert [[one["id"] for one in head["results"]] for head in wire.of(m.FINISHED)] == [["c3"], ["c3"]]
    serving.cancel()


async def an_interrupt_beside_the_users_code_is_an_end_after_the_start() -> None:
    """Without its start, the control plane would take the call for one that has not begun, and repeat it."""
    channel = SimpleNamespace(ended=[])
    channel.begin = lambda task_id, attempt, node, **_: RunningCall(task_id, attempt, node, 5.0, 0.0)
    channel.end = lambda running: channel.ended.append(running.task_id) or []
    order = TaskOrder(AgentEndpoint("", 0, "", 0.0), CurrentItem("t1", 1, 1, "mac"), 0.0, (), "d", False, b"f", b"a")

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    def user_code(*_: Any) -> Any:
        return {"status": "succeeded", "took": 1.0}, (b"value",)

    worker_module.channel_for, worker_module.this_node = lambda _: channel, lambda: "n1"
    worker_module._capture_output, worker_module._call = interrupted, user_code
    before, _ = unpack(worker_module.run_call(order.packed()))
    worker_module._capture_output, worker_module.pack_success = (lambda: None), interrupted
    after, _ = unpack(worker_module.run_call(order.packed()))
    assert before == after == {"status": "cancelled", "at": 5.0, "node": "n1"}, (before, after)
    assert set(channel.ended) == {"t1"}


CHECKS: dict[str, Callable[[], Any]] = {
    check.__name__: check
    for check in (
        a_call_without_its_function_is_asked_for_again,
        a_function_that_cannot_be_stored_is_that_calls_answer,
        a_cancel_that_ray_refuses_ends_nothing_else,
        a_message_that_cannot_be_handled_costs_the_connection_only,
        a_result_that_is_too_large_is_a_failure_with_a_sentence,
        events_during_a_cut_are_reported_after_it,
        a_repeated_call_is_reported_as_it_is,
        old_bytes_do_not_renew_a_lease_that_is_over,
        an_answer_renews_the_lease_from_when_it_was_asked_for,
        a_gang_whose_places_cannot_be_asked_for_is_answered_and_leaves_none,
        a_gang_that_ray_refuses_is_answered,
        methods_of_two_processes_are_given_in_order_and_nobody_waits_for_what_never_comes,
        a_method_that_comes_after_those_of_a_later_process_is_refused,
        a_method_of_a_process_that_is_gone_waits_for_nobody_and_its_answer_is_repeated,
        an_interrupt_beside_the_users_code_is_an_end_after_the_start,
    )
}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        asyncio.run(CHECKS[name]())
        print(name)
