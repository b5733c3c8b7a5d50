"""Builds run histories by hand."""

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


class HistoryBuilder:
    """Appends history lines; one call may add several that belong together. Cluster a has one node, a0, with 8 CPUs."""

    def __init__(self, clusters: Sequence[ClusterMetadata] = (), **settings: Any) -> None:
        self.at = 100.0
        free = {"resource_threshold": 1, "submission_interval_s": 0}
        described = tuple(clusters) or (ClusterMetadata("a", dashboard="http://a:8265"),)
        self.lines: list[HistoryLine] = [RunSetup(self.at, {**free, **settings}, described)]
        self.lines += [NodesChanged(self.at, one.name, {f"{one.name}0": {"CPU": 8.0}}) for one in described]
        self._fences = 0

    def advance(self, seconds: float) -> HistoryBuilder:
        self.at += seconds
        return self

    def add(self, line: HistoryLine) -> HistoryBuilder:
        self.lines.append(line)
        return self

    def handle(self, event: events.Event) -> HistoryBuilder:
        return self.add(EventHandled(self.at, event))

    def issue(self, *instructions: out.Instruction) -> HistoryBuilder:
        self.lines += [InstructionIssued(self.at, one) for one in instructions]
        return self

    # ---- groups of lines

    def healthy(self, name: str = "a", free: float = 8.0) -> HistoryBuilder:
        """Bring a cluster's link up, and take a snapshot of its only node."""
        node = NodeSnapshot(f"{name}0", {"CPU": 8.0}, {"CPU": free})
        self.handle(events.LinkUp(name, "3.11.2", "2.60.0", "s1"))
        return self.handle(events.SnapshotTaken(ResourceSnapshot(name, self.at, (node,), "agent", "s1")))

    def transition(
        self, task_id: str, state: TaskState, attempt: int = 0, cluster: str | None = None, code: str = "CODE"
    ) -> HistoryBuilder:
        decision = None
        if state is TaskState.DISPATCHING and cluster is not None:
            row = CandidateReport(cluster, node_id=f"{cluster}0")
            decision = SchedulingDecision(task_id, self.at, cluster, code, "it goes there", (row,))
        transition = out.Transition(task_id, 1, state, attempt, self.at, code, "because", cluster)
        return self.issue(out.Persist(transition, decision))

    def frees_room(self, task_id: str, cluster: str) -> HistoryBuilder:
        sentence = f"1 item leaves {cluster} for it"
        step = out.Transition(task_id, 1, TaskState.QUEUED, 0, self.at, "FREES_ROOM", sentence, None)
        return self.issue(out.Persist(step))

    def submit(self, task: TaskDescription, code: str = "NO_CAPACITY") -> HistoryBuilder:
        self.handle(events.Submitted(task))
        return self.transition(task.id, TaskState.PENDING).transition(task.id, TaskState.QUEUED, code=code)

    def dispatch(self, task_id: str, attempt: int = 1, cluster: str = "a", fence: int | None = None) -> HistoryBuilder:
        self._fences += 1
        last = self.lines[-1]
        if isinstance(last, InstructionIssued) and not isinstance(last.instruction, out.Persist):
            self.handle(events.Continued())  # an answer begins with Persist instructions, so this is a new one
        self.transition(task_id, TaskState.DISPATCHING, attempt, cluster, "PLACED")
        return self.issue(out.Dispatch(task_id, attempt, fence or self._fences, cluster))

    def begin(self, task_id: str, attempt: int = 1, cluster: str = "a", cpus: float = 1.0) -> HistoryBuilder:
        self.add(AttemptBegan(self.at, cluster, task_id, attempt, self._fences, {f"{cluster}0": {"CPU": cpus}}))
        self.handle(events.Started(task_id, attempt, self.at, f"{cluster}0"))
        return self.transition(task_id, TaskState.RUNNING, attempt, cluster)

    def end(self, task_id: str, attempt: int = 1, cluster: str = "a") -> HistoryBuilder:
        """End the attempt on its cluster, and report that."""
        self.add(AttemptEnded(self.at, cluster, task_id, attempt, "succeeded"))
        return self.finish(task_id, attempt, cluster)

    def finish(self, task_id: str, attempt: int = 1, cluster: str = "a") -> HistoryBuilder:
        self.handle(events.AttemptFinished(task_id, attempt, "succeeded", took=1.0))
        self.transition(task_id, TaskState.SUCCEEDED, attempt, cluster)
        return self.issue(out.Complete(task_id, TaskState.SUCCEEDED, attempt, cluster))

    def run(self, task_id: str, attempt: int = 1, cluster: str = "a", cpus: float = 1.0) -> HistoryBuilder:
        """Dispatch, begin and end an attempt, one second apart."""
        self.dispatch(task_id, attempt, cluster)
        self.advance(1).begin(task_id, attempt, cluster, cpus)
        return self.advance(1).end(task_id, attempt, cluster)
