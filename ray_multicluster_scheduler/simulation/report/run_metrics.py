"""Collect metrics during a simulated run and sum them up as the figures of its result."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import reduce
from typing import Any

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.model.resources import Resources, ResourceShape, describe, plus
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete
from ray_multicluster_scheduler.simulation.report.result import DIGITS, Series, jain, spread
from ray_multicluster_scheduler.simulation.simulated_fleet import SimulatedFleet
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_cluster import Attempt, NodeAllocation, SimulatedItem
from ray_multicluster_scheduler.simulation.virtual_fleet.virtual_clock import VirtualClock

_LOST = ("crashed", "lease", "died")


class RunMetrics:
    """Observes a run. The wait of an item is the time from its submission until its user code first starts."""

    def __init__(self, fleet: SimulatedFleet, clock: VirtualClock) -> None:
        self._clock = clock
        self._fleet_total = {
            name: sum(one.total(name) for one in fleet.clusters)
            for name in {name for one in fleet.clusters for node in one.nodes for name in node}
        }
        self._weights = {owner: limits.weight for owner, limits in fleet.settings.owners.items()}
        self._waits: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._all_waits: list[float] = []
        self._shares: dict[ResourceShape, float] = {}
        self._shape_names: dict[ResourceShape, str] = {}
        self._busy: dict[str, dict[str, float]] = {one.name: {} for one in fleet.clusters}
        self._capacity = {one.name: _CapacityIntegral(clock, one.nodes) for one in fleet.clusters}
        self._finished_on: Counter[str | None] = Counter()
        self._attempt_ends: Counter[str] = Counter()
        self._final_states: Counter[str] = Counter()
        self._items_survived = self._faults = 0
        self.waiting: Counter[str] = Counter()
        self.holding: dict[str, float] = defaultdict(float)
        self.running = 0
        self.submitted = 0
        self.last_progress = 0.0
        self._first_submit = self._last_end = 0.0
        self._fair = [0.0, 0.0]

    # ---- observations

    def item_submitted(self, item: SimulatedItem) -> None:
        if not self.submitted:
            self._first_submit = self._clock.now
        self.submitted += 1
        self.waiting[item.task.owner] += 1
        self.last_progress = self._clock.now

    def attempt_began(self, cluster: str, attempt: Attempt) -> None:
        item, now = attempt.item, self._clock.now
        self.running += 1
        self.last_progress = now
        self.holding[item.task.owner] += self._share(item)
        if item.first_began_at is None:
            item.first_began_at = now
            task, wait = item.task, now - item.task.submitted_at
            self.waiting[task.owner] -= 1
            self._all_waits.append(wait)
            self._waits["owner", task.owner].append(wait)
            self._waits["priority", str(task.priority)].append(wait)
            self._waits["shape", self._shape_name(item)].append(wait)

    def attempt_ended(self, cluster: str, attempt: Attempt, how: str) -> None:
        began_at = attempt.began_at
        if began_at is None:
            return  # it never started there
        now, item = self._clock.now, attempt.item
        self.running -= 1
        self.last_progress = now
        self._attempt_ends[how] += 1
        self.holding[item.task.owner] -= self._share(item)
        if how in _LOST:
            item.lost_attempts += 1
        busy = self._busy[cluster]
        for _, amounts in attempt.parts or ():
            for name, amount in amounts.items():
                busy[name] = busy.get(name, 0.0) + amount * (now - began_at)

    def nodes_changed(self, cluster: str, allocation: NodeAllocation) -> None:
        self._capacity[cluster].resize(allocation.total())

    def fault_injected(self, what: str) -> None:
        self._faults += 1

    def item_completed(self, item: SimulatedItem, end: Complete) -> None:
        self._final_states[end.state.value] += 1
        self._last_end = self.last_progress = self._clock.now
        if item.first_began_at is None:
            self.waiting[item.task.owner] -= 1
        if end.state is TaskState.SUCCEEDED:
            self._finished_on[end.cluster] += 1
            self._items_survived += item.lost_attempts > 0

    def sample_fairness(self, seconds: float) -> None:
        """Add the current fairness index of the owners who have waiting items, weighted by time."""
        wanting = [owner for owner, count in self.waiting.items() if count > 0]
        if len(wanting) > 1:
            index = jain([max(0.0, self.holding[owner]) / self._weights.get(owner, 1.0) for owner in wanting])
            if index is not None:
                self._fair[0] += index * seconds
                self._fair[1] += seconds

    # ---- figures

    def figures(self, series: Series) -> dict[str, Any]:
        """All figures of the run as plain data. The same run gives the same bytes."""
        done = self._final_states
        return {
            "items": {
                "submitted": self.submitted,
                "succeeded": done["SUCCEEDED"],
                "failed": done["FAILED"],
                "cancelled": done["CANCELLED"],
                "unfinished": self.submitted - done.total(),
            },
            "makespan_s": round(self._last_end - self._first_submit, DIGITS),
            "wait_s": spread(self._all_waits),
            **{f"wait_s_by_{what}": self._waits_by(what) for what in ("owner", "priority", "shape")},
            "clusters": {name: self._cluster(name) for name in self._busy},
            "fairness": round(self._fair[0] / self._fair[1], DIGITS) if self._fair[1] else None,
            "queue": {"mean": series.mean_queue(), "max": series.most_queued()},
            "failures": {
                "faults": self._faults,
                "user_errors": self._attempt_ends["failed"],
                "crashed": self._attempt_ends["crashed"],
                "ended_by_lease": self._attempt_ends["lease"],
                "died_with_cluster": self._attempt_ends["died"],
                "items_survived": self._items_survived,
            },
        }

    def _waits_by(self, what: str) -> dict[str, Any]:
        keys = sorted(key for kind, key in self._waits if kind == what)
        if what == "priority":
            keys.sort(key=float, reverse=True)
        return {key: spread(self._waits[what, key]) for key in keys}

    def _cluster(self, name: str) -> dict[str, Any]:
        capacity, busy = self._capacity[name].resource_seconds(), self._busy[name]
        use = {what: round(busy.get(what, 0.0) / area, DIGITS) for what, area in sorted(capacity.items()) if area}
        return {"succeeded": self._finished_on[name], "use": use}

    def _share(self, item: SimulatedItem) -> float:
        """The dominant share: the largest share that the item takes of any one resource of the fleet."""
        share = self._shares.get(item.shape)
        if share is None:
            parts = [amount / self._fleet_total[name] for name, amount in item.shape if self._fleet_total.get(name)]
            share = self._shares[item.shape] = max(parts, default=0.0)
        return share

    def _shape_name(self, item: SimulatedItem) -> str:
        name = self._shape_names.get(item.shape)
        if name is None:
            name = self._shape_names[item.shape] = describe(dict(item.shape))
        return name


class _CapacityIntegral:
    """Resource-seconds that a cluster offered, over changes of its size."""

    def __init__(self, clock: VirtualClock, nodes: Iterable[Resources]) -> None:
        self._clock, self._since = clock, clock.now
        self._now: dict[str, float] = reduce(plus, nodes, {})
        self._area: dict[str, float] = {}

    def resize(self, total: dict[str, float]) -> None:
        self._area = self.resource_seconds()
        self._now, self._since = total, self._clock.now

    def resource_seconds(self) -> dict[str, float]:
        seconds = self._clock.now - self._since
        names = {**self._area, **self._now}
        return {name: self._area.get(name, 0.0) + self._now.get(name, 0.0) * seconds for name in names}
