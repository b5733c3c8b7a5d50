"""Codec for recorded histories: events and instructions as plain data and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

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
from ray_multicluster_scheduler.scheduler.lifecycle.record import Ending
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ClusterRow, ItemRow, OwnerRow, SentRow
from ray_multicluster_scheduler.scheduler.queue.owner_account import Holding

_EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}
_INSTRUCTIONS: dict[str, type[Instruction]] = {kind.__name__: kind for kind in get_args(Instruction)}


def _pair(value: Any) -> tuple[str, int]:
    task_id, attempt = value
    return str(task_id), int(attempt)


def _plain_row(row: Any) -> dict[str, Any]:
    """The fields of a row by name, with nested values as plain data."""
    return {name: _plain_in_row(getattr(row, name)) for name in _names(type(row))}


def _plain_in_row(value: Any) -> Any:
    if isinstance(value, Ending | Holding | ClusterProblem):
        return _plain_row(value)
    if isinstance(value, tuple) and value and isinstance(value[0], Transition):
        return [one.to_dict() for one in value]
    return _plain(value)


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
    if given["decision"] is not None:
        given["decision"] = SchedulingDecision.from_dict(given["decision"])
    return ItemRow(**given)


def _cluster_row(data: Mapping[str, Any]) -> ClusterRow:
    dead = data["dead"]
    return ClusterRow(**{**data, "dead": None if dead is None else ClusterProblem(**dead)})


def _owner_row(data: Mapping[str, Any]) -> OwnerRow:
    limits = data.get("limits")  # absent in older files
    return OwnerRow(data["name"], data["paused"], None if limits is None else OwnerLimits.model_validate(limits))


# How to read a field by its name; all others are plain data. None stays None.
_READERS: dict[str, Callable[[Any], Any]] = {
    "items": lambda rows: tuple(_item_row(row) for row in rows),
    "clusters": lambda rows: tuple(_cluster_row(row) for row in rows),
    "owners": lambda rows: tuple(_owner_row(row) for row in rows),
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


def _names(kind: Any) -> tuple[str, ...]:
    fields: tuple[str, ...] = getattr(kind, "_fields", None) or kind.__slots__
    return fields


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and value and isinstance(value[0], ItemRow | ClusterRow | OwnerRow | SentRow):
        return [_plain_row(row) for row in value]
    if isinstance(value, OwnerLimits):
        return value.model_dump()
    made = getattr(value, "to_dict", None)
    return value if made is None else made()


def _to_dict(what: str, one: Any) -> dict[str, Any]:
    return {what: type(one).__name__, **{name: _plain(getattr(one, name)) for name in _names(type(one))}}


def _from_dict(what: str, kinds: Mapping[str, Any], data: Mapping[str, Any]) -> Any:
    kind = kinds.get(data[what])
    if kind is None:
        raise ValueError(f"{data[what]!r} is not an {what}")
    given = {}
    for name, value in data.items():
        if name != what:
            reader = _READERS.get(name)
            given[name] = value if reader is None or value is None else reader(value)
    return kind(**given)


def event_to_dict(event: Event) -> dict[str, Any]:
    """The fields by name; ``event`` names the type."""
    return _to_dict("event", event)


def event_from_dict(data: Mapping[str, Any]) -> Event:
    """Raises KeyError, TypeError or ValueError if the data is not an event."""
    event: Event = _from_dict("event", _EVENTS, data)
    return event


def instruction_to_dict(instruction: Instruction) -> dict[str, Any]:
    """The fields by name; ``instruction`` names the type."""
    return _to_dict("instruction", instruction)


def instruction_from_dict(data: Mapping[str, Any]) -> Instruction:
    """Raises KeyError, TypeError or ValueError if the data is not an instruction."""
    instruction: Instruction = _from_dict("instruction", _INSTRUCTIONS, data)
    return instruction
