"""Codec for recorded histories: events and instructions as plain data and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from ray_multicluster_scheduler.common.model import (
    ClusterMetadata,
    FailureClass,
    ResourceSnapshot,
    SchedulingDecision,
    TaskDescription,
    TaskState,
)
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterProblem
from ray_multicluster_scheduler.scheduler.lifecycle.events import Event
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Instruction, Transition
from ray_multicluster_scheduler.scheduler.lifecycle.record import Ending, FreedRoom
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ClusterRow, ItemRow, OwnerRow, PoolRow, SentRow
from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from ray_multicluster_scheduler.scheduler.queue.owner_account import Holding

_KINDS: dict[str, dict[str, Any]] = {
    "event": {kind.__name__: kind for kind in get_args(Event)},
    "instruction": {kind.__name__: kind for kind in get_args(Instruction)},
}


def _pair(value: Any) -> tuple[str, int]:
    task_id, attempt = value
    return str(task_id), int(attempt)


def _item_row(data: Mapping[str, Any]) -> ItemRow:
    given = dict(data)
    given["task"] = TaskDescription.from_dict(given["task"])
    given["history"] = tuple(Transition.from_dict(one) for one in given["history"])
    given["earlier_fences"] = tuple(given["earlier_fences"])
    given["after"] = tuple(given["after"])
    given["given_up"] = tuple((attempt, cluster) for attempt, cluster in given["given_up"])
    given["failures"] = {FailureClass(kind): number for kind, number in given["failures"].items()}
    for name, kind in (("ending", Ending), ("holding", Holding)):
        if given[name] is not None:
            given[name] = kind(**given[name])
    if given.get("room") is not None:
        given["room"] = FreedRoom(**{**given["room"], "leave": tuple(given["room"]["leave"])})
    if given["decision"] is not None:
        given["decision"] = SchedulingDecision.from_dict(given["decision"])
    return ItemRow(**given)


def _cluster_row(data: Mapping[str, Any]) -> ClusterRow:
    dead = data["dead"]
    return ClusterRow(**{**data, "dead": None if dead is None else ClusterProblem(**dead)})


def _owner_row(data: Mapping[str, Any]) -> OwnerRow:
    limits = data.get("limits")  # older files have no such key
    return OwnerRow(data["name"], data["paused"], None if limits is None else OwnerLimits.model_validate(limits))


def _pool_row(data: Mapping[str, Any]) -> PoolRow:
    return PoolRow(data["name"], None if data["pool"] is None else Pool.from_dict(data["pool"]))


# How to read a field by its name; all others are plain data. None stays None.
_READERS: dict[str, Callable[[Any], Any]] = {
    "items": lambda rows: tuple(_item_row(row) for row in rows),
    "clusters": lambda rows: tuple(_cluster_row(row) for row in rows),
    "owners": lambda rows: tuple(_owner_row(row) for row in rows),
    "pools": lambda rows: tuple(_pool_row(row) for row in rows),
    "pool": Pool.from_dict,
    "sent": lambda rows: tuple(SentRow(**row) for row in rows),
    "limits": OwnerLimits.model_validate,
    "task": TaskDescription.from_dict,
    "snapshot": ResourceSnapshot.from_dict,
    "metadata": ClusterMetadata.from_dict,
    "failure": FailureClass,
    "ended": _pair,
    "begun": _pair,
    "transition": Transition.from_dict,
    "decision": SchedulingDecision.from_dict,
    "state": TaskState,
}


_ROWS = (ItemRow, ClusterRow, OwnerRow, PoolRow, SentRow)


def _plain_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass or named tuple by name, as plain data."""
    names: tuple[str, ...] = getattr(value, "_fields", None) or value.__slots__
    return {name: _plain(getattr(value, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, (*_ROWS, Ending, FreedRoom, Holding, ClusterProblem)):
        return _plain_fields(value)
    if isinstance(value, tuple) and value and isinstance(value[0], (*_ROWS, Transition)):
        return [_plain(one) for one in value]
    if isinstance(value, OwnerLimits):
        return value.model_dump()
    made = getattr(value, "to_dict", None)
    return value if made is None else made()


def to_dict(what: Literal["event", "instruction"], value: Event | Instruction) -> dict[str, Any]:
    """The fields by name; the key ``event`` or ``instruction`` names the type."""
    return {what: type(value).__name__, **_plain_fields(value)}


def from_dict(what: Literal["event", "instruction"], data: Mapping[str, Any]) -> Any:
    """Read an event or instruction. Raises KeyError, TypeError or ValueError if the data is not one."""
    kind = _KINDS[what].get(data[what])
    if kind is None:
        raise ValueError(f"{data[what]!r} is not an {what}")
    given = {}
    for name, value in data.items():
        if name != what:
            reader = _READERS.get(name)
            given[name] = value if reader is None or value is None else reader(value)
    return kind(**given)
