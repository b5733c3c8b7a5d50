"""submit_gang on real clusters: members run together and end together, and leave no resources."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler import (
    ActorDiedError,
    NoFeasibleClusterError,
    TaskCancelledError,
    TaskHandle,
    TaskState,
    UnifiedScheduler,
    get,
    kill,
    member,
    put,
    submit_gang,
    submit_gang_async,
    submit_task,
    submit_task_async,
)
from tests.support.by_value_functions import all_idle, full
from tests.support.gangs import living_groups, meeting, noting_its_end
from tests.support.mac_cluster import until

pytestmark = pytest.mark.usefixtures("scheduler")
ON_MAC: Any = {"preferred_cluster": "mac", "fallback": "wait"}


def groups_on(cluster: str) -> list[str]:
    found: list[str] = submit_task(living_groups(), (), None, {"CPU": 0}, preferred_cluster=cluster, fallback="wait")
    return found


def running(members: Any, **options: Any) -> TaskHandle:
    handle = submit_gang_async(members, **options)
    assert isinstance(handle, TaskHandle)
    until(lambda: handle.state is TaskState.RUNNING, 60)
    return handle


class TestTasks:
    def test_members_run_at_the_same_time_on_one_cluster(self, tmp_path: Path) -> None:
        """Each waits for the other, so they end only if they run at the same time."""
        members = [member(meeting(), str(tmp_path), name, of=2) for name in ("a", "b")]
        assert submit_gang(members) == ["a", "b"]

    def test_members_know_their_gang_and_rank(self) -> None:
        def who() -> tuple[str, int, int | None]:
            from ray_multicluster_scheduler import current

            item = current()
            return item.id, item.attempt, item.member

        handle = submit_gang_async([who, who], name="both", **ON_MAC)
        assert isinstance(handle, TaskHandle)
        assert handle.result(60) == [(handle.id, 1, 0), (handle.id, 1, 1)]
        explanation = handle.explain()
        assert (explanation["kind"], explanation["name"], explanation["cluster"]) == ("gang", "both", "mac")
        assert [one["requirements"] for one in explanation["gang"]["members"]] == [{"CPU": 1.0}] * 2

    def test_a_gang_too_large_for_all_clusters_fails_at_once_with_the_table(self, scheduler: UnifiedScheduler) -> None:
        all_idle(scheduler)
        with pytest.raises(
            NoFeasibleClusterError, match=r"linux: its 3 members \(3 × 1 CPU; PACK\) never fit"
        ) as raised:
            submit_gang([member(len, "x") for _ in range(3)])
        assert "mac: its 3 members" in str(raised.value)

    def test_it_waits_until_the_cluster_has_room(self, tmp_path: Path) -> None:
        meet = tmp_path / "meet"
        meet.mkdir()
        with full(tmp_path) as go:
            handle = submit_gang_async([member(meeting(), str(meet), name, of=2) for name in "ab"], **ON_MAC)
            assert isinstance(handle, TaskHandle)
            until(lambda: handle.state is TaskState.QUEUED, 60)
            until(lambda: handle.explain()["code"] == "NO_CAPACITY", 60)
            go.touch()
            assert handle.result(60) == ["a", "b"]

    def test_one_member_fails_and_the_other_is_ended(self, tmp_path: Path) -> None:
        def fail(folder: str) -> None:
            import pathlib
            import time

            while not (pathlib.Path(folder) / "slow-began").exists():
                time.sleep(0.02)
            raise ValueError("no more")

        with pytest.raises(ValueError, match="no more") as raised:
            submit_gang([member(noting_its_end(), str(tmp_path), "slow"), member(fail, str(tmp_path))], **ON_MAC)
        assert "raised in member 1 of gang-" in raised.value.__notes__[0]
        assert (tmp_path / "slow-ended").exists()
        assert groups_on("mac") == []

    def test_a_crashed_worker_retries_the_whole_gang(self, tmp_path: Path) -> None:
        def die_once(folder: str) -> int:
            import os
            import pathlib

            from ray_multicluster_scheduler import current

            if current().attempt == 1:
                os._exit(1)
            (pathlib.Path(folder) / "second").touch()
            return current().attempt

        def other(folder: str) -> int:
            import pathlib
            import time

            from ray_multicluster_scheduler import current

            while not (pathlib.Path(folder) / "second").exists():
                time.sleep(0.02)
            return current().attempt

        handle = submit_gang_async([member(die_once, str(tmp_path)), member(other, str(tmp_path))], **ON_MAC)
        assert isinstance(handle, TaskHandle)
        assert handle.result(90) == [2, 2]
        codes = [step["code"] for step in handle.explain()["history"]]
        assert "WORKER_DIED" in codes

    def test_cancel_ends_all_members(self, tmp_path: Path) -> None:
        handle = running([member(noting_its_end(), str(tmp_path), name) for name in "ab"], **ON_MAC)
        # A member that is ended before its code began notes neither.
        until(lambda: {"a-began", "b-began"} <= {path.name for path in tmp_path.iterdir()}, 30)
        handle.cancel()
        with pytest.raises(TaskCancelledError):
            handle.result(30)
        assert {"a-ended", "b-ended"} <= {path.name for path in tmp_path.iterdir()}
        assert groups_on("mac") == []

    def test_handles_and_values_that_were_put_are_arguments(self) -> None:
        def add(*numbers: int) -> int:
            return sum(numbers)

        ten, shared = submit_task_async(add, (4, 6)), put(100)
        handle = submit_gang_async([member(add, ten, 1), member(add, shared, ten, 2)])
        assert isinstance(handle, TaskHandle)
        assert handle.result(60) == [11, 112]
        assert get(submit_task_async(sum, (handle,)), 60) == 123, "the list itself is an argument like any other"

    async def test_it_can_be_awaited(self) -> None:
        handle = submit_gang_async([member(len, "abc"), member(len, "")])
        assert isinstance(handle, TaskHandle)
        assert await asyncio.wait_for(handle, 60) == [3, 0]

    def test_members_print_to_the_gangs_output(self) -> None:
        def shout(word: str) -> None:
            print(word)

        handle = submit_gang_async([member(shout, "left"), member(shout, "right")])
        assert isinstance(handle, TaskHandle)
        handle.result(60)
        assert sorted(handle.logs().split()) == ["left", "right"]


class TestActors:
    def test_they_serve_together_and_end_together(self) -> None:
        class Counter:
            def __init__(self, value: int) -> None:
                self.value = value

            def add(self, number: int) -> int:
                self.value += number
                return self.value

        first, second = submit_gang([member(Counter, 10), member(Counter, 20)], **ON_MAC)
        assert (first.cluster, second.cluster) == ("mac", "mac")
        assert get([first.add.remote(1), second.add.remote(2), first.add.remote(1)], 60) == [11, 22, 12]
        assert submit_task(lambda actor: get(actor.add.remote(5)), (second,), None, {"CPU": 0}) == 27
        kill(first)
        until(lambda: second.state is TaskState.CANCELLED, 30)
        with pytest.raises(ActorDiedError):
            get(second.add.remote(1), 30)
        assert groups_on("mac") == []

    def test_a_crashed_member_ends_all(self) -> None:
        class Fragile:
            def die(self) -> None:
                import os

                os._exit(1)

        first, second = submit_gang([Fragile, Fragile], **ON_MAC)
        first.die.remote()
        until(lambda: second.state is TaskState.FAILED, 30)
        assert "member 0 (" in second.explain()["sentence"]

    def test_a_raising_constructor_raises_for_the_caller(self) -> None:
        class Good:
            pass

        class Bad:
            def __init__(self) -> None:
                raise KeyError("missing")

        with pytest.raises(KeyError, match="missing"):
            submit_gang([Good, Bad], **ON_MAC)
        assert groups_on("mac") == []
