"""events() and on_event() in a program, with a control plane of its own and with a service: the same shape."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ray_multicluster_scheduler as api
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.current_item import CurrentItem, set_current
from ray_multicluster_scheduler.common.exception import ConfigurationError, ServiceUnavailableError
from tests.unit.client_api.actor_plane import ActorPlane
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService

pytestmark = pytest.mark.usefixtures("leak_check")


class World:
    """A scheduler, and a task that runs there from its beginning to its end."""

    def __init__(self, scheduler: UnifiedScheduler, run: Any) -> None:
        self.scheduler, self.run = scheduler, run


@pytest.fixture(params=["its own", "a service"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "a service":
        with HttpService(tmp_path, works=True) as service:
            scheduler = UnifiedScheduler(address=service.address)
            yield World(scheduler, lambda word: scheduler.submit_task(str.upper, (word,), name=word))
            scheduler.shutdown()
        return
    with ActorPlane() as plane:
        scheduler = UnifiedScheduler(plane.runtime.config)
        scheduler._runtime, scheduler._submission = plane.runtime, plane.submission

        def run(word: str) -> None:
            plane.finish(plane.task(f"task-{word}", name=word))

        yield World(scheduler, run)


def test_a_for_loop_gets_the_events_after_its_start(world: World) -> None:
    with world.scheduler.events(types="transition") as events:
        world.run("one")
        reported = [next(events)]
        while reported[-1]["state"] != "SUCCEEDED":
            reported.append(next(events))
    assert {one["name"] for one in reported} == {"one"}
    assert reported[0]["state"] == "PENDING"
    numbers = [one["number"] for one in reported]
    assert numbers == sorted(numbers)
    assert list(events) == []


async def test_and_with_async_for(world: World) -> None:
    states = []
    async with world.scheduler.events(types=["transition"]) as events:
        await asyncio.to_thread(world.run, "one")
        async for event in events:
            states.append(event["state"])
            if states[-1] == "SUCCEEDED":
                break
    assert states[0] == "PENDING"


def test_earlier_events_are_sent_again_from_their_number(world: World) -> None:
    with world.scheduler.events(state="SUCCEEDED") as events:
        world.run("one")
        first = next(events)
        world.run("two")
        second = next(events)
    with world.scheduler.events(state="SUCCEEDED", since=first["number"]) as events:
        assert next(events) == second
    with world.scheduler.events(state="SUCCEEDED", since=0) as events:
        assert [next(events), next(events)] == [first, second]


def test_who_waits_for_a_while_loses_nothing(world: World) -> None:
    with world.scheduler.events(state="SUCCEEDED") as events:
        assert events.next(timeout=0.05) is None
        world.run("one")
        reported = events.next(timeout=10)
        assert reported is not None
        assert reported["name"] == "one"


def test_callbacks_may_be_plain_or_async_and_one_that_raises_is_dropped(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[str] = []
    also: list[str] = []

    async def hear(event: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        also.append(event["name"])

    def fail(_: dict[str, Any]) -> None:
        also.append("failed")
        raise ValueError("theirs")

    listeners = [
        world.scheduler.on_event(lambda event: received.append(event["name"]), state="SUCCEEDED"),
        world.scheduler.on_event(hear, state="SUCCEEDED"),
        world.scheduler.on_event(fail, state="SUCCEEDED"),
    ]
    world.run("one")
    until(lambda: (received, sorted(also)) == (["one"], ["failed", "one"]))
    world.run("two")
    until(lambda: (received, sorted(also)) == (["one", "two"], ["failed", "one", "two"]))
    assert "a callback for events failed" in caplog.text
    for one in listeners:
        one.close()
        one.close()
    world.run("three")
    assert received == ["one", "two"]


def test_the_end_of_the_scheduler_is_the_end_of_its_events(world: World) -> None:
    events = world.scheduler.events()
    ended = threading.Event()

    def read() -> None:
        for _ in events:
            pass
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.1)
    assert not ended.is_set()
    world.scheduler.shutdown()
    assert ended.wait(60)
    thread.join()
    assert events.next() is None


@pytest.mark.parametrize("wrong", [{"types": "x"}, {"state": "over"}, {"since": -1}, {"since": "5"}])
def test_what_cannot_be_asked_is_refused_at_once(world: World, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        world.scheduler.events(**wrong)


def test_what_cannot_be_called_is_refused(world: World) -> None:
    with pytest.raises(ConfigurationError, match="cannot be called"):
        world.scheduler.on_event("me")  # type: ignore[arg-type]  # wrong on purpose


def test_events_go_on_through_a_restart_of_the_service(tmp_path: Path) -> None:
    with HttpService(tmp_path, works=True) as service:
        scheduler = UnifiedScheduler(address=service.address)
        with scheduler.events(types="transition") as events:
            service.restart()
            scheduler.submit_task(str.upper, ("x",), name="one")
            reported = [next(events)]
            while reported[-1]["state"] != "SUCCEEDED":
                reported.append(next(events))
            service.restart()
            scheduler.submit_task(str.upper, ("x",), name="two")
            while (reported[-1]["name"], reported[-1]["state"]) != ("two", "SUCCEEDED"):
                reported.append(next(events))
        with scheduler.events(types="transition", since=0) as again:
            assert [next(again) for _ in reported] == reported
        scheduler.shutdown()


def test_too_many_readers_are_refused_when_they_ask(tmp_path: Path) -> None:
    with HttpService(tmp_path) as service:
        service.plane.runtime.event_publisher.hub.most = 0
        scheduler = UnifiedScheduler(address=service.address)
        with pytest.raises(ServiceUnavailableError, match="takes no more"):
            scheduler.events()
        scheduler.shutdown()


def test_inside_of_a_cluster_they_are_refused_with_a_sentence() -> None:
    set_current(CurrentItem("task-1", 1, 7, "mac"))
    try:
        with pytest.raises(ConfigurationError, match="events cannot be used inside cluster 'mac'"):
            api.events(types="transition")
        with pytest.raises(ConfigurationError, match="on_event cannot be used inside cluster 'mac'"):
            api.on_event(print)
    finally:
        set_current(None)
