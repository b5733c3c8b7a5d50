"""Histories written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray_multicluster_scheduler.common.model import (
    CandidateReport,
    ClusterMetadata,
    NodeSnapshot,
    ResourceSnapshot,
    SchedulingDecision,
    TaskDescription,
    TaskState,
)
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle import instructions as out
from ray_multicluster_scheduler.simulation.history import (
    AttemptBegan,
    AttemptEnded,
    EventHandled,
    HistoryLine,
    InstructionIssued,
    NodesChanged,
    RunSetup,
)


class Forge:
    """Adds lines, one call for what belongs together. Cluster a has one node, a0, with 8 CPUs."""

    def __init__(self, clusters: Sequence[ClusterMetadata] = (), **settings: Any) -> None:
        self.at = 100.0
        free = {"resource_threshold": 1, "submission_interval_s": 0}
        described = tuple(clusters) or (ClusterMetadata("a", dashboard="http://a:8265"),)
        self.lines: list[HistoryLine] = [RunSetup(self.at, {**free, **settings}, described)]
        self.lines += [NodesChanged(self.at, one.name, {f"{one.name}0": {"CPU": 8.0}}) for one in described]
        self._fences = 0

    def later(self, seconds: float) -> Forge:
        self.at += seconds
        return self

    def line(self, line: HistoryLine) -> Forge:
        self.lines.append(line)
        return self

    def fed(self, event: events.Event) -> Forge:
        return self.line(EventHandled(self.at, event))

    def told(self, *instructions: out.Instruction) -> Forge:
        self.lines += [InstructionIssued(self.at, one) for one in instructions]
        return self

    # ---- what belongs together

    def healthy(self, name: str = "a", free: float = 8.0) -> Forge:
        """Its link is up and tells what is free on its only node."""
        node = NodeSnapshot(f"{name}0", {"CPU": 8.0}, {"CPU": free})
        self.fed(events.LinkUp(name, "3.11.2", "2.60.0", "s1"))
        return self.fed(events.SnapshotTaken(ResourceSnapshot(name, self.at, (node,), "agent", "s1")))

    def step(
        self, task_id: str, state: TaskState, attempt: int = 0, cluster: str | None = None, code: str = "CODE"
    ) -> Forge:
        decision = None
        if state is TaskState.DISPATCHING and cluster is not None:
            row = CandidateReport(cluster, node_id=f"{cluster}0")
            decision = SchedulingDecision(task_id, self.at, cluster, code, "it goes there", (row,))
        transition = out.Transition(task_id, 1, state, attempt, self.at, code, "because", cluster)
        return self.told(out.Persist(transition, decision))

    def submit(self, task: TaskDescription, code: str = "NO_CAPACITY") -> Forge:
        self.fed(events.Submitted(task))
        return self.step(task.id, TaskState.PENDING).step(task.id, TaskState.QUEUED, code=code)

    def send(self, task_id: str, attempt: int = 1, cluster: str = "a", fence: int | None = None) -> Forge:
        self._fences += 1
        last = self.lines[-1]
        if isinstance(last, InstructionIssued) and not isinstance(last.instruction, out.Persist):
            self.fed(events.Continued())  # what is durable comes first in an answer, so this is another one
        self.step(task_id, TaskState.DISPATCHING, attempt, cluster, "PLACED")
        return self.told(out.Dispatch(task_id, attempt, fence or self._fences, cluster))

    def begin(self, task_id: str, attempt: int = 1, cluster: str = "a", cpus: float = 1.0) -> Forge:
        self.line(AttemptBegan(self.at, cluster, task_id, attempt, self._fences, {f"{cluster}0": {"CPU": cpus}}))
        self.fed(events.Started(task_id, attempt, self.at, f"{cluster}0"))
        return self.step(task_id, TaskState.RUNNING, attempt, cluster)

    def end(self, task_id: str, attempt: int = 1, cluster: str = "a") -> Forge:
        """It is over there, and told."""
        self.line(AttemptEnded(self.at, cluster, task_id, attempt, "succeeded"))
        return self.finish(task_id, attempt, cluster)

    def finish(self, task_id: str, attempt: int = 1, cluster: str = "a") -> Forge:
        self.fed(events.AttemptFinished(task_id, attempt, "succeeded", took=1.0))
        self.step(task_id, TaskState.SUCCEEDED, attempt, cluster)
        return self.told(out.Complete(task_id, TaskState.SUCCEEDED, attempt, cluster))

    def run(self, task_id: str, attempt: int = 1, cluster: str = "a", cpus: float = 1.0) -> Forge:
        """Sent, begun and over, each a second after the other."""
        self.send(task_id, attempt, cluster)
        self.later(1).begin(task_id, attempt, cluster, cpus)
        return self.later(1).end(task_id, attempt, cluster)
