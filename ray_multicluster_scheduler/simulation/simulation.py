"""Simulate a workload on a fleet in virtual time: `simulate`, `compare` and the `Simulation` that they run.

A `Simulation` drives the production `SchedulerMachine` with a simulated executor and a virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from ray_multicluster_scheduler.scheduler.lifecycle.events import Continued, Event, Submitted, TimerFired
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    ClearTimer,
    Complete,
    Continue,
    Instruction,
    SetTimer,
)
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from ray_multicluster_scheduler.scheduler.scheduler_core.installed_policies import load_policies
from ray_multicluster_scheduler.simulation.history import Began, Fault, Fed, How, Line, Nodes, Over, Setup, Told
from ray_multicluster_scheduler.simulation.model import SimulatedFleet
from ray_multicluster_scheduler.simulation.report.result import Comparison, Result, Series
from ray_multicluster_scheduler.simulation.report.run_metrics import Meter
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_cluster import Attempt, Room, Watcher, Work
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_executor import SimulatedHands
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_link import PYTHON
from ray_multicluster_scheduler.simulation.virtual_fleet.virtual_clock import Clockwork
from ray_multicluster_scheduler.simulation.workloads.workload import Item, Workload


def lower_bound(fleet: SimulatedFleet, workload: Workload, resource: str = "CPU") -> float:
    """Seconds that the workload takes at the least, whoever schedules it: the work by all capacity, the work that
    requires a tag by the capacity with that tag, and the longest item where it runs fastest. 0 where nothing can be
    said."""
    bounds = [_by_capacity(workload.work(resource), fleet.capacity(resource))]
    bounds += [
        _by_capacity(workload.work(resource, tag), fleet.capacity(resource, tag)) for tag in workload.required_tags()
    ]
    bounds += [item.run_s / _fastest(fleet, item) for item in workload]
    return max(bounds, default=0.0)


def _by_capacity(work: float, capacity: float) -> float:
    return work / capacity if capacity else 0.0


def _fastest(fleet: SimulatedFleet, item: Item) -> float:
    speeds = [one.speed for one in fleet.clusters if all(tag in one.metadata.tags for tag in item.require_tags)]
    return max(speeds, default=float("inf"))


class Recorder:
    """Stands before the meter, and tells ``observe`` what it hears."""

    def __init__(
        self, next_one: Watcher, clock: Clockwork, observe: Callable[[Line], object], fleet: SimulatedFleet
    ) -> None:
        self._next, self._clock, self._observe = next_one, clock, observe
        settings = fleet.settings.model_dump(mode="json", exclude_defaults=True)
        observe(Setup(clock.now, settings, tuple(one.metadata for one in fleet.clusters)))
        for one in fleet.clusters:
            sizes = {f"{one.name}-n{number}": dict(size) for number, size in enumerate(one.nodes, start=1)}
            observe(Nodes(clock.now, one.name, sizes))

    def fed(self, event: Event, instructions: Iterable[Instruction]) -> None:
        """The machine was told this, and answered that."""
        now = self._clock.now
        self._observe(Fed(now, event))
        for instruction in instructions:
            self._observe(Told(now, instruction))

    def began(self, cluster: str, attempt: Attempt) -> None:
        parts: dict[str, Any] = {}
        for node, amounts in attempt.parts or ():
            held = parts.setdefault(node.name, {})
            for name, amount in amounts.items():
                held[name] = held.get(name, 0.0) + amount
        order = attempt.order
        self._observe(
            Began(self._clock.now, cluster, order.task_id, order.attempt, order.fence, parts, attempt.work.task.kind)
        )
        self._next.began(cluster, attempt)

    def over(self, cluster: str, attempt: Attempt, how: str) -> None:
        if attempt.began_at is not None:
            order = attempt.order
            self._observe(Over(self._clock.now, cluster, order.task_id, order.attempt, cast("How", how)))
        self._next.over(cluster, attempt, how)

    def trouble(self, what: str) -> None:
        self._observe(Fault(self._clock.now, what))
        self._next.trouble(what)

    def nodes(self, cluster: str, room: Room) -> None:
        self._observe(Nodes(self._clock.now, cluster, {name: dict(size) for name, size in room.totals().items()}))
        self._next.nodes(cluster, room)


SAMPLES = 600
PATIENCE_S = 86_400.0
"""When nothing runs, comes or ends for so long, what still waits is taken to wait for ever."""

Observe = Callable[[Line], object]


class Simulation:
    """Made for one run. ``observe`` is given every line of its history; without it, none is made.

    Raises ConfigurationError when the settings name a policy that is not there.
    """

    def __init__(
        self, fleet: SimulatedFleet, workload: Workload, *, seed: int = 0, observe: Observe | None = None
    ) -> None:
        self._fleet, self._workload, self._seed = fleet, workload, seed
        settings = fleet.settings
        self.clock = clock = Clockwork()
        clusters = [one.metadata for one in fleet.clusters]
        engine = PolicyEngine(settings, local_python=PYTHON, catalog=load_policies(settings))
        self.machine = SchedulerMachine(settings, clusters, policy=engine, local_python=PYTHON)
        self.steps = 0
        self._works: dict[str, Work] = {}
        self._left = len(workload)
        self._timers: dict[str, int] = {}
        self._timers_set = 0
        self._meter = Meter(fleet, clock)
        self._series = Series([one.name for one in fleet.clusters], self._pace())
        watcher: Watcher = self._meter
        self._feed: Callable[[Event], None] = self._feed_machine
        if observe is not None:
            watcher = self._recorder = Recorder(self._meter, clock, observe, fleet)
            self._feed = self._feed_and_record
        feed = self._feed
        self.hands = SimulatedHands(
            fleet, seed, clock, lambda at, event: clock.at(at, feed, event), self._works.__getitem__, watcher
        )
        self._rooms = [(near.far.room, near.spec.total()) for near in self.hands.clusters.values()]
        self._deeds: dict[type[object], Callable[[Any], object]] = {
            **self.hands.deeds,
            SetTimer: self._set_timer,
            ClearTimer: lambda one: self._timers.pop(one.key, None),
            Complete: self._complete,
            Continue: lambda _: clock.at(clock.now, feed, Continued()),
        }

    def run(self) -> Result:
        """To the end: every item is over, or will wait for ever."""
        self.hands.begin()
        if self._left:
            self.clock.at(self._workload[0].submit_s, self._arrives, 0)
            self.clock.at(0.0, self._sample)
            self.clock.run()
            self._look()
        far = [near.far for near in self.hands.clusters.values()]
        figures = self._meter.figures(self._series)
        figures["sent"] = {"attempts": self.hands.sent, "machine_steps": self.steps}
        figures["sent_ahead"] = {
            "attempts": self.hands.sent_ahead,
            "recalled": sum(one.taken_back for one in far),
        }
        return Result(self._seed, figures, self._series)

    # ---- the machine

    def _feed_machine(self, event: Event) -> None:
        self.steps += 1
        deeds = self._deeds
        for instruction in self.machine.handle(event, self.clock.now):
            deed = deeds.get(type(instruction))
            if deed is not None:
                deed(instruction)

    def _feed_and_record(self, event: Event) -> None:
        self.steps += 1
        instructions = self.machine.handle(event, self.clock.now)
        self._recorder.fed(event, instructions)
        for instruction in instructions:
            deed = self._deeds.get(type(instruction))
            if deed is not None:
                deed(instruction)

    def _arrives(self, number: int) -> None:
        item = self._workload[number]
        task_id = f"t{number}"
        work = self._works[task_id] = Work(item.describe(task_id, self._fleet.settings), item.run_s, item.fails)
        self._meter.arrived(work)
        if number + 1 < len(self._workload):
            self.clock.at(self._workload[number + 1].submit_s, self._arrives, number + 1)
        self._feed(Submitted(work.task))

    def _complete(self, end: Complete) -> None:
        self._meter.completed(self._works.pop(end.task_id), end)
        self.machine.forget(end.task_id)
        self._left -= 1
        if not self._left:
            self.clock.stop()

    def _set_timer(self, timer: SetTimer) -> None:
        self._timers_set += 1
        self._timers[timer.key] = self._timers_set
        self.clock.at(timer.at, self._fire, (timer.key, self._timers_set))

    def _fire(self, which: tuple[str, int]) -> None:
        key, number = which
        if self._timers.get(key) == number:
            del self._timers[key]
            self._feed(TimerFired(key))

    # ---- looking

    def _pace(self) -> float:
        """Seconds between two samples, by how long the run will last at the least."""
        capacity = self._fleet.capacity() or 1.0
        least = max(self._workload.span_s, self._workload.work() / capacity, 1.0)
        return least / SAMPLES

    def _sample(self, _: object) -> None:
        self._look()
        meter, series = self._meter, self._series
        meter.judge_fairness(series.every_s)
        stuck = not meter.running and meter.submitted == len(self._workload)
        if stuck and self.clock.now - meter.last_progress > PATIENCE_S:
            self.clock.stop()
        self.clock.after(series.every_s, self._sample)

    def _look(self) -> None:
        use = [room.used.get("CPU", 0.0) / total if total else 0.0 for room, total in self._rooms]
        self._series.sample(self.clock.now, sum(self.machine.queue_depths().values()), use)


def simulate(
    fleet: SimulatedFleet, workload: Iterable[Item], *, seed: int = 0, observe: Observe | None = None
) -> Result:
    """Run a workload on a fleet in virtual time. Same arguments, same result, to the byte.

    ``seed`` is for what the fleet does by chance: crashes, lost snapshots, other people's load. ``observe`` is given
    every line of the run's history. Raises ConfigurationError.
    """
    items = workload if isinstance(workload, Workload) else Workload(workload)
    return Simulation(fleet, items, seed=seed, observe=observe).run()


def compare(fleets: Mapping[str, SimulatedFleet], workload: Iterable[Item], *, seed: int = 0) -> Comparison:
    """The same workload on several fleets, or on one fleet with several settings. Raises ConfigurationError."""
    items = workload if isinstance(workload, Workload) else Workload(workload)
    return Comparison({label: simulate(fleet, items, seed=seed) for label, fleet in fleets.items()})
