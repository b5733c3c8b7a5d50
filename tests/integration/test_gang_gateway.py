"""Gangs on a real cluster through a bare link: all or nothing, one result, and no remaining placement group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.common.object_argument import ObjectArgument
from ray_multicluster_scheduler.local_fleet import LocalFleet
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import MethodCall, SharedObject
from tests.support.bare_link import BareLink, bare_link, method, task
from tests.support.eventually import eventually
from tests.support.gangs import gang, living_groups, meeting, noting_its_end, part


@pytest.fixture
async def line(fleet: LocalFleet) -> AsyncIterator[BareLink]:
    async with bare_link(Path(fleet.config_path), "mac") as one:
        yield one


async def no_group_is_left(line: BareLink, name: str) -> None:
    line.submit(task(f"look-{name}", living_groups(), resources={}))
    assert await line.value(f"look-{name}") == []


async def test_members_run_at_the_same_time_and_their_values_come_in_order(line: BareLink, tmp_path: Path) -> None:
    line.submit(gang("g1", part(meeting(), str(tmp_path), "a", 2), part(meeting(), str(tmp_path), "b", 2)))
    answer = await line.result("g1")
    assert pickling.loads(answer.payload or b"") == ["a", "b"]
    reported = [one[4] for one in line.received.of("started") if one[1:3] == ("g1", 1)]
    (nodes,) = [
        one.split() for one in (*reported, answer.node_id) if one
    ]  # a start that was soon over comes with the end
    assert len(nodes) == 2, "one node for each member"
    assert nodes[0] == nodes[1], "there is only one"
    await no_group_is_left(line, "g1")


async def test_members_know_their_rank_and_print_to_the_gangs_output(line: BareLink) -> None:
    def who() -> tuple[Any, ...]:
        from ray_multicluster_scheduler import current

        item = current()
        print(f"I am {item.member}")
        return item.id, item.attempt, item.fence, item.cluster, item.member

    line.submit(gang("g2", part(who), part(who)))
    assert await line.value("g2") == [("g2", 1, 1, "mac", 0), ("g2", 1, 1, "mac", 1)]
    assert sorted(line.printed("g2").split("\n")[:2]) == ["I am 0", "I am 1"]
    line.submit(task("t", who))
    assert (await line.value("t"))[4] is None


async def test_the_first_failure_ends_the_others_and_is_the_result(line: BareLink, tmp_path: Path) -> None:
    def fail(folder: str) -> None:
        import pathlib
        import time

        while not (pathlib.Path(folder) / "slow-began").exists():
            time.sleep(0.02)
        raise ValueError("no more")

    line.submit(gang("g3", part(noting_its_end(), str(tmp_path), "slow"), part(fail, str(tmp_path))))
    answer = await line.result("g3")
    assert (answer.status, answer.failure, answer.error_type) == ("failed", FailureClass.USER, "ValueError")
    assert answer.member == 1
    assert "member 1 (fail) failed: ValueError: no more" in answer.message
    assert isinstance(pickling.loads(answer.payload or b""), ValueError)
    assert (tmp_path / "slow-ended").exists(), "it was interrupted, and had the time to tidy up"
    await no_group_is_left(line, "g3")


async def test_a_crashed_member_fails_the_gang(line: BareLink) -> None:
    def die() -> None:
        import os

        os._exit(1)

    def long() -> None:
        import time

        time.sleep(60)

    line.submit(gang("g4", part(long), part(die)))
    answer = await line.result("g4")
    assert (answer.status, answer.failure, answer.code) == ("failed", FailureClass.CRASH, "WORKER_DIED")
    assert "member 1 (die) failed" in answer.message
    await no_group_is_left(line, "g4")


async def test_cancel_ends_all_members(line: BareLink, tmp_path: Path) -> None:
    line.submit(gang("g5", *(part(noting_its_end(), str(tmp_path), name) for name in "ab")))
    await line.started("g5")
    # One that is ended before its code began notes nothing.
    await eventually(lambda: len(list(tmp_path.iterdir())) == 2)
    line.link.cancel("g5", 1, force=False)
    assert (await line.result("g5")).status == "cancelled"
    assert {path.name for path in tmp_path.iterdir()} == {"a-began", "a-ended", "b-began", "b-ended"}
    await no_group_is_left(line, "g5")


@pytest.mark.parametrize("how", ["cancel", "recall"])
async def test_a_gang_without_room_starts_no_member_and_can_be_taken_back(
    line: BareLink, tmp_path: Path, how: str
) -> None:
    line.submit(task("holder", noting_its_end(), str(tmp_path), "holder"))
    await line.started("holder")
    await eventually((tmp_path / "holder-began").exists)
    line.submit(gang("g6", *(part(noting_its_end(), str(tmp_path), name) for name in "ab")))
    await eventually(lambda: "accepted" in line._story("g6", 1), lambda: str(line.received.events), 60)
    await asyncio.sleep(1.0)  # enough for a member to start that may not
    if how == "cancel":
        line.link.cancel("g6", 1, force=False)
    else:
        line.link.recall("g6", 1)
    result = await line.result("g6")
    assert (result.status, result.code) == ("cancelled", "" if how == "cancel" else "RECALLED")
    assert {path.name for path in tmp_path.iterdir()} == {"holder-began"}, "one CPU was free, and nobody took it"
    line.link.cancel("holder", 1, force=True)
    await line.result("holder")
    await no_group_is_left(line, "g6")


async def test_large_arguments_objects_and_results(line: BareLink) -> None:
    def both(data: bytes, shared: bytes, number: int) -> tuple[int, int, bytes]:
        return len(data), len(shared), bytes([number]) * 3_000_000

    big = SharedObject("big", pickling.dumps(b"x" * 5_000_000))
    members = [part(both, b"y" * 2_000_000, ObjectArgument(0), number, objects=[big], cpus=0.5) for number in range(3)]
    line.submit(gang("g7", *members))
    values = await line.value("g7")
    assert [value[:2] for value in values] == [(2_000_000, 5_000_000)] * 3
    assert [value[2] for value in values] == [bytes([number]) * 3_000_000 for number in range(3)]
    await no_group_is_left(line, "g7")


async def test_the_placement_group_ends_with_its_agent(line: BareLink, fleet: LocalFleet, tmp_path: Path) -> None:
    async with bare_link(Path(fleet.config_path), "mac") as other:
        other.submit(gang("g8", *(part(noting_its_end(), str(tmp_path), name) for name in "ab")))
        await other.started("g8")
        line.submit(task("look-before", living_groups(), resources={}))
        assert await line.value("look-before") == ["rmcs-g8-1"]

    for number in range(100):
        line.submit(task(f"look-{number}", living_groups(), resources={}))
        if await line.value(f"look-{number}") == []:
            return
        await asyncio.sleep(0.1)
    pytest.fail("the placement group outlived the agent that made it")


class TestActors:
    async def test_they_serve_until_one_is_ended(self, line: BareLink) -> None:
        class Cell:
            def __init__(self, value: int) -> None:
                self.value = value

            def add(self, number: int) -> tuple[int, Any]:
                from ray_multicluster_scheduler import current

                print(f"adding {number}")
                self.value += number
                return self.value, current().member

        line.submit(gang("a1", part(Cell, 10), part(Cell, 20), of="actor"))
        await line.started("a1")
        line.submit(_of("m0", "a1", 0, "add", 1), _of("m1", "a1", 1, "add", 2))
        assert await line.value("m0") == (11, 0)
        assert await line.value("m1") == (22, 1)
        await eventually(lambda: "adding 2" in line.printed("a1"), lambda: line.printed("a1"), 10)
        assert "adding 1" in line.printed("a1")
        line.link.cancel("a1", 1, force=True)
        assert (await line.result("a1")).status == "cancelled"
        await no_group_is_left(line, "a1")

    async def test_a_crashed_member_ends_all(self, line: BareLink) -> None:
        class Fragile:
            def ping(self) -> str:
                return "pong"

            def die(self) -> None:
                import os

                os._exit(1)

        line.submit(gang("a2", part(Fragile), part(Fragile), of="actor"))
        await line.started("a2")
        line.submit(_of("m2", "a2", 1, "ping"))
        assert await line.value("m2") == "pong"
        line.submit(_of("m3", "a2", 0, "die"))
        answer = await line.result("a2")
        assert (answer.status, answer.failure, answer.member) == ("failed", FailureClass.CRASH, 0)
        line.submit(_of("m4", "a2", 1, "ping", number=1))
        assert (await line.result("m4")).status == "failed"
        await no_group_is_left(line, "a2")

    async def test_a_raising_constructor_is_the_result(self, line: BareLink) -> None:
        class Good:
            pass

        class Bad:
            def __init__(self) -> None:
                raise KeyError("missing")

        line.submit(gang("a3", part(Good), part(Bad), of="actor"))
        answer = await line.result("a3")
        assert (answer.status, answer.failure, answer.error_type) == ("failed", FailureClass.USER, "KeyError")
        assert answer.member == 1
        assert "started" not in line._story("a3", 1)
        await no_group_is_left(line, "a3")


def _of(call_id: str, gang_id: str, member: int, name: str, *args: Any, number: int = 0) -> Any:
    call = method(call_id, f"{gang_id}.{member}", name, number, *args)
    return replace(call, method=MethodCall(f"{gang_id}.{member}", 1, name, number, gang_id))
