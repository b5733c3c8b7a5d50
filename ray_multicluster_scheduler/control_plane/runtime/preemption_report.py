"""Reports of preemptions that would happen, as plain data; nothing is stopped."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.common.model import SchedulingDecision, TaskDescription
from ray_multicluster_scheduler.scheduler.lifecycle import codes
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.pools.preemption_plan import Candidate, PreemptionPlan

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime

MAX_CANDIDATES = 50
WOULD_PREEMPT = "WOULD_PREEMPT"
NOT_WAITING = "NOT_WAITING"


def preemption_report(runtime: Runtime, task_id: str, state: str) -> dict[str, Any]:
    """On the loop: the plan for a waiting item, or why there is none, and the candidates. ``state``: that of an item
    without a record."""
    record = runtime.record(task_id)
    report: dict[str, Any] = {
        "id": task_id,
        "state": state if record is None else str(record.state),
        "code": NOT_WAITING,
        "sentence": "it does not wait for room, so nothing is preempted for it",
        "cluster": None,
        "victims": [],
        "candidates": [],
        "total": 0,
    }
    if record is None or record.group is None:
        return report
    machine, now = runtime.machine, runtime.clock.now()
    plan = machine.preemption_plan(task_id, now)
    if plan is None:  # its room is being freed
        cluster = None if record.room is None else record.room.cluster
        report.update(code=codes.FREES_ROOM, sentence=record.sentence, cluster=cluster)
    elif isinstance(plan, PreemptionPlan):
        victims = [
            {"id": one.id, "reason": one.reason, "priority": one.priority, "lost_s": one.lost_s} for one in plan.victims
        ]
        report.update(code=WOULD_PREEMPT, sentence=_would(plan), cluster=plan.place, victims=victims)
    else:
        report.update(code=plan.code, sentence=plan.sentence)
    candidates = _candidates(machine, record, report["cluster"], now)
    shown = [{"cluster": one.place, **_row(one)} for one in candidates[:MAX_CANDIDATES]]
    return {**report, "candidates": shown, "total": len(candidates)}


def _candidates(machine: SchedulerMachine, record: TaskRecord, cluster: str | None, now: float) -> list[Candidate]:
    """Each candidate judged for its own cluster, or all for the cluster of the plan."""
    names = machine.registry.names() if cluster is None else (cluster,)
    found = [
        one for name in names for one in machine.preemption_candidates(record.task.id, name, now) if one.place == name
    ]
    return sorted(found, key=lambda one: (one.rank is None, one.rank or 0, one.place, one.id))


def _row(one: Candidate) -> dict[str, Any]:
    return {
        "id": one.id,
        "priority": one.priority,
        "lost_s": one.lost_s,
        "rank": one.rank,
        "code": one.code,
        "sentence": one.sentence,
    }


def _would(plan: PreemptionPlan) -> str:
    many = "1 item" if len(plan.victims) == 1 else f"{len(plan.victims)} items"
    return f"{many} would give way on {plan.place}"


def with_preemption(
    machine: SchedulerMachine, decision: SchedulingDecision, task: TaskDescription, now: float
) -> SchedulingDecision:
    """The decision of a plan; if the item would wait, with what would be preempted for it."""
    if decision.cluster is not None or decision.code == codes.QUEUE_FULL:
        return decision
    plan = machine.preemption_plan_for(task, now)
    if not isinstance(plan, PreemptionPlan):
        return decision
    return replace(decision, sentence=f"{decision.sentence}; {_would(plan)}")
