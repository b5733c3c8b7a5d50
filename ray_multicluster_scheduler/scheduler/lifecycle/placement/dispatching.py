"""Sending: the one way by which an attempt gets to a cluster."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import SchedulingDecision, TaskState
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Ahead, Dispatch
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import MachineState
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord


class Dispatching:
    """Attempt numbers and fences only grow."""

    def __init__(self, machine: MachineState) -> None:
        self._machine = machine

    def dispatch(
        self,
        record: TaskRecord,
        decision: SchedulingDecision,
        cluster: str,
        now: float,
        ahead: Ahead = "",
        *,
        short: bool,
    ) -> None:
        """It has left the queue and goes to ``cluster`` because of ``decision``."""
        machine = self._machine
        machine.engine.record_placement(cluster)
        machine.charge_owner(record, now)
        record.attempt += 1
        record.cluster, record.placed = cluster, decision
        if record.fence is not None:
            record.earlier_fences += (record.fence,)
        record.fence, machine.next_fence = machine.next_fence, machine.next_fence + 1
        record.accepted, record.ending, record.started_at = False, None, None
        machine.transition(record, TaskState.DISPATCHING, decision.code, decision.sentence, now, decision)
        machine.output.add(Dispatch(record.task.id, record.attempt, record.fence, cluster, ahead, short))
