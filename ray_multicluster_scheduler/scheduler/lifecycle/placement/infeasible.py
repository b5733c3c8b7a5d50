"""What the owner of an item is told that has nowhere to go, now and ever."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import SchedulingDecision, TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import codes
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import MachineState
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.policy.verdict import Verdict, table


def fail_unplaceable(
    machine: MachineState, record: TaskRecord, decision: SchedulingDecision, outcome: Verdict, now: float
) -> None:
    """End it, with the table of clusters and their reasons in the error."""
    task = record.task
    if outcome is Verdict.INFEASIBLE:
        code, error = codes.NO_FEASIBLE_CLUSTER, "NoFeasibleClusterError"
        message = f"No cluster can ever run {task.kind} {task.id} ({task.name}):\n{table(decision)}"
        step = "ask for less, relax its tags or cluster lists, or add a cluster that can run it"
    elif decision.candidates:
        code, error = codes.NO_HEALTHY_CLUSTER, "NoHealthyClusterError"
        message = f"No cluster that could run {task.kind} {task.id} ({task.name}) can be used:\n{table(decision)}"
        step = "mend what the lines say, check with `rmcs clusters`, then submit again"
    else:
        code, error = codes.NO_HEALTHY_CLUSTER, "NoHealthyClusterError"
        message = f"{task.kind} {task.id} ({task.name}) has nowhere to go: no cluster is configured."
        step = "add a cluster to clusters.yaml, or start a local fleet with `rmcs fleet up`"
    record.placed = decision
    machine.complete(record, TaskState.FAILED, code, now, message, error=error, next_step=step)
