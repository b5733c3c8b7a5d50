"""Shared objects and prefetched calls, on a real cluster through a bare link."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.object_argument import ObjectArgument
from ray_multicluster_scheduler.local_fleet import LocalFleet
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import SharedObject
from tests.support.bare_link import BareLink, bare_link, method, task
from tests.support.eventually import eventually


@pytest.fixture
async def line(fleet: LocalFleet) -> AsyncIterator[BareLink]:
    async with bare_link(Path(fleet.config_path), "mac") as one:
        yield one


def moves(line: BareLink) -> list[tuple[str, str]]:
    return [(ended[0], begun[0]) for _, ended, begun in line.received.of("moved")]


async def test_a_large_object_shared_by_many_calls(line: BareLink) -> None:
    big = SharedObject("big", pickling.dumps(b"x" * 50_000_000))
    two = SharedObject("two", pickling.dumps(["first", "second"]))

    def measure(data: bytes, part: str, number: int) -> tuple[int, str, int]:
        return len(data), part, number

    began = asyncio.get_running_loop().time()
    line.submit(
        *(
            task(f"t{number}", measure, ObjectArgument(0), ObjectArgument(1, part=1), number, objects=[big, two])
            for number in range(30)
        )
    )
    for number in range(30):
        assert await line.value(f"t{number}") == (50_000_000, "second", number)
    assert asyncio.get_running_loop().time() - began < 60


async def test_actors_and_their_methods_use_shared_objects(line: BareLink) -> None:
    class Holder:
        def __init__(self, data: bytes) -> None:
            self.data = data

        def compare(self, other: bytes) -> tuple[int, bool]:
            return len(other), other == self.data

    big = SharedObject("big", pickling.dumps(b"x" * 5_000_000))
    line.make("a1", Holder, ObjectArgument(0), objects=[big])
    line.submit(
        method("m0", "a1", "compare", 0, ObjectArgument(0), objects=[big]), method("m1", "a1", "compare", 1, b"")
    )
    assert await line.value("m0") == (5_000_000, True)
    assert await line.value("m1") == (0, False)


@pytest.mark.parametrize("ahead", ["queue", "overlap"])
async def test_prefetched_calls_inherit_slots_in_order(line: BareLink, ahead: str, tmp_path: Path) -> None:
    """Two slots; ten more calls wait for them, and at most two run at any time."""
    log = tmp_path / "log"

    def work(path: str, number: int) -> int:
        import time

        with open(path, "a") as file:
            file.write(f"+{number} ")
        time.sleep(0.05)
        with open(path, "a") as file:
            file.write(f"-{number} ")
        return number

    line.submit(task("warm0", len, "a"), task("warm1", len, "a"))
    await line.value("warm0")
    await line.value("warm1")
    calls = [task(f"t{n}", work, str(log), n, ahead="" if n < 2 else ahead) for n in range(12)]
    line.submit(*calls)
    assert [await line.value(f"t{number}") for number in range(12)] == list(range(12))
    pairs = moves(line)
    assert [begun for _, begun in pairs] == [f"t{number}" for number in range(2, 12)], "first come, first served"
    assert len({ended for ended, _ in pairs}) == 10, "each place is handed on once"
    running = most = 0
    for word in log.read_text().split():
        running += 1 if word[0] == "+" else -1
        most = max(most, running)
    assert most <= 2
    for _, ended, begun in line.received.of("moved"):
        at = line.received.events.index(("moved", ended, begun))
        before = [event[1] for event in line.received.events[:at] if event[0] == "finished"]
        assert ended[0] not in before
        assert begun[0] not in before


async def test_the_slot_of_a_failed_call_is_inherited(line: BareLink) -> None:
    def crash() -> None:
        import os

        os._exit(3)

    def fail() -> None:
        raise ValueError("no")

    line.submit(task("t1", crash), task("t2", fail, ahead="queue"), task("t3", len, "abc", ahead="queue"))
    assert await line.value("t3") == 3
    assert moves(line) == [("t1", "t2"), ("t2", "t3")]


async def test_waiting_calls_can_be_recalled_and_cancelled_and_never_run(line: BareLink, tmp_path: Path) -> None:
    def note(path: str) -> None:
        Path(path).touch()

    def hold(path: str) -> None:
        import time

        while not Path(path).exists():
            time.sleep(0.02)

    notes, go = tmp_path / "notes", tmp_path / "go"
    notes.mkdir()
    waiting = [task(f"t{n}", note, str(notes / str(n)), ahead="queue") for n in (1, 2, 3)]
    line.submit(task("t0", hold, str(go)), *waiting)
    await line.started("t0")
    line.link.recall("t1", 1)
    line.link.cancel("t2", 1, force=False)
    line.link.recall("t0", 1)
    recalled, cancelled = await line.result("t1"), await line.result("t2")
    assert (recalled.status, recalled.code) == ("cancelled", "RECALLED")
    assert (cancelled.status, cancelled.code) == ("cancelled", "")
    go.touch()
    await line.value("t3")
    assert (await line.result("t0")).status == "succeeded", "what has begun goes on"
    assert [one.name for one in notes.iterdir()] == ["3"]


async def test_what_waits_in_ray_can_be_recalled_and_never_runs(line: BareLink, tmp_path: Path) -> None:
    """Two calls hold the CPUs, so that Ray starts nothing else. What is not recalled runs, however long it waited."""

    def note(path: str) -> None:
        Path(path).touch()

    def hold(folder: str, name: str) -> None:
        import time

        Path(f"{folder}/{name}").touch()
        while not Path(f"{folder}/go").exists():
            time.sleep(0.02)

    class Noted:
        def __init__(self, path: str) -> None:
            Path(path).touch()

    line.submit(*(task(f"h{n}", hold, str(tmp_path), f"h{n}") for n in (1, 2)))
    await eventually(lambda: len(list(tmp_path.iterdir())) == 2, timeout=60)
    line.submit(*(task(f"t{n}", note, str(tmp_path / f"t{n}")) for n in (1, 2)))
    line.submit(task("big", note, str(tmp_path / "big"), b"x" * 1_000_000))
    line.make("a1", Noted, str(tmp_path / "a1"))
    await eventually(lambda: len(line.received.of("accepted")) >= 6, timeout=60)
    for name in ("t1", "big", "a1", "h1"):
        line.link.recall(name, 1)
    for name in ("t1", "big", "a1"):
        result = await line.result(name)
        assert (result.status, result.code) == ("cancelled", "RECALLED"), name
    (tmp_path / "go").touch()
    await line.value("t2")
    assert [(await line.result(name)).status for name in ("h1", "h2")] == ["succeeded"] * 2
    await line.value("t2")
    line.submit(*(task(f"u{n}", len, "abc") for n in (1, 2)))
    assert [await line.value(f"u{n}") for n in (1, 2)] == [3, 3]
    assert {one.name for one in tmp_path.iterdir()} == {"go", "h1", "h2", "t2"}


async def test_a_late_prefetched_call_waits_for_start(line: BareLink) -> None:
    line.submit(task("t1", len, "abc", ahead="overlap"))
    await line.received.until("accepted")
    await asyncio.sleep(0.3)
    assert line.received.results() == []
    line.link.start("t1", 1)
    assert await line.value("t1") == 3
    assert moves(line) == []


async def test_after_a_cut_moves_and_results_come_in_order(fleet: LocalFleet) -> None:
    """The connection breaks while slots are inherited; unacknowledged messages are sent again."""
    async with bare_link(Path(fleet.config_path), "mac", heartbeat_s=0.5) as line:
        line.submit(task("warm", len, "a"))
        await line.value("warm")
        nap = __import__("time").sleep
        line.submit(*(task(f"t{n}", nap, 0.05, ahead="queue" if n else "") for n in range(30)))
        for _ in range(3):
            seen = len(line.received.results())
            await eventually(lambda seen=seen: len(line.received.results()) > seen + 2, timeout=60)
            ups = len(line.received.of("link_up"))
            line.link._serving.cancel()  # type: ignore[attr-defined]  # as by a power cut of the network
            await eventually(lambda ups=ups: len(line.received.of("link_up")) > ups, timeout=30)
        for n in range(30):
            assert (await line.result(f"t{n}")).status == "succeeded"
        assert [begun for _, begun in moves(line)] == [f"t{n}" for n in range(1, 30)]
        order = [result.task_id for result in line.received.results() if result.task_id != "warm"]
        assert order == [f"t{n}" for n in range(30)]
