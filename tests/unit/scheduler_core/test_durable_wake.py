"""What is made durable at once wakes the loop once, and nobody who waits is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.control_plane.store import FleetState, Outcome
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.scheduler_core.durable_log import DurableLog
from tests.unit.lifecycle.driver import FREE, cluster


class Held:
    """A store that writes when it is asked to."""

    def __init__(self) -> None:
        self.futures: list[Future[int]] = []

    def fleet(self) -> FleetState:
        return FleetState()

    def write(self, _: object) -> Future[int]:
        self.futures.append(Future())
        return self.futures[-1]


class World:
    def __init__(self) -> None:
        self.store: Any = Held()
        self.woken: list[Callable[[], object]] = []
        self.done: list[int] = []
        machine = SchedulerMachine(Settings(**FREE), [cluster("a")])
        self.log = DurableLog(self.store, machine, self.woken.append, self.woken.append)

    def say(self, number: int) -> None:
        self.log.add_outcome(Outcome(f"t{number}", 1, b"{}"))
        self.log.after_durable(lambda: self.done.append(number))
        self.log.flush()


def test_a_group_wakes_once() -> None:
    world = World()
    for number in range(5):
        world.say(number)
    for future in world.store.futures:
        future.set_result(1)
    assert (len(world.woken), world.done) == (1, [])
    world.woken[0]()
    assert world.done == list(range(5))


def test_what_comes_after_the_loop_woke_wakes_it_again() -> None:
    world = World()
    world.say(1)
    world.say(2)
    first, second = world.store.futures
    first.set_result(1)
    world.woken[0]()
    assert world.done == [1]
    second.set_result(2)
    assert len(world.woken) == 2
    world.woken[1]()
    assert world.done == [1, 2]
