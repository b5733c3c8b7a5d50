"""DurableResultCollector: results are in the store before anything is notified of them, and all in order."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import StoreError, StoreFullError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.control_plane.runtime import wire
from ray_multicluster_scheduler.control_plane.runtime.item import Outcome
from ray_multicluster_scheduler.control_plane.store import SqliteStore
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.scheduler_core import record_codec
from ray_multicluster_scheduler.scheduler.scheduler_core import result_collector as module
from ray_multicluster_scheduler.scheduler.scheduler_core.durable_log import DurableLog
from ray_multicluster_scheduler.scheduler.scheduler_core.output_store import StoredOutput
from ray_multicluster_scheduler.scheduler.scheduler_core.result_collector import DurableResultCollector
from tests.support.eventually import eventually
from tests.support.watched_disk import WatchedDisk
from tests.unit.lifecycle.driver import FREE, cluster

LARGE = b"x" * 100_000


class Log(DurableLog):
    """Its machine knows no items; these are over."""

    over_there: frozenset[str] = frozenset()

    def is_over(self, task_id: str) -> bool:
        return task_id in self.over_there


class World:
    """A collector on a real store; what the machine would receive is written down, with what was durable then."""

    def __init__(self, folder: Path) -> None:
        loop = asyncio.get_running_loop()
        self.disk = WatchedDisk()
        self.store = SqliteStore(folder, vfs=self.disk.name)
        self.failures: list[BaseException] = []
        self.reported: list[str] = []
        machine = SchedulerMachine(Settings(**FREE), [cluster("a")])
        self.log = Log(self.store, machine, loop.call_soon_threadsafe, self.failures.append)
        self.collector = DurableResultCollector(
            self._post, StoredOutput(self.store), self.store, self.log, self._when_durable
        )

    def _post(self, event: events.Event) -> None:
        assert isinstance(event, events.AttemptFinished)
        self.reported.append(event.task_id)

    def _when_durable(self, action: Callable[[], object]) -> None:
        self.log.after_durable(action)
        asyncio.get_running_loop().call_soon(self.log.flush)

    def finish(self, task_id: str, payload: bytes | None = None, **values: Any) -> None:
        self.collector.finished("a", CallResult(task_id, 1, "succeeded", payload, **values))


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    world = World(tmp_path / "state")
    yield world
    world.disk.full = world.disk.broken = False
    world.store.close()


async def test_a_small_value_is_reported_at_once_and_written_with_the_event(world: World) -> None:
    world.finish("t", b"value")
    assert world.reported == ["t"]
    assert world.store.blob(digest_of(b"value")) is None
    kept: list[str] = []
    world.collector.when_durable(lambda: kept.append("t"))
    assert kept == []
    await eventually(lambda: kept)
    assert world.store.blob(digest_of(b"value")) == b"value"


async def test_a_process_that_leaves_acknowledges_nothing(world: World) -> None:
    """The agents tell the next one again; programs could not hear of it from this one."""
    kept: list[str] = []
    world.finish("t", b"value")
    world.collector.when_durable(lambda: kept.append("t"))
    world.collector.stop_acknowledging()
    world.finish("later", b"other")
    world.collector.when_durable(lambda: kept.append("later"))
    await eventually(lambda: world.store.blob(digest_of(b"other")) == b"other")
    await asyncio.sleep(0.05)
    assert kept == []
    assert world.reported == ["t", "later"]


async def test_a_large_value_is_on_the_disk_before_it_is_reported(world: World) -> None:
    world.finish("t", LARGE)
    assert world.reported == []
    await eventually(lambda: world.reported)
    assert world.store.blob(digest_of(LARGE)) == LARGE
    result = world.collector.result("t")
    assert result is not None
    assert result.payload == LARGE


async def test_a_large_value_is_hashed_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_again(data: bytes) -> str:
        raise AssertionError("it was hashed when it was written")

    for other in (record_codec, wire):
        monkeypatch.setattr(other, "digest_of", not_again)
    world.finish("t", LARGE)
    await eventually(lambda: world.reported)
    result = world.collector.result("t")
    done = Complete("t", TaskState.SUCCEEDED, 1, "a")
    assert wire.named_payloads(wire.outcome_to_wire(Outcome(done, result))) == [digest_of(LARGE)]


async def test_all_that_comes_after_a_large_value_waits_for_it(world: World) -> None:
    kept: list[list[str]] = []
    world.finish("first")
    world.finish("large", LARGE)
    world.finish("small", b"v")
    world.collector.when_durable(lambda: kept.append(list(world.reported)))
    world.finish("larger", 2 * LARGE)
    world.finish("last")
    assert world.reported == ["first"]
    await eventually(lambda: len(world.reported) == 5)
    assert world.reported == ["first", "large", "small", "larger", "last"]
    await eventually(lambda: kept)
    assert set(kept[0]) >= {"first", "large", "small"}
    world.finish("then")
    assert world.reported[-1] == "then", "nobody is in the line any more"


async def test_nothing_is_kept_before_the_commit(world: World) -> None:
    world.disk.full = True
    kept: list[str] = []
    world.finish("t", b"value")
    world.collector.when_durable(lambda: kept.append("t"))
    await eventually(lambda: world.store.write_problem is not None)
    assert kept == []
    world.disk.full = False
    await eventually(lambda: kept, timeout=20)
    assert world.store.blob(digest_of(b"value")) == b"value"


async def test_a_large_value_is_tried_again_until_there_is_room(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put, tried = world.store.put_blob, []

    def full(data: bytes, *, beyond_quota: bool = False) -> str:
        assert beyond_quota, "there is always room for what has been done already"
        tried.append(len(data))
        if len(tried) < 4:
            raise StoreFullError(f"There is no room: {errno.ENOSPC}.")
        return put(data, beyond_quota=beyond_quota)

    monkeypatch.setattr(world.store, "put_blob", full)
    world.finish("large", LARGE)
    world.finish("small")
    await eventually(lambda: len(tried) == 3)
    assert world.reported == []
    await eventually(lambda: world.reported == ["large", "small"])
    assert world.store.blob(digest_of(LARGE)) == LARGE
    assert sum("cannot be written yet" in one.message for one in caplog.records) == 1


async def test_a_full_database_holds_a_large_value_back_too(world: World) -> None:
    world.disk.full = True
    world.finish("large", LARGE)
    await eventually(lambda: world.store.write_problem is not None)
    assert world.reported == []
    world.disk.full = False
    await eventually(lambda: world.reported == ["large"], timeout=20)


async def test_when_nothing_can_be_written_any_more_the_line_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(data: bytes, *, beyond_quota: bool = False) -> str:
        raise StoreError("The disk is broken.")

    monkeypatch.setattr(world.store, "put_blob", broken)
    world.finish("large", LARGE)
    world.finish("small")
    await eventually(lambda: world.reported == ["large", "small"])


async def test_answers_of_methods_are_not_kept(world: World) -> None:
    received: list[CallResult] = []
    world.collector.route_methods(received.append)
    world.finish("call", LARGE, actor_id="a")
    assert [one.task_id for one in received] == ["call"]
    assert world.reported == []


async def test_a_late_answer_is_reported_and_neither_written_nor_kept(world: World) -> None:
    """What a cluster that was given up says when it is back: how the item ended is written, and nobody asks again."""
    world.log.over_there = frozenset({"late"})
    world.finish("late", b"value")
    kept: list[str] = []
    world.collector.when_durable(lambda: kept.append("t"))
    await eventually(lambda: kept)
    assert world.reported == ["late"]
    assert world.store.blob(digest_of(b"value")) is None
    assert world.collector.result("late") is None


async def test_answers_of_methods_are_forgotten_when_they_were_acknowledged(world: World) -> None:
    done: list[str] = []
    for name in ("call-1", "call-2"):
        assert world.collector.hold_until_delivered(name, lambda name=name: done.append(name))  # type: ignore[misc]  # its own
    world.collector.delivered("call-1")
    world.collector.delivered("call-1")
    world.collector.delivered("of nobody")
    assert done == ["call-1"]
    world.collector.stop_acknowledging()
    world.collector.delivered("call-2")
    assert done == ["call-1"], "the next process hears of it again"
