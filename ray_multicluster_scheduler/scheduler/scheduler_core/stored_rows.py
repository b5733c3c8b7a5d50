"""Rows of the machine as records of the store, and back. What is as usual is not written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from typing import Any

from ray_multicluster_scheduler.common.model import FailureClass, SchedulingDecision, TaskDescription
from ray_multicluster_scheduler.control_plane.store.records import (
    Decided,
    FleetNow,
    ItemNow,
    NewItem,
    Step,
    StoredItem,
)
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import Trouble
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Transition
from ray_multicluster_scheduler.scheduler.lifecycle.record import Ending
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ClusterRow, ItemRow, OwnerRow
from ray_multicluster_scheduler.scheduler.queue.owner_account import Holding

_COLUMNS = frozenset(
    {"task", "number", "history", "priority", "attempt", "cluster", "fence", "finished_at", "decision"}
)
"""What the store has a place for; all other fields of a row are its ``rest``."""


def _usual(kind: type) -> dict[str, Any]:
    """The defaults of a dataclass, by field; _NOTHING for those that have none."""
    usual = {}
    for one in fields(kind):
        made = one.default_factory() if one.default_factory is not MISSING else one.default
        usual[one.name] = _NOTHING if made is MISSING else made
    return usual


_NOTHING = object()
_USUAL_TASK = _usual(TaskDescription)
_USUAL_REST = {name: value for name, value in _usual(ItemRow).items() if name not in _COLUMNS}


def new_item(task: TaskDescription, number: int, objects: Sequence[str] = ()) -> NewItem:
    """An item as it was accepted. ``objects`` names the values that were attached to it, in their order."""
    unusual = {name: value for name, usual in _USUAL_TASK.items() if (value := getattr(task, name)) != usual}
    for name in ("job", "actor", "gang"):
        if name in unusual:
            unusual[name] = asdict(unusual[name])
    document = {"task": unusual, "objects": list(objects)} if objects else {"task": unusual}
    blobs = tuple(dict.fromkeys(one for one in (*task.payloads, *objects) if one is not None))
    return NewItem(task.id, number, task.kind, task.name, task.owner, task.submitted_at, _text(document), blobs)


def item_now(row: ItemRow) -> ItemNow:
    """What may change of it."""
    rest = {name: value for name, usual in _USUAL_REST.items() if (value := getattr(row, name)) != usual}
    if row.ending is not None:
        rest["ending"] = asdict(row.ending)
    return ItemNow(
        row.task.id, row.state, row.attempt, row.cluster, row.fence, row.priority, row.finished_at, _text(rest)
    )


def decided(task_id: str, attempt: int, decision: SchedulingDecision) -> Decided:
    return Decided(task_id, attempt, decision.at, decision.cluster, _text(decision.to_dict()))


def task_of(stored: StoredItem) -> tuple[TaskDescription, tuple[str, ...]]:
    """The item as it was accepted, and the names of the values attached to it."""
    document = json.loads(stored.new.description)
    return TaskDescription.from_dict(document["task"]), tuple(document.get("objects", ()))


def item_row(stored: StoredItem, steps: Iterable[Step], decision: Decided | None) -> ItemRow:
    """The row that was written."""
    now, rest = stored.now, json.loads(stored.now.rest)
    for name in ("earlier_fences", "after"):
        if name in rest:
            rest[name] = tuple(rest[name])
    if "given_up" in rest:
        rest["given_up"] = tuple((attempt, cluster) for attempt, cluster in rest["given_up"])
    if "failures" in rest:
        rest["failures"] = {FailureClass(kind): number for kind, number in rest["failures"].items()}
    if "ending" in rest:
        rest["ending"] = Ending(**rest["ending"])
    if "holding" in rest:
        rest["holding"] = Holding(*rest["holding"])
    return ItemRow(
        task=task_of(stored)[0],
        number=stored.new.number,
        history=tuple(Transition(*step) for step in steps),
        priority=now.priority,
        attempt=now.attempt,
        cluster=now.cluster,
        fence=now.fence,
        finished_at=now.finished_at,
        decision=None if decision is None else decision_of(decision),
        **rest,
    )


def decision_of(stored: Decided) -> SchedulingDecision:
    return SchedulingDecision.from_dict(json.loads(stored.document))


def fleet_now(clusters: Iterable[ClusterRow], owners: Iterable[OwnerRow]) -> FleetNow:
    """What people said of clusters and owners; nothing, for those of whom nothing was said."""
    said = {one.name: _cluster(one) for one in clusters}
    return FleetNow(
        {name: _text(document) for name, document in said.items() if document},
        {one.name: _text({"paused": one.paused}) for one in owners},
    )


def fleet_rows(stored: FleetNow) -> tuple[tuple[ClusterRow, ...], tuple[OwnerRow, ...]]:
    clusters = []
    for name, text in stored.clusters.items():
        said = json.loads(text)
        if "dead" in said:
            said["dead"] = Trouble(**said["dead"])
        clusters.append(ClusterRow(name, **said))
    return tuple(clusters), tuple(OwnerRow(name, **json.loads(text)) for name, text in stored.owners.items())


def _cluster(row: ClusterRow) -> dict[str, Any]:
    said: dict[str, Any] = {"cordoned": True} if row.cordoned else {}
    if row.paused is not None:
        said["paused"] = row.paused
    if row.dead is not None:
        said["dead"] = asdict(row.dead)
    return said


def _text(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
