"""`explain` and the look of the fleet, as plain data that can be printed, stored or sent."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.app.client_api.runtime import Runtime
from ray_multicluster_scheduler.common.exception import UnknownItemError
from ray_multicluster_scheduler.common.model import SchedulingDecision, TaskState
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord

JOB_STATUS = {
    TaskState.PENDING: "QUEUED",
    TaskState.QUEUED: "QUEUED",
    TaskState.DISPATCHING: "PENDING",
    TaskState.RUNNING: "RUNNING",
    TaskState.RETRYING: "RETRYING",
    TaskState.LOST: "LOST",
    TaskState.SUCCEEDED: "SUCCEEDED",
    TaskState.FAILED: "FAILED",
    TaskState.CANCELLED: "STOPPED",
}
EXPIRED = "EXPIRED"


async def explain_item(runtime: Runtime, task_id: str) -> dict[str, Any]:
    """On the loop: everything known of one item. Raises UnknownItemError."""
    record = find_record(runtime, task_id)
    if record is None:
        return {"id": task_id, "state": EXPIRED, "code": EXPIRED, "sentence": "it ended long ago and was forgotten"}
    decision = record.decision
    prepared = runtime.dispatcher.prepared.get(task_id)
    return {
        "id": task_id,
        "kind": record.task.kind,
        "name": record.task.name,
        "state": str(record.state),
        "cluster": record.cluster,
        "attempt": record.attempt,
        "code": record.code,
        "sentence": record.sentence,
        "unblocked_by": decision.unblocked_by if decision is not None and record.cluster is None else None,
        "decision": None if decision is None else decision.to_dict(),
        "runtime_env": dict(prepared.runtime_env) if prepared else None,
        "converted_paths": [list(pair) for pair in prepared.converted] if prepared else [],
        "history": [step.to_dict() for step in runtime.manager.log.history(task_id)],
    }


def find_record(runtime: Runtime, task_id: str) -> TaskRecord | None:
    """The record; None if it was forgotten. Raises UnknownItemError for an id that was never issued."""
    try:
        return runtime.machine.record(task_id)
    except KeyError:
        if task_id in runtime.expired:
            return None
        raise UnknownItemError(
            f"There is no item {task_id!r} here.",
            task_id=task_id,
            next_step="use the id that a submit call of this program returned",
        ) from None


async def job_info(runtime: Runtime, job_id: str) -> dict[str, Any]:
    """On the loop: a job's face."""
    record = find_record(runtime, job_id)
    if record is None:
        return {"job_id": job_id, "status": EXPIRED}
    if record.task.job is None:
        raise UnknownItemError(f"{job_id!r} is a {record.task.kind}, not a job.", task_id=job_id)
    return {
        "job_id": job_id,
        "status": JOB_STATUS[record.state],
        "entrypoint": record.task.job.entrypoint,
        "metadata": dict(record.task.job.metadata),
        "cluster": record.cluster,
        "attempt": record.attempt,
        "ray_submission_id": runtime.jobs.ray_id(job_id, record.attempt) if record.attempt else None,
        "message": record.sentence,
        "submitted_at": record.task.submitted_at,
        "started_at": record.started_at,
        "finished_at": record.finished_at,
    }


async def cluster_rows(runtime: Runtime) -> list[dict[str, Any]]:
    """On the loop: one row per cluster, None where something is not known."""
    return [_cluster_row(runtime, metadata.name) for metadata in runtime.machine.registry.list()]


def _cluster_row(runtime: Runtime, name: str) -> dict[str, Any]:
    metadata = runtime.machine.registry.get(name)
    view = runtime.machine.view(name, runtime.clock.now())
    snapshot = runtime.machine.registry.latest_snapshot(name)
    link = runtime.links.existing(name)
    info = link.info if link is not None and link.connected else None
    trouble = view.trouble
    return {
        "name": name,
        "state": "UP" if trouble is None else trouble.code,
        "sentence": "" if trouble is None else trouble.sentence,
        "carrier": "agent" if link is not None else ("http" if metadata.dashboard else None),
        "tags": list(metadata.tags),
        "prefer": metadata.prefer,
        "weight": metadata.weight,
        "dashboard": metadata.dashboard,
        "head_address": metadata.head_address,
        "nodes": len(snapshot.nodes) if snapshot else None,
        "total": snapshot.total() if snapshot else None,
        "free": snapshot.free() if snapshot else None,
        "ray_version": snapshot.ray_version if snapshot else None,
        "python_version": info.python_version if info else (snapshot.python_version if snapshot else None),
        "os": info.os if info else (snapshot.os if snapshot else None),
        "arch": info.arch if info else (snapshot.arch if snapshot else None),
    }


def decision_table(decision: SchedulingDecision | dict[str, Any]) -> list[tuple[str, str]]:
    """One line per cluster for people: its name, and why it was or was not chosen."""
    data = decision if isinstance(decision, dict) else decision.to_dict()
    lines = []
    for row in data["candidates"]:
        if row["rejections"]:
            said = "; ".join(rejection["sentence"] for rejection in row["rejections"])
        else:
            said = ", ".join(f"{name} {score:.3f}" for name, score in row["scores"].items()) or "fits"
        mark = " (chosen)" if row["cluster"] == data["cluster"] else ""
        lines.append((row["cluster"] + mark, said))
    return lines
