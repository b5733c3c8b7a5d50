"""Counts of waiting and running items by state, kind, owner and queue, and rows of waiting items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.runtime.explanation import CurrentWaitReasons
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.control_plane.store import StoredItem, UnfinishedCount
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import pool_fields_of

WAITING = (TaskState.PENDING, TaskState.QUEUED, TaskState.RETRYING)
_RAN = (TaskState.RUNNING, TaskState.PREEMPTING, TaskState.LOST)
ON_A_CLUSTER = (TaskState.DISPATCHING, *_RAN)


def depths(counts: Iterable[UnfinishedCount], runtime: ServiceRuntime, owner: str | None) -> dict[str, Any]:
    """On the loop: waiting and dispatched items as of the last commit, of one owner if given; ``lanes`` of all."""
    seen = [one for one in counts if owner in (None, one.owner)]
    waiting = [one for one in seen if one.state in WAITING]
    by_state, by_kind, by_owner = _sums(waiting, "state"), _sums(waiting, "kind"), _sums(waiting, "owner")
    lanes = runtime.machine.queue_depths() if owner is None else {}
    return {
        "depth": sum(one.items for one in waiting),
        "states": by_state,
        "kinds": by_kind,
        "owners": by_owner,
        "on_clusters": _sums((one for one in seen if one.state in ON_A_CLUSTER), "state"),
        "lanes": [{"queue": lane.queue, "cluster": lane.cluster, "waiting": count} for lane, count in lanes.items()],
    }


def waiting_rows(
    page: Iterable[StoredItem], runtime: ServiceRuntime, reasons: CurrentWaitReasons
) -> list[dict[str, Any]]:
    """On the loop: the items of a page of the store that still wait, with position and reason."""
    page = [one for one in page if (record := runtime.record(one.new.id)) is None or record.state in WAITING]
    positions = runtime.machine.queue_positions((one.new.id for one in page), runtime.clock.now())
    return [_waiting_row(one, runtime, reasons, positions.get(one.new.id)) for one in page]


def first_rows(
    runtime: ServiceRuntime, reasons: CurrentWaitReasons, most: int, owner: str | None
) -> list[dict[str, Any]]:
    """On the loop: the next items in the order of the queue, of one owner if given."""
    first = runtime.machine.first_positions(most, runtime.clock.now(), owner)
    return [_record_row(runtime.machine.record(one), reasons, position) for one, position in first.items()]


def _waiting_row(
    stored: StoredItem, runtime: ServiceRuntime, reasons: CurrentWaitReasons, position: int | None
) -> dict[str, Any]:
    new, record = stored.new, runtime.record(stored.new.id)
    if record is not None:
        return _record_row(record, reasons, position)
    return {
        "id": new.id,
        "kind": new.kind,
        "name": new.name,
        "owner": new.owner,
        "priority": stored.status.priority,
        **pool_fields_of(stored),
        "state": str(stored.status.state),
        "submitted_at": new.submitted_at,
        "waiting_since": new.submitted_at,
        "position": position,
        "code": "",
        "sentence": "",
        "held": False,
    }


def _record_row(record: TaskRecord, reasons: CurrentWaitReasons, position: int | None) -> dict[str, Any]:
    code, sentence = reasons.of(record)
    return {
        "id": record.task.id,
        "kind": record.task.kind,
        "name": record.task.name,
        "owner": record.task.owner,
        "priority": record.wanted.priority,
        **record.wanted.pool_fields,
        "state": str(record.state),
        "submitted_at": record.task.submitted_at,
        "waiting_since": _waiting_since(record),
        "position": position,
        "code": code,
        "sentence": sentence,
        "held": record.held is not None,
    }


def _waiting_since(record: TaskRecord) -> float:
    """The time of submission, or of the end of the last attempt that ran."""
    steps = record.history if record.attempt else []
    last = next((at for at in reversed(range(len(steps))) if steps[at].state in _RAN), None)
    return record.task.submitted_at if last is None else steps[last + 1].at


def owner_rows(
    counts: Iterable[UnfinishedCount], runtime: ServiceRuntime, also: Iterable[str] = ()
) -> dict[str, dict[str, Any]]:
    """On the loop: by name, the owners with unfinished items, limits or a pause, and those in ``also``."""
    counts, rows = list(counts), {row.name: row for row in runtime.machine.owner_rows()}
    waiting = _sums((one for one in counts if one.state in WAITING), "owner")
    running = _sums((one for one in counts if one.state in ON_A_CLUSTER), "owner")
    return {
        name: {
            "owner": name,
            "waiting": waiting.get(name, 0),
            "running": running.get(name, 0),
            "limits": runtime.machine.limits_of(name).model_dump(mode="json"),
            "changed": name in rows and rows[name].limits is not None,
            "paused": rows[name].paused if name in rows else None,
        }
        for name in sorted({*waiting, *running, *runtime.machine.limits(), *rows, *also})
    }


def _sums(counts: Iterable[UnfinishedCount], key: str) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for one in counts:
        sums[str(getattr(one, key))] += one.items
    return dict(sums)
