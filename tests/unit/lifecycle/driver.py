"""Drives a machine by hand: builders for items, clusters and snapshots, and a log of what came out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from ray_multicluster_scheduler.common.model import (
    ActorDescription,
    ClusterMetadata,
    FailureClass,
    JobDescription,
    NodeSnapshot,
    ResourceSnapshot,
    TaskDescription,
    TaskState,
)
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    CheckDashboard,
    Complete,
    Continue,
    Dispatch,
    Instruction,
    Persist,
    RefreshSnapshot,
)
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.pools.pool import Pool

T = TypeVar("T")

FREE: dict[str, Any] = {"resource_threshold": 1, "submission_interval_s": 0}
"""Settings with the two default rules off that would get in the way of most tests."""


def cluster(name: str, **values: Any) -> ClusterMetadata:
    return ClusterMetadata(name=name, **{"dashboard": f"http://{name}:8265", **values})


def task(task_id: str, cpus: float = 1, **values: Any) -> TaskDescription:
    defaults = {"id": task_id, "kind": "task", "name": task_id, "requirements": {"CPU": float(cpus)} if cpus else {}}
    return TaskDescription(**{**defaults, **values})


def job(task_id: str, cpus: float = 0, **values: Any) -> TaskDescription:
    return task(task_id, cpus, **{"kind": "job", "job": JobDescription("python x.py"), **values})


def actor(
    task_id: str, cpus: float = 0, *, placement: Mapping[str, float] | None = None, **values: Any
) -> TaskDescription:
    """As Ray's defaults have it: 1 CPU to be placed, nothing held."""
    own = {key: values.pop(key) for key in list(values) if key in ActorDescription.__dataclass_fields__}
    needs = {"CPU": float(cpus)} if cpus else {}
    description = ActorDescription(task_id, placement=placement or needs or {"CPU": 1.0}, **own)
    return task(task_id, cpus, **{"kind": "actor", "actor": description, **values})


def snapshot(name: str, at: float, *nodes: float | Mapping[str, float], **values: Any) -> ResourceSnapshot:
    """Idle nodes n1, n2, …: a number is CPUs, a mapping is the total."""
    totals = [{"CPU": float(node)} if isinstance(node, (int, float)) else dict(node) for node in nodes]
    views = tuple(NodeSnapshot(f"n{number}", total, dict(total)) for number, total in enumerate(totals, start=1))
    return ResourceSnapshot(**{"cluster": name, "taken_at": at, "nodes": views, "source": "agent", **values})


class Driver:
    """One machine, its clock, and everything that it said."""

    def __init__(self, *clusters: ClusterMetadata, pools: Iterable[Pool] = (), **settings: Any) -> None:
        known = clusters or (cluster("a"), cluster("b"))
        self.machine = SchedulerMachine(Settings(**{**FREE, **settings}), known, pools=pools)
        self.now = 1000.0
        self.log: list[Instruction] = []
        self.last: list[Instruction] = []

    def send(self, event: events.Event, *, after: float = 0.0) -> list[Instruction]:
        """Feed one event, ``after`` seconds later, and go on until nothing is left to do."""
        self.now += after
        self.last = self.machine.handle(event, self.now)
        while self.last and isinstance(self.last[-1], Continue):
            self.last += self.machine.handle(events.Continued(), self.now)
        self.log += self.last
        return self.last

    def issued(self, kind: type[T], *, ever: bool = False) -> list[T]:
        """Instructions of one kind in the last call, or ever."""
        return [one for one in (self.log if ever else self.last) if isinstance(one, kind)]

    # ---- events

    def submit(self, item: TaskDescription, *, after: float = 0.0) -> TaskRecord:
        self.send(events.Submitted(item), after=after)
        return self.machine.record(item.id)

    def link_up(self, name: str, *nodes: float | Mapping[str, float]) -> None:
        """A link comes up and tells what the cluster has."""
        self.send(events.LinkUp(name, "3.11.9", "2.60.0", "s1"))
        if nodes:
            self.snapshot(name, *nodes)

    def snapshot(self, name: str, *nodes: float | Mapping[str, float], **values: Any) -> list[Instruction]:
        return self.send(events.SnapshotTaken(snapshot(name, self.now, *nodes, **values)))

    def dashboard(self, name: str, sentence: str | None = None) -> None:
        """The answer to a check of the dashboard; with a sentence, that there was none."""
        self.send(events.DashboardChecked(name, sentence))

    def no_answer(self, name: str, sentence: str = "connection refused", *, permanent: bool = False) -> None:
        self.send(events.SnapshotFailed(name, "REFUSED", sentence, permanent))

    def accept(self, task_id: str) -> None:
        self.send(events.DispatchAccepted(task_id, self.attempt(task_id)))

    def start(self, task_id: str, node: str | None = None) -> None:
        self.send(events.Started(task_id, self.attempt(task_id), self.now, node))

    def succeed(self, task_id: str, took: float | None = None) -> None:
        self.send(events.AttemptFinished(task_id, self.attempt(task_id), "succeeded", took=took))

    def move(self, ended: str, begun: str) -> None:
        """The gateway gave the place of one that ended to one that was sent ahead."""
        self.send(events.PlaceMoved((ended, self.attempt(ended)), (begun, self.attempt(begun))))

    def stopped(self, task_id: str) -> None:
        self.send(events.AttemptFinished(task_id, self.attempt(task_id), "cancelled"))

    def fail(self, task_id: str, failure: str = "user", error_type: str | None = "ValueError") -> None:
        event = events.AttemptFinished(
            task_id, self.attempt(task_id), "failed", FailureClass(failure), error_type, "", f"{error_type} came up"
        )
        self.send(event)

    def refuse(self, task_id: str, failure: str = "cluster") -> None:
        attempt = self.attempt(task_id)
        self.send(events.DispatchRefused(task_id, attempt, FailureClass(failure), "REFUSED", "it said no"))

    def cancel(self, task_id: str, *, force: bool = False) -> None:
        self.send(events.CancelRequested(task_id, "asked by a test", force))

    def fire(self, key: str, *, after: float = 0.0) -> list[Instruction]:
        assert key in self.machine.timers, f"{key} is not among {sorted(self.machine.timers)}"
        return self.send(events.TimerFired(key), after=after)

    # ---- looking

    def attempt(self, task_id: str) -> int:
        return self.machine.record(task_id).attempt

    def state(self, task_id: str) -> TaskState:
        return self.machine.record(task_id).state

    def states(self, task_id: str) -> list[str]:
        """States it went through; a new reason in the same state is left out."""
        seen: list[str] = []
        for step in self.machine.record(task_id).history:
            if not seen or seen[-1] != step.state:
                seen.append(str(step.state))
        return seen

    def sent_to(self, *, ever: bool = True) -> dict[str, str]:
        """Item to cluster, of what was dispatched."""
        return {one.task_id: one.cluster for one in self.issued(Dispatch, ever=ever)}

    def asked(self) -> list[str]:
        """Clusters that were asked for a snapshot in the last call."""
        return [one.cluster for one in self.issued(RefreshSnapshot)]

    def checked(self) -> list[str]:
        """Clusters whose dashboards were to be checked in the last call."""
        return [one.cluster for one in self.issued(CheckDashboard)]

    def end(self, task_id: str) -> Complete:
        """The one Complete of an item."""
        ends = [one for one in self.issued(Complete, ever=True) if one.task_id == task_id]
        assert len(ends) == 1, ends
        return ends[0]

    def persisted_first(self) -> bool:
        """Did every Persist of the last call come before all else?"""
        kinds = [isinstance(one, Persist) for one in self.last]
        return kinds == sorted(kinds, reverse=True)


def ready(*sizes: float, **settings: Any) -> Driver:
    """Clusters a, b, … linked and idle, each with one node of that many CPUs."""
    names = [chr(ord("a") + index) for index in range(len(sizes))]
    driver = Driver(*(cluster(name) for name in names), **settings)
    for name, size in zip(names, sizes, strict=True):
        driver.link_up(name, size)
    return driver


def prefetched_of_two_owners() -> Driver:
    """One CPU runs an item of owner x; \"theirs\" of y and \"ours\" of x were sent ahead."""
    driver = ready(1)
    for number in range(3):
        driver.submit(task(f"seen{number}", function_digest="quick"))
        driver.succeed(f"seen{number}", took=0.001)
    for name, owner in (("runs", "x"), ("theirs", "y"), ("ours", "x")):
        driver.submit(task(name, function_digest="quick", owner=owner))
    return driver


def with_lost_job(refreshes: int) -> Driver:
    """Job j runs in cluster a, which has not answered so many requests for a snapshot."""
    driver = Driver(cluster("a"), breaker_failures=100)
    driver.submit(job("j"))
    driver.snapshot("a", 4, source="http")
    driver.start("j")
    for _ in range(refreshes):
        driver.fire("refresh:a", after=5)
        driver.no_answer("a")
    assert driver.state("j") is TaskState.LOST
    return driver
