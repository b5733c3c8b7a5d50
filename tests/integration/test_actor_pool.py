"""ActorPool over actors on two real clusters: order, unordered results, and a dead actor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ray_multicluster_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.executor.actor_pool import ActorPool
from ray_multicluster_scheduler.common.exception import ActorDiedError


def worker() -> Any:
    """A class that is pickled by value. Its method ``state`` hides the attribute of the handle."""

    class Worker:
        def __init__(self) -> None:
            self.calls = 0

        def state(self) -> int:
            return self.calls

        def where(self, value: Any, seconds: float = 0.0) -> tuple[Any, str]:
            import time

            from ray_multicluster_scheduler import current

            self.calls += 1
            time.sleep(seconds)
            return value, current().cluster

        def die(self, _: Any) -> None:
            import os

            os._exit(3)

    return Worker


@pytest.fixture
def actors(scheduler: UnifiedScheduler) -> Iterator[list[ActorHandle]]:
    """Two on each cluster."""
    made = [
        scheduler.submit_actor_async(
            worker(), resource_requirements={"CPU": 0}, preferred_cluster=cluster, fallback="wait"
        )
        for cluster in ("linux", "mac", "linux", "mac")
    ]
    for actor in made:
        actor.ready(60)
    yield made
    for actor in made:
        actor.kill()


def test_map_in_order_on_both_clusters(actors: list[ActorHandle]) -> None:
    pool = ActorPool(actors)
    seen = list(pool.map(lambda actor, value: actor.where.remote(value), range(200)))
    assert [value for value, _ in seen] == list(range(200))
    assert {cluster for _, cluster in seen} == {"linux", "mac"}


def test_map_unordered_yields_completed_results(actors: list[ActorHandle]) -> None:
    pool = ActorPool(actors)
    waits = [3.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    numbers = [
        value
        for value, _ in pool.map_unordered(
            lambda actor, number: actor.where.remote(number, waits[number]), range(len(waits))
        )
    ]
    assert sorted(numbers) == list(range(len(waits)))
    assert numbers[-1] == 0, "the slow one is last, though it was first"


def test_a_dead_actor_gets_no_further_call(actors: list[ActorHandle]) -> None:
    dying = actors[0]
    pool = ActorPool(actors)

    def call(actor: ActorHandle, value: int) -> Any:
        return actor.die.remote(value) if value == 0 else actor.where.remote(value, 0.02)

    results = pool.map(call, range(100))  # the first call goes to the first actor
    with pytest.raises(ActorDiedError):
        next(results)
    rest = list(results)
    assert [value for value, _ in rest] == list(range(1, 100)), "no other call was lost"
    left = []
    while (actor := pool.pop_idle()) is not None:
        left.append(actor)
    assert len(left) == 3
    assert dying not in left


def test_a_restarted_actor_continues(scheduler: UnifiedScheduler) -> None:
    actor = scheduler.submit_actor_async(worker(), resource_requirements={"CPU": 0}, max_restarts=1)
    actor.ready(60)
    try:
        results = ActorPool([actor]).map(
            lambda one, value: one.die.remote(value) if value == 0 else one.where.remote(value), range(5)
        )
        with pytest.raises(ActorDiedError):
            next(results)
        assert [value for value, _ in results] == [1, 2, 3, 4]
    finally:
        actor.kill()
