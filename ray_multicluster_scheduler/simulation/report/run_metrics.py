"""Meter: sees what really happens in a run, and sums it up."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.model.resources import ResourceShape, describe
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete
from ray_multicluster_scheduler.simulation.model import SimulatedFleet
from ray_multicluster_scheduler.simulation.report.result import DIGITS, Series, jain, spread
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_cluster import Attempt, Room, Work
from ray_multicluster_scheduler.simulation.virtual_fleet.virtual_clock import Clockwork

_LOST = ("crashed", "lease", "died")


class Meter:
    """A wait is the time from submission until user code of the item first begins."""

    def __init__(self, fleet: SimulatedFleet, clock: Clockwork) -> None:
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
        self._capacity = {one.name: _Capacity(clock, one.nodes) for one in fleet.clusters}
        self._finished_on: Counter[str | None] = Counter()
        self._ends: Counter[str] = Counter()
        self._states: Counter[str] = Counter()
        self._survived = self._troubles = 0
        self.waiting: Counter[str] = Counter()
        self.holding: dict[str, float] = defaultdict(float)
        self.running = 0
        self.submitted = 0
        self.last_progress = 0.0
        self._first_submit = self._last_end = 0.0
        self._fair = [0.0, 0.0]

    # ---- what happens

    def arrived(self, work: Work) -> None:
        if not self.submitted:
            self._first_submit = self._clock.now
        self.submitted += 1
        self.waiting[work.task.owner] += 1
        self.last_progress = self._clock.now

    def began(self, cluster: str, attempt: Attempt) -> None:
        work, now = attempt.work, self._clock.now
        self.running += 1
        self.last_progress = now
        self.holding[work.task.owner] += self._share(work)
        if work.begun_at is None:
            work.begun_at = now
            task, wait = work.task, now - work.task.submitted_at
            self.waiting[task.owner] -= 1
            self._all_waits.append(wait)
            self._waits["owner", task.owner].append(wait)
            self._waits["priority", str(task.priority)].append(wait)
            self._waits["shape", self._shape_name(work)].append(wait)

    def over(self, cluster: str, attempt: Attempt, how: str) -> None:
        began_at = attempt.began_at
        if began_at is None:
            return  # it was given to the cluster and never began there
        now, work = self._clock.now, attempt.work
        self.running -= 1
        self.last_progress = now
        self._ends[how] += 1
        self.holding[work.task.owner] -= self._share(work)
        if how in _LOST:
            work.losses += 1
        busy = self._busy[cluster]
        for _, amounts in attempt.parts or ():
            for name, amount in amounts.items():
                busy[name] = busy.get(name, 0.0) + amount * (now - began_at)

    def nodes(self, cluster: str, room: Room) -> None:
        self._capacity[cluster].changes(room.total())

    def trouble(self, what: str) -> None:
        self._troubles += 1

    def completed(self, work: Work, end: Complete) -> None:
        self._states[end.state.value] += 1
        self._last_end = self.last_progress = self._clock.now
        if work.begun_at is None:
            self.waiting[work.task.owner] -= 1
        if end.state is TaskState.SUCCEEDED:
            self._finished_on[end.cluster] += 1
            self._survived += work.losses > 0

    def judge_fairness(self, seconds: float) -> None:
        """How equal is what those owners hold who want more, at this moment?"""
        wanting = [owner for owner, count in self.waiting.items() if count > 0]
        if len(wanting) > 1:
            index = jain([max(0.0, self.holding[owner]) / self._weights.get(owner, 1.0) for owner in wanting])
            if index is not None:
                self._fair[0] += index * seconds
                self._fair[1] += seconds

    # ---- the sum

    def figures(self, series: Series) -> dict[str, Any]:
        """All figures of the run, as plain data; the same run gives the same bytes."""
        done = self._states
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
            **{f"wait_s_by_{what}": self._by(what) for what in ("owner", "priority", "shape")},
            "clusters": {name: self._cluster(name) for name in self._busy},
            "fairness": round(self._fair[0] / self._fair[1], DIGITS) if self._fair[1] else None,
            "queue": {"mean": series.mean_queue(), "max": series.most_queued()},
            "failures": {
                "faults": self._troubles,
                "user_errors": self._ends["failed"],
                "crashed": self._ends["crashed"],
                "ended_by_lease": self._ends["lease"],
                "died_with_cluster": self._ends["died"],
                "items_survived": self._survived,
            },
        }

    def _by(self, what: str) -> dict[str, Any]:
        keys = sorted(key for kind, key in self._waits if kind == what)
        if what == "priority":
            keys.sort(key=int, reverse=True)
        return {key: spread(self._waits[what, key]) for key in keys}

    def _cluster(self, name: str) -> dict[str, Any]:
        capacity, busy = self._capacity[name].until_now(), self._busy[name]
        use = {what: round(busy.get(what, 0.0) / area, DIGITS) for what, area in sorted(capacity.items()) if area}
        return {"succeeded": self._finished_on[name], "use": use}

    def _share(self, work: Work) -> float:
        """The most that it takes of any one resource of the fleet."""
        share = self._shares.get(work.shape)
        if share is None:
            parts = [amount / self._fleet_total[name] for name, amount in work.shape if self._fleet_total.get(name)]
            share = self._shares[work.shape] = max(parts, default=0.0)
        return share

    def _shape_name(self, work: Work) -> str:
        name = self._shape_names.get(work.shape)
        if name is None:
            name = self._shape_names[work.shape] = describe(dict(work.shape))
        return name


class _Capacity:
    """What a cluster had, times how long."""

    def __init__(self, clock: Clockwork, nodes: Any) -> None:
        self._clock = clock
        self._now: dict[str, float] = {}
        self._area: dict[str, float] = {}
        self._since = clock.now
        for node in nodes:
            for name, amount in node.items():
                self._now[name] = self._now.get(name, 0.0) + amount

    def changes(self, total: dict[str, float]) -> None:
        self._area = self.until_now()
        self._now, self._since = total, self._clock.now

    def until_now(self) -> dict[str, float]:
        seconds = self._clock.now - self._since
        names = {**self._area, **self._now}
        return {name: self._area.get(name, 0.0) + self._now.get(name, 0.0) * seconds for name in names}
