"""Events find their subscribers, in their order; who is slow misses some and learns it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError, ServiceUnavailableError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.store import EventRecord, LogEntry, OperationRecord, Step, StoredDecision
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import (
    DURABLE,
    TELEMETRY,
    Event,
    EventFilter,
    event_of,
)
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event_hub import MAX_PENDING, EventHub

OWNERS = {"t1": "ann", "t2": "bob", "t3": "ann"}


def step(item: str, number: int = 1, cluster: str | None = None, state: TaskState = TaskState.QUEUED) -> Step:
    return Step(item, number, state, 0, 5.0, "FULL", "waits", cluster)


def hub(number: int = 0, **values: Any) -> EventHub:
    return EventHub(lambda item: ("task", f"name of {item}", OWNERS.get(item, "")), number, **values)


def decided(item: str, cluster: str = "a") -> StoredDecision:
    rows = [["a", [], [], {"load": 0.5}, {}, 0.5, None], ["b", [["FULL", "is full", False]], [], {}, {}, None, None]]
    return StoredDecision(
        item, 1, 6.0, cluster, json.dumps({"code": "PLACED", "sentence": "goes to a", "rows": rows}).encode()
    )


async def numbers(reader: Any) -> list[int | None]:
    return [one.number for one in (await reader.take(0.01)).events]


async def test_each_subscriber_gets_its_events_in_order() -> None:
    reported: list[LogEntry] = [
        step("t1"),
        decided("t1"),
        step("t2", cluster="b"),
        OperationRecord("cluster", "b", 7.0, None, b"{}"),
    ]
    world = hub(10)
    preference = {
        "all": ({}, [11, 12, 13, 14]),
        "ann": ({"owner": "ann"}, [11, 12]),
        "t2": ({"id": ["t2", "t9"]}, [13]),
        "b": ({"cluster": "b"}, [13, 14]),
        "decisions": ({"types": "decision"}, [12]),
        "of nobody": ({"owner": "eve"}, []),
        "both": ({"owner": "ann", "cluster": "b"}, []),
        "state": ({"state": "QUEUED"}, [11, 13]),
        "kind": ({"kind": "job"}, []),
    }
    readers = {name: world.subscribe(EventFilter.parse(wanted), after=0) for name, (wanted, _) in preference.items()}
    world.publish(14, reported)
    for name, (_, expected) in preference.items():
        assert await numbers(readers[name]) == expected, name
    assert world.number == 14


async def test_nothing_is_sent_twice_and_nothing_before_the_reader_goes_on() -> None:
    world = hub()
    reader = world.subscribe(EventFilter())
    world.publish(1, [step("t1")])
    assert await numbers(reader) == []
    reader.resume(2)
    world.publish(3, [step("t1", 2), step("t1", 3)])
    assert await numbers(reader) == [3]


async def test_a_slow_reader_is_bounded_and_learns_what_it_missed() -> None:
    world = hub()
    slow, quick = world.subscribe(EventFilter(), after=0), world.subscribe(EventFilter(), after=0)
    received = 0
    for number in range(1, 2 * MAX_PENDING + 12):
        world.publish(number, [step("t1", number)])
        if number % 1_000 == 0:
            received += len((await quick.take(1)).events)
    batch = await slow.take(1)
    assert batch.missed is not None
    first, last = batch.missed
    assert first == 1
    assert [one.number for one in batch.events] == list(range(last + 1, 2 * MAX_PENDING + 12))
    assert MAX_PENDING <= len(batch.events) < MAX_PENDING + 100
    assert received == 2 * MAX_PENDING
    world.publish(5_000, [step("t1")])
    assert (await slow.take(1)).missed is None


async def test_events_read_by_all_are_dropped() -> None:
    world = hub()
    readers = [world.subscribe(EventFilter(), after=0) for _ in range(3)]
    for number in range(1, 5_001):
        world.publish(number, [step("t1", number)])
        if number % 50 == 0:
            for one in readers:
                await one.take(1)
    (channel,) = world._channels.values()
    assert len(channel._events) < 200


async def test_who_comes_to_others_who_want_the_same_hears_from_then_on() -> None:
    world = hub()
    first = world.subscribe(EventFilter(), after=0)
    world.publish(2, [step("t1"), step("t1", 2)])
    second = world.subscribe(EventFilter(), after=2)
    world.publish(3, [step("t1", 3)])
    assert await numbers(first) == [1, 2, 3]
    assert await numbers(second) == [3]
    first.close()
    world.publish(4, [step("t1", 4)])
    assert await numbers(second) == [4]
    second.close()
    assert (world._channels, world._broad, len(world)) == ({}, {}, 0)


async def test_of_telemetry_only_the_newest_of_each_cluster_waits() -> None:
    world = hub()
    reader = world.subscribe(EventFilter.parse({"types": ["telemetry"]}), after=0)
    other = world.subscribe(EventFilter(), after=0)
    for at in range(100):
        world.publish_latest(Event("telemetry", {"cluster": f"c{at % 2}", "at": at}))
    assert [one.fields for one in (await reader.take(1)).events] == [
        {"type": "telemetry", "cluster": "c0", "at": 98},
        {"type": "telemetry", "cluster": "c1", "at": 99},
    ]
    assert (await other.take(0.01)).events == ()
    assert world.wants_load
    reader.close()
    assert not world.wants_load


async def test_a_submitter_hears_of_its_own_work_and_of_clusters_only() -> None:
    world = hub()
    reader = world.subscribe(EventFilter.parse({"types": (*DURABLE, TELEMETRY)}), after=0, only_owner="bob")
    notes = [
        OperationRecord("cluster", "a", 1.0, None, b"{}"),
        OperationRecord("action", "a", 1.0, "ann", b'{"action": "cordon"}'),
    ]
    world.publish(5, [step("t1"), step("t2"), decided("t1"), *notes])
    assert await numbers(reader) == [2, 4]


async def test_there_is_a_limit_and_who_leaves_makes_room() -> None:
    world = hub(most=2)
    first = world.subscribe(EventFilter.parse({"owner": "ann"}))
    world.subscribe(EventFilter())
    with pytest.raises(ServiceUnavailableError, match="2 readers"):
        world.subscribe(EventFilter())
    first.close()
    first.close()
    world.subscribe(EventFilter())
    assert world._by_key == {}


async def test_a_reader_that_is_cancelled_when_something_comes_does_not_go_on() -> None:
    world = hub()
    reader = world.subscribe(EventFilter(), after=0)

    async def reads_and_goes_on() -> None:
        await reader.take(10)
        await asyncio.sleep(10)

    reading = asyncio.create_task(reads_and_goes_on())
    await asyncio.sleep(0.01)
    world.publish(1, [step("t1")])
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait({reading}, timeout=30)
    assert reading.cancelled()


async def test_the_end_is_reported_to_waiting_callers() -> None:
    world = hub()
    reader = world.subscribe(EventFilter(), after=0)
    waiting = asyncio.create_task(reader.take())
    await asyncio.sleep(0)
    world.publish(1, [step("t1")])
    world.close()
    batch = await waiting
    assert (batch.over, [one.number for one in batch.events]) == (True, [1])
    with pytest.raises(ServiceUnavailableError, match="is stopping"):
        world.subscribe(EventFilter())


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"types": "nonsense"}, "types is 'nonsense'"),
        ({"state": "DONE"}, "state is 'DONE'"),
        ({"colour": "red"}, "by 'colour'"),
        ({"owner": 5}, "owner is '5'"),
        ({"id": ["x"] * 1001}, "id is"),
        ({"id": [None]}, "id is"),
    ],
)
def test_invalid_filter_is_rejected(output: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        EventFilter.parse(output)


def test_an_event_says_what_happened_in_plain_words() -> None:
    about = ("task", "train", "ann")
    transition = event_of(EventRecord(4, step("t1", 2, "a", TaskState.RUNNING), *about))
    assert json.loads(transition.text) == {
        "number": 4,
        "type": "transition",
        "at": 5.0,
        "id": "t1",
        "kind": "task",
        "name": "train",
        "owner": "ann",
        "step": 2,
        "state": "RUNNING",
        "attempt": 0,
        "cluster": "a",
        "code": "FULL",
        "sentence": "waits",
    }
    decision = event_of(EventRecord(5, decided("t1"), *about)).fields
    assert (decision["type"], decision["cluster"], decision["code"]) == ("decision", "a", "PLACED")
    assert decision["candidates"] == [
        {"cluster": "a", "rejections": [], "scores": {"load": 0.5}, "total": 0.5},
        {"cluster": "b", "rejections": [{"code": "FULL", "sentence": "is full"}], "scores": {}, "total": None},
    ]
    action = event_of(EventRecord(6, OperationRecord("action", "a", 7.0, "ann", b'{"action": "cordon"}'))).fields
    assert action == {"number": 6, "type": "action", "at": 7.0, "action": "cordon", "user": "ann", "subject": "a"}
    cluster = event_of(EventRecord(7, OperationRecord("cluster", "a", 8.0, None, b'{"state": "UP"}'))).fields
    assert cluster == {"number": 7, "type": "cluster", "at": 8.0, "state": "UP", "cluster": "a"}
