"""Simulate a workload on a fleet in virtual time: `simulate`, `compare`, `lower_bound`, and the `Simulation` they run.

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
from ray_multicluster_scheduler.simulation.history import (
    AttemptBegan,
    AttemptEnded,
    EndKind,
    EventHandled,
    FaultInjected,
    HistoryLine,
    InstructionIssued,
    NodesChanged,
    RunSetup,
)
from ray_multicluster_scheduler.simulation.report.result import Comparison, Result, Series
from ray_multicluster_scheduler.simulation.report.run_metrics import RunMetrics
from ray_multicluster_scheduler.simulation.simulated_fleet import SimulatedFleet
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_cluster import (
    Attempt,
    NodeAllocation,
    RunObserver,
    SimulatedItem,
)
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_executor import SimulatedExecutor
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_link import PYTHON
from ray_multicluster_scheduler.simulation.virtual_fleet.virtual_clock import VirtualClock
from ray_multicluster_scheduler.simulation.workloads.workload import Item, Workload

SAMPLES = 600
STALL_TIMEOUT_S = 86_400.0
"""If nothing is submitted, starts or ends for this long, the run stops and counts what still waits as unfinished."""

Observe = Callable[[HistoryLine], object]


def simulate(
    fleet: SimulatedFleet, workload: Iterable[Item], *, seed: int = 0, observe: Observe | None = None
) -> Result:
    """Run a workload on a fleet in virtual time. Same arguments, same result, to the byte.

    ``seed`` controls crashes, lost snapshots and other users' load. ``observe`` receives every line of the run's
    history. Raises ConfigurationError.
    """
    items = workload if isinstance(workload, Workload) else Workload(workload)
    return Simulation(fleet, items, seed=seed, observe=observe).run()


def compare(fleets: Mapping[str, SimulatedFleet], workload: Iterable[Item], *, seed: int = 0) -> Comparison:
    """Simulate one workload on several fleets, or on one fleet with several settings. Raises ConfigurationError."""
    items = workload if isinstance(workload, Workload) else Workload(workload)
    return Comparison({label: simulate(fleet, items, seed=seed) for label, fleet in fleets.items()})


def lower_bound(fleet: SimulatedFleet, workload: Workload, resource: str = "CPU") -> float:
    """A lower bound, in seconds, of the workload's makespan under any scheduler; 0 if there is none.

    It is the largest of: all work by all capacity, the work that requires a tag by the capacity with that tag, and the
    longest item on the fastest cluster that may run it.
    """

    def by_capacity(work: float, capacity: float) -> float:
        return work / capacity if capacity else 0.0

    def fastest(item: Item) -> float:
        speeds = [one.speed for one in fleet.clusters if all(tag in one.metadata.tags for tag in item.require_tags)]
        return max(speeds, default=float("inf"))

    bounds = [by_capacity(workload.work(resource), fleet.capacity(resource))]
    bounds += [
        by_capacity(workload.work(resource, tag), fleet.capacity(resource, tag)) for tag in workload.required_tags()
    ]
    bounds += [item.run_s / fastest(item) for item in workload]
    return max(bounds, default=0.0)


class Simulation:
    """One run. ``observe`` receives its history; without it, no history is made.

    Raises ConfigurationError when the settings name an unknown policy.
    """

    def __init__(
        self, fleet: SimulatedFleet, workload: Workload, *, seed: int = 0, observe: Observe | None = None
    ) -> None:
        self._fleet, self._workload, self._seed = fleet, workload, seed
        settings = fleet.settings
        self.clock = clock = VirtualClock()
        clusters = [one.metadata for one in fleet.clusters]
        engine = PolicyEngine(settings, local_python=PYTHON, catalog=load_policies(settings))
        self.machine = SchedulerMachine(settings, clusters, policy=engine, local_python=PYTHON)
        self.steps = 0
        self._items: dict[str, SimulatedItem] = {}
        self._unfinished = len(workload)
        self._timers: dict[str, int] = {}
        self._timers_set = 0
        self._metrics = RunMetrics(fleet, clock)
        least_s = max(workload.span_s, workload.work() / (fleet.capacity() or 1.0), 1.0)
        self._series = Series([one.name for one in fleet.clusters], least_s / SAMPLES)
        self._recorder = None if observe is None else RunRecorder(self._metrics, clock, observe, fleet)
        observer: RunObserver = self._recorder or self._metrics
        feed = self._feed
        self.executor = SimulatedExecutor(
            fleet, seed, clock, lambda at, event: clock.at(at, feed, event), self._items.__getitem__, observer
        )
        self._allocations = [(link.cluster.allocation, link.spec.total()) for link in self.executor.links.values()]
        self._handlers: dict[type[object], Callable[[Any], object]] = {
            **self.executor.handlers,
            SetTimer: self._set_timer,
            ClearTimer: lambda one: self._timers.pop(one.key, None),
            Complete: self._on_complete,
            Continue: lambda _: clock.at(clock.now, feed, Continued()),
        }

    def run(self) -> Result:
        """Run until every item has ended, or nothing has happened for a virtual day."""
        self.executor.start()
        if self._unfinished:
            self.clock.at(self._workload[0].submit_s, self._submit_next, 0)
            self.clock.at(0.0, self._sample)
            self.clock.run()
            self._sample_usage()
        figures = self._metrics.figures(self._series)
        figures["sent"] = {"attempts": self.executor.sent, "machine_steps": self.steps}
        figures["sent_ahead"] = {
            "attempts": self.executor.sent_ahead,
            "recalled": sum(link.cluster.recalled for link in self.executor.links.values()),
        }
        return Result(self._seed, figures, self._series)

    # ---- the machine

    def _feed(self, event: Event) -> None:
        self.steps += 1
        handlers = self._handlers
        instructions = self.machine.handle(event, self.clock.now)
        if self._recorder is not None:
            self._recorder.event_handled(event, instructions)
        for instruction in instructions:
            handler = handlers.get(type(instruction))
            if handler is not None:
                handler(instruction)

    def _submit_next(self, number: int) -> None:
        item = self._workload[number]
        task_id = f"t{number}"
        simulated = SimulatedItem(item.describe(task_id, self._fleet.settings), item.run_s, item.fails, item.outcome)
        self._items[task_id] = simulated
        self._metrics.item_submitted(simulated)
        if number + 1 < len(self._workload):
            self.clock.at(self._workload[number + 1].submit_s, self._submit_next, number + 1)
        self._feed(Submitted(simulated.task))

    def _on_complete(self, end: Complete) -> None:
        self._metrics.item_completed(self._items.pop(end.task_id), end)
        self.machine.forget(end.task_id)
        self._unfinished -= 1
        if not self._unfinished:
            self.clock.stop()

    def _set_timer(self, timer: SetTimer) -> None:
        self._timers_set += 1
        self._timers[timer.key] = self._timers_set
        self.clock.at(timer.at, self._fire_timer, (timer.key, self._timers_set))

    def _fire_timer(self, which: tuple[str, int]) -> None:
        key, number = which
        if self._timers.get(key) == number:
            del self._timers[key]
            self._feed(TimerFired(key))

    # ---- samples

    def _sample(self, _: object) -> None:
        self._sample_usage()
        metrics, series = self._metrics, self._series
        metrics.sample_fairness(series.every_s)
        idle = not metrics.running and metrics.submitted == len(self._workload)
        if idle and self.clock.now - metrics.last_progress > STALL_TIMEOUT_S:
            self.clock.stop()
        self.clock.after(series.every_s, self._sample)

    def _sample_usage(self) -> None:
        use = [one.used.get("CPU", 0.0) / total if total else 0.0 for one, total in self._allocations]
        self._series.sample(self.clock.now, sum(self.machine.queue_depths().values()), use)


class RunRecorder:
    """Records the history of a run with ``observe``, and forwards each observation to the next observer."""

    def __init__(
        self, next_observer: RunObserver, clock: VirtualClock, observe: Observe, fleet: SimulatedFleet
    ) -> None:
        self._next, self._clock, self._observe = next_observer, clock, observe
        settings = fleet.settings.model_dump(mode="json", exclude_defaults=True)
        observe(RunSetup(clock.now, settings, tuple(one.metadata for one in fleet.clusters)))
        for one in fleet.clusters:
            sizes = {f"{one.name}-n{number}": dict(size) for number, size in enumerate(one.nodes, start=1)}
            observe(NodesChanged(clock.now, one.name, sizes))

    def event_handled(self, event: Event, instructions: Iterable[Instruction]) -> None:
        """Record an event and the instructions that the machine answered with."""
        now = self._clock.now
        self._observe(EventHandled(now, event))
        for instruction in instructions:
            self._observe(InstructionIssued(now, instruction))

    def attempt_began(self, cluster: str, attempt: Attempt) -> None:
        parts: dict[str, Any] = {}
        for node, amounts in attempt.parts or ():
            held = parts.setdefault(node.name, {})
            for name, amount in amounts.items():
                held[name] = held.get(name, 0.0) + amount
        fence, kind = attempt.dispatch.fence, attempt.item.task.kind
        self._observe(AttemptBegan(self._clock.now, cluster, *attempt.key, fence, parts, kind))
        self._next.attempt_began(cluster, attempt)

    def attempt_ended(self, cluster: str, attempt: Attempt, how: str) -> None:
        if attempt.began_at is not None:
            self._observe(AttemptEnded(self._clock.now, cluster, *attempt.key, cast("EndKind", how)))
        self._next.attempt_ended(cluster, attempt, how)

    def fault_injected(self, what: str) -> None:
        self._observe(FaultInjected(self._clock.now, what))
        self._next.fault_injected(what)

    def nodes_changed(self, cluster: str, allocation: NodeAllocation) -> None:
        sizes = {name: dict(size) for name, size in allocation.totals().items()}
        self._observe(NodesChanged(self._clock.now, cluster, sizes))
        self._next.nodes_changed(cluster, allocation)
