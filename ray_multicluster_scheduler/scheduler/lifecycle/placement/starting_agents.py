"""StartingAgents: while the agent of a cluster starts, which takes seconds, work goes where an agent is up.

The first task that goes to a cluster starts its agent; later ones prefer clusters that they like as much and whose
agent is up. A task that still waits for the start is recalled as soon as one of those has a free slot for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ray_multicluster_scheduler.common.exception import PolicyEvaluationError
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import MachineState
from ray_multicluster_scheduler.scheduler.lifecycle.placement.prefetch import Prefetch
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord


class StartingAgents:
    """Tracks the clusters whose agent starts because work was sent there."""

    def __init__(self, machine: MachineState, prefetch: Prefetch) -> None:
        self._machine, self._prefetch = machine, prefetch
        self._names: set[str] = set()
        self._recalled: tuple[str, int] | None = None
        """The attempt that was recalled last: one at a time, as it takes its slot elsewhere only when it is back."""

    def sent(self, task: TaskDescription, state: ClusterState) -> None:
        """An item was sent there."""
        if task.kind != "job" and state.link == "none":
            self._names.add(state.name)

    def alternatives(
        self, task: TaskDescription, opened: Sequence[ClusterView], views: Sequence[ClusterView]
    ) -> Sequence[ClusterView]:
        """Clusters whose agent is up and that the item prefers as much as any of the ``opened`` whose agent still
        starts. Empty if no agent starts there, or for a job, which needs none."""
        if not self._names or task.kind == "job":
            return ()
        starting = [view for view in opened if view.name in self._names and view.link != "up"]
        if not starting:
            return ()
        liked = max(self._machine.engine.preference(task, view) for view in starting)
        return [view for view in views if view.link == "up" and self._machine.engine.preference(task, view) >= liked]

    def take_back_one(self, now: float) -> None:
        """Take back the last task that waits for an agent and could start at once elsewhere. To be called when nothing
        else waits for that slot."""
        self._names = {name for name in self._names if self._waiting_at(name)}
        if not self._names or self._is_being_recalled():
            return
        views = self._machine.fleet.views(now)
        for name in sorted(self._names):
            for record in reversed(self._waiting_at(name)):
                if record.task.kind == "task" and record.task.gang is None and record.ending is None:
                    target = self._target(record, views, now)
                    if target is not None:
                        sentence = f"its agent is still starting, and {target} has a free slot"
                        self._prefetch.recall(record, sentence, now)
                        self._recalled = (record.task.id, record.attempt)
                        return

    def _target(self, record: TaskRecord, views: tuple[ClusterView, ...], now: float) -> str | None:
        try:
            up = self.alternatives(record.wanted, [view for view in views if view.name == record.cluster], views)
            decision = self._machine.engine.place(record.wanted, up, views, now, retry=record.retry)
        except PolicyEvaluationError:
            return None
        return None if decision is None else decision.cluster

    def _is_being_recalled(self) -> bool:
        record = self._machine.records.get(self._recalled[0]) if self._recalled else None
        return record is not None and record.live and (record.task.id, record.attempt) == self._recalled

    def _waiting_at(self, name: str) -> list[TaskRecord]:
        """Items that wait for the agent of this cluster, the oldest first; nothing once it is up or has failed."""
        state = self._machine.registry.find(name)
        if state is None or state.link != "none":
            return []
        held = (self._machine.records[task_id] for task_id in state.slots.held)
        return [one for one in held if one.task.kind != "job" and not one.accepted]
