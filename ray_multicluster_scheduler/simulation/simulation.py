"""Simulation: one run. The production SchedulerMachine, simulated hands, a workload, and virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray_multicluster_scheduler.scheduler.lifecycle.events import Continued, Event, Submitted, TimerFired
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import ClearTimer, Complete, Continue, SetTimer
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from ray_multicluster_scheduler.scheduler.scheduler_core.installed_policies import load_policies
from ray_multicluster_scheduler.simulation.history import Line
from ray_multicluster_scheduler.simulation.model import SimulatedFleet
from ray_multicluster_scheduler.simulation.recorder import Recorder
from ray_multicluster_scheduler.simulation.report.result import Result
from ray_multicluster_scheduler.simulation.report.run_metrics import Meter
from ray_multicluster_scheduler.simulation.report.series import Series
from ray_multicluster_scheduler.simulation.virtual_fleet.attempts import Work
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_cluster import Watcher
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_executor import SimulatedHands
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_link import PYTHON
from ray_multicluster_scheduler.simulation.virtual_fleet.virtual_clock import Clockwork
from ray_multicluster_scheduler.simulation.workloads.workload import Workload

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
