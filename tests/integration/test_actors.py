"""Actors on real clusters: order, names, restarts, and every way in which one can end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler import (
    ClusterLostError,
    ConfigurationError,
    RemoteError,
    TaskState,
    TaskTimeoutError,
    UnifiedScheduler,
    UnknownItemError,
    get,
    wait,
)
from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.common.exception import ActorDiedError
from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.mac_cluster import config_of_mac, until


def tally() -> Any:
    """A class that is pickled by value."""

    class Tally:
        def __init__(self, start: int = 0) -> None:
            self.seen: list[Any] = []
            self.start = start

        def add(self, what: Any) -> int:
            self.seen.append(what)
            return self.start + len(self.seen)

        def everything(self) -> list[Any]:
            return self.seen

        def where(self) -> tuple[str, str, int]:
            from ray_multicluster_scheduler import current

            item = current()
            return item.cluster, item.id, item.attempt

        def fail(self) -> None:
            raise ValueError("not today")

        def die(self) -> None:
            import os

            os._exit(3)

        def leave(self) -> None:
            import ray

            ray.actor.exit_actor()

        def say(self, text: str) -> None:
            print(text)

        def held(self) -> dict[str, float]:
            import ray

            return ray.get_runtime_context().get_assigned_resources()

    return Tally


@pytest.fixture
def made(scheduler: UnifiedScheduler) -> Iterator[Any]:
    """Creates actors, and kills them after the test."""
    actors: list[ActorHandle] = []

    def make(cls: Any = None, *args: Any, **options: Any) -> ActorHandle:
        actor = scheduler.submit_actor(cls or tally(), args, **options)
        actors.append(actor)
        return actor

    yield make
    for actor in actors:
        scheduler.kill(actor)
    until(lambda: all(actor._item.outcome is not None for actor in actors))


class TestCalls:
    def test_a_simple_actor(self, made: Any) -> None:
        actor = made(None, 10)
        assert actor.state is TaskState.RUNNING
        handle = actor.add.remote("x")
        assert handle.result(30) == 11
        assert handle.cluster == actor.cluster
        assert actor.where.remote().result(30) == (actor.cluster, actor.id, 1)

    def test_a_thousand_in_a_row_keep_their_order(self, made: Any) -> None:
        actor = made()
        handles = [actor.add.remote(n) for n in range(1000)]
        assert get(handles, timeout=60) == list(range(1, 1001))
        assert actor.everything.remote().result(30) == list(range(1000))

    def test_each_thread_keeps_its_order_while_other_clusters_are_used(
        self, scheduler: UnifiedScheduler, made: Any
    ) -> None:
        """Calls to an actor of each cluster, from four threads, with tasks on both clusters in between."""
        actors = {name: made(preferred_cluster=name, fallback="wait") for name in ("linux", "mac")}

        def work(worker: int) -> None:
            for n in range(50):
                for actor in actors.values():
                    actor.add.remote((worker, n))
                if n % 10 == 0:
                    assert scheduler.submit_task(lambda x: x, (n,)) == n

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name, actor in actors.items():
            assert actor.cluster == name
            seen = actor.everything.remote().result(60)
            assert len(seen) == 200
            for worker in range(4):
                assert [n for who, n in seen if who == worker] == list(range(50))

    def test_handles_are_arguments_both_ways(self, scheduler: UnifiedScheduler, made: Any) -> None:
        actor = made()
        slow = scheduler.submit_task_async(lambda: __import__("time").sleep(0.3) or "slow")
        first = actor.add.remote(slow)
        second = actor.add.remote("quick")
        assert scheduler.submit_task(lambda a, b: a + b, (first, second)) == 3
        assert actor.everything.remote().result(30) == ["slow", "quick"]

    def test_user_exceptions_keep_their_type(self, made: Any) -> None:
        actor = made()
        with pytest.raises(ValueError, match="not today") as caught:
            actor.fail.remote().result(30)
        assert "raise ValueError" in str(caught.value.__cause__)
        assert actor.add.remote(1).result(30) == 1, "it lives on"
        with pytest.raises(AttributeError, match="did you mean add"):
            actor.ad.remote(1)
        with pytest.raises(TypeError):
            actor.add.remote(1, 2, 3).result(30)

    def test_several_values_wait_and_await(self, made: Any) -> None:
        actor = made()
        _, cluster_id, _ = actor.where.options(num_returns=3).remote()
        assert cluster_id.result(30) == actor.id
        handles = [actor.add.remote(n) for n in range(5)]
        over, rest = wait(handles, num_returns=5, timeout=30)
        assert (len(over), rest) == (5, [])

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_several_values_of_any_kind(self, made: Any, asynchronous: bool) -> None:
        """As with tasks: any sequence of that length is split, and another length is an error."""

        class Plain:
            def give(self, value: Any) -> Any:
                return value

        class Waiting:
            async def give(self, value: Any) -> Any:
                return value

        actor = made(Waiting if asynchronous else Plain)
        two = actor.give.options(num_returns=2)
        for value in ({1, 2}, {1: "a", 2: "b"}, [1, 2]):
            one, other = two.remote(value)
            assert (one.result(30), other.result(30)) == (1, 2)
            assert actor.give.remote(other).result(30) == 2
        lost, _ = two.remote([1, 2, 3])
        with pytest.raises(ValueError, match=r"give returned 3 values, but num_returns is 2"):
            lost.result(30)
        assert actor.give.remote(4).result(30) == 4

    async def test_await(self, made: Any) -> None:
        actor = made()
        assert await actor is actor
        assert await actor.add.remote(1) == 1

    def test_coroutines_run_concurrently(self, made: Any) -> None:
        class Meeting:
            def __init__(self) -> None:
                import asyncio

                self.there = asyncio.Event()

            async def come(self) -> str:
                self.there.set()
                return "came"

            async def wait(self) -> str:
                await self.there.wait()
                return "met"

        actor = made(Meeting)
        waiting = actor.wait.remote()
        assert actor.come.remote().result(30) == "came"
        assert waiting.result(30) == "met"

    def test_output_is_kept_per_actor(self, made: Any) -> None:
        actor = made()
        get([actor.say.remote("one"), actor.say.remote("two")], timeout=30)
        until(lambda: actor.logs() == "one\ntwo\n")

    def test_large_arguments_and_results(self, scheduler: UnifiedScheduler, made: Any) -> None:
        actor = made()
        big = b"x" * 5_000_000
        assert actor.add.remote(big).result(60) == 1
        assert [len(one) for one in actor.everything.remote().result(60)] == [5_000_000]
        shared = scheduler.put(big)
        assert get([actor.add.remote(shared) for _ in range(3)], timeout=60) == [2, 3, 4]

    def test_an_asyncio_error_of_a_method_does_not_end_the_actor(self, made: Any) -> None:
        class Hasty:
            async def give_up(self) -> None:
                import asyncio

                inner = asyncio.ensure_future(asyncio.sleep(10))
                inner.cancel()
                await inner

            async def count(self) -> int:
                return 1

        actor = made(Hasty)
        with pytest.raises(RemoteError, match="CancelledError"):
            actor.give_up.remote().result(30)
        assert actor.count.remote().result(30) == 1


class TestPlaces:
    def test_its_resources_are_reserved_until_its_end(self, scheduler: UnifiedScheduler, made: Any) -> None:
        here = {"preferred_cluster": "mac", "fallback": "wait"}
        actor = made(resource_requirements={"CPU": 2}, **here)
        assert actor.held.remote().result(30) == {"CPU": 2.0}
        assert actor.explain()["actor"]["holds"] == {"CPU": 2.0}
        waiting = scheduler.submit_task_async(lambda: 1, **here)
        plan = scheduler.plan({"CPU": 1}, **here)
        assert plan.cluster is None
        assert not waiting.done()
        actor.kill()
        assert waiting.result(60) == 1

    def test_by_default_it_holds_no_resources(self, scheduler: UnifiedScheduler, made: Any) -> None:
        here = {"preferred_cluster": "mac", "fallback": "wait"}
        actors = [made(**here) for _ in range(3)]
        assert actors[0].held.remote().result(30).get("CPU", 0) == 0
        assert scheduler.submit_task(lambda: 2, resource_requirements={"CPU": 2}, **here) == 2

    def test_a_task_with_an_actor_goes_to_its_cluster(self, scheduler: UnifiedScheduler, made: Any) -> None:
        for cluster in ("linux", "mac"):
            actor = made(preferred_cluster=cluster, fallback="wait")

            def use(whom: Any) -> tuple[str, int]:
                from ray_multicluster_scheduler import current

                return current().cluster, whom["actor"].add.remote("from a task").result()

            assert scheduler.submit_task(use, ({"actor": actor},)) == (cluster, 1)
            assert actor.everything.remote().result(30) == ["from a task"]

    def test_a_task_returns_an_actor_handle(self, scheduler: UnifiedScheduler, made: Any) -> None:
        actor = made()
        assert scheduler.submit_task(lambda whom: [whom], (actor,))[0] is actor


class TestMaking:
    def test_an_error_of_the_constructor(self, scheduler: UnifiedScheduler) -> None:
        class Broken:
            def __init__(self) -> None:
                raise KeyError("nothing there")

            def work(self) -> None: ...

        with pytest.raises(KeyError, match="nothing there"):
            scheduler.submit_actor(Broken)
        actor = scheduler.submit_actor_async(Broken)
        with pytest.raises(ActorDiedError, match="nothing there") as caught:
            actor.work.remote().result(60)
        assert isinstance(caught.value.__cause__, KeyError)

    def test_a_constructor_timeout(self, scheduler: UnifiedScheduler) -> None:
        class Slow:
            def __init__(self) -> None:
                import time

                time.sleep(100)

        with pytest.raises(TaskTimeoutError, match="ready_timeout|not ready after"):
            scheduler.submit_actor(Slow, ready_timeout=2)
        row = scheduler.list_actors()[-1]
        until(lambda: scheduler.list_actors()[-1]["state"] in ("FAILED", "CANCELLED"))
        assert row["class"].endswith("Slow")

    def test_calls_before_the_actor_is_ready(self, scheduler: UnifiedScheduler) -> None:
        actor = scheduler.submit_actor_async(tally())
        handles = [actor.add.remote(n) for n in range(20)]
        assert get(handles, timeout=60) == list(range(1, 21))
        actor.kill()


class TestNames:
    def test_named(self, scheduler: UnifiedScheduler, made: Any) -> None:
        actor = made(name="the-one")
        assert scheduler.get_actor("the-one") is actor
        with pytest.raises(ConfigurationError, match="'the-one' already"):
            scheduler.submit_actor(tally(), name="the-one")
        assert scheduler.submit_actor(tally(), name="the-one", get_if_exists=True) is actor
        with pytest.raises(UnknownItemError, match="no living actor 'nobody'"):
            scheduler.get_actor("nobody")
        assert {"id": actor.id, "name": "the-one", "state": "RUNNING"}.items() <= scheduler.list_actors()[-1].items()


class TestEnds:
    def test_killed(self, scheduler: UnifiedScheduler) -> None:
        actor = scheduler.submit_actor(tally())
        before = actor.add.remote(1)
        assert before.result(30) == 1
        scheduler.kill(actor)
        with pytest.raises(ActorDiedError, match="was killed"):
            actor.add.remote(2).result(30)
        assert actor.state is TaskState.CANCELLED
        other = scheduler.submit_actor(tally())
        scheduler.cancel(other.id)
        until(lambda: other.state is TaskState.CANCELLED)

    def test_an_actor_exits_by_itself(self, scheduler: UnifiedScheduler) -> None:
        actor = scheduler.submit_actor(tally())
        actor.leave.remote()
        until(lambda: actor.state is TaskState.SUCCEEDED)
        with pytest.raises(ActorDiedError):
            actor.add.remote(1).result(30)

    def test_an_actor_crashes(self, scheduler: UnifiedScheduler) -> None:
        actor = scheduler.submit_actor(tally())
        died, after = actor.die.remote(), actor.add.remote(1)
        for handle in (died, after):
            with pytest.raises(ActorDiedError):
                handle.result(60)
        until(lambda: actor.state is TaskState.FAILED)

    def test_it_is_restarted_on_the_same_cluster(self, made: Any) -> None:
        actor = made(max_restarts=1)
        cluster = actor.cluster
        actor.add.remote(1).result(30)
        with pytest.raises(ActorDiedError):
            actor.die.remote().result(60)
        until(lambda: actor.attempt == 2)
        assert actor.add.remote("again").result(60) == 1, "it lost its state"
        assert actor.where.remote().result(30) == (cluster, actor.id, 2)
        with pytest.raises(ActorDiedError):
            actor.die.remote().result(60)
        until(lambda: actor.state is TaskState.FAILED)

    def test_its_cluster_dies(self, fleet: LocalFleet, tmp_path: Path) -> None:
        config = config_of_mac(fleet, tmp_path, heartbeat_s=1, lease_s=8, lost_after_s=18)
        with UnifiedScheduler(config) as scheduler:
            actor = scheduler.submit_actor(tally())
            again = scheduler.submit_actor(tally(), max_restarts=1)
            assert get([actor.add.remote(1), again.add.remote(1)], timeout=30) == [1, 1]
            fleet.kill("mac")
            try:
                in_flight = [actor.add.remote(2), again.add.remote(2)]
            finally:
                fleet.start("mac")
            until(lambda: actor.state is TaskState.FAILED, 90)
            for handle in in_flight:
                with pytest.raises((ActorDiedError, ClusterLostError)):
                    handle.result(60)
            with pytest.raises(ActorDiedError):
                actor.add.remote(3).result(30)
            until(lambda: again.state is TaskState.RUNNING and again.attempt > 1, 90)
            assert again.add.remote("x").result(60) == 1
            scheduler.kill(again)
