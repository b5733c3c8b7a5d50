"""The history of a run: events and instructions of the scheduler machine, and what really happened on the clusters.

Lines are in chronological order. ``EventHandled`` and ``InstructionIssued`` passed through the machine. The other
lines are ground truth from the clusters and the fault injector, which the machine does not see. Simulations and faulty
runs write histories; `checker/` and `replay.py` read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import ClusterMetadata
from ray_multicluster_scheduler.scheduler.lifecycle.events import Event
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Instruction
from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from ray_multicluster_scheduler.simulation import wire

EndKind = Literal["succeeded", "failed", "crashed", "cancelled", "lease", "died"]
Parts: TypeAlias = Mapping[str, Mapping[str, float]]
"""Amounts by resource, by node."""


@dataclass(frozen=True, slots=True)
class RunSetup:
    """The first line: the settings that differ from the defaults, the clusters and the configured pools of the run."""

    at: float
    settings: Mapping[str, Any]
    clusters: tuple[ClusterMetadata, ...]
    pools: tuple[Pool, ...] = ()


@dataclass(frozen=True, slots=True)
class EventHandled:
    """The machine handled this event."""

    at: float
    event: Event


@dataclass(frozen=True, slots=True)
class InstructionIssued:
    """The machine answered the last event with this instruction."""

    at: float
    instruction: Instruction


@dataclass(frozen=True, slots=True)
class AttemptBegan:
    """Truth: user code of this attempt started on the cluster, and holds these amounts of these nodes."""

    at: float
    cluster: str
    task_id: str
    attempt: int
    fence: int
    parts: Parts = field(default_factory=dict)
    kind: str = "task"


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """Truth: the attempt ended. ``lease``: it ended itself without contact; ``died``: with its node or cluster."""

    at: float
    cluster: str
    task_id: str
    attempt: int
    how: EndKind


@dataclass(frozen=True, slots=True)
class NodesChanged:
    """Truth: the nodes that the cluster has from now on, with their sizes; none means that it is down."""

    at: float
    cluster: str
    nodes: Parts


@dataclass(frozen=True, slots=True)
class ControlPlaneCrashed:
    """The control plane crashed and lost everything that it had not persisted."""

    at: float


@dataclass(frozen=True, slots=True)
class ControlPlaneRestarted:
    """The control plane restarted from what it had persisted."""

    at: float


@dataclass(frozen=True, slots=True)
class FaultInjected:
    """A fault was injected."""

    at: float
    what: str


@dataclass(frozen=True, slots=True)
class StateDump:
    """The machine's own state, queried between two events.

    ``waiting`` maps every waiting item to its reason code and sentence. ``open_breakers`` are clusters with an open
    circuit breaker. ``left`` lists what the machine still holds after all items have ended. ``unequal`` lists how
    a machine rebuilt from the rows would differ.
    """

    at: float
    waiting: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    open_breakers: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    unequal: tuple[str, ...] = ()


HistoryLine: TypeAlias = (
    RunSetup
    | EventHandled
    | InstructionIssued
    | AttemptBegan
    | AttemptEnded
    | NodesChanged
    | ControlPlaneCrashed
    | ControlPlaneRestarted
    | FaultInjected
    | StateDump
)
History: TypeAlias = list[HistoryLine]
_LINE_TYPES: dict[str, type[HistoryLine]] = {
    "Setup": RunSetup,
    "Fed": EventHandled,
    "Told": InstructionIssued,
    "Began": AttemptBegan,
    "Over": AttemptEnded,
    "Nodes": NodesChanged,
    "Crashed": ControlPlaneCrashed,
    "Restarted": ControlPlaneRestarted,
    "Fault": FaultInjected,
    "Looked": StateDump,
}
"""The name of each kind of line in a file."""
_LINE_NAMES = {kind: name for name, kind in _LINE_TYPES.items()}


def to_dict(line: HistoryLine) -> dict[str, Any]:
    """One line as plain data; the key ``line`` names its kind."""
    data: dict[str, Any] = {"line": _LINE_NAMES[type(line)]}
    for name in line.__slots__:
        data[name] = getattr(line, name)
    match line:
        case EventHandled(event=event):
            data["event"] = wire.to_dict("event", event)
        case InstructionIssued(instruction=instruction):
            data["instruction"] = wire.to_dict("instruction", instruction)
        case RunSetup(clusters=clusters, pools=pools):
            data["clusters"] = [one.to_dict() for one in clusters]
            data["pools"] = [one.to_dict() for one in pools]
    return data


def from_dict(data: Mapping[str, Any]) -> HistoryLine:
    """Read one line. Raises ConfigurationError if the data is not a line of a history."""
    name = str(data.get("line"))
    kind = _LINE_TYPES.get(name)
    if kind is None:
        raise ConfigurationError(
            f"{data.get('line')!r} is not a kind of history line.",
            next_step=f"expected one of {', '.join(_LINE_TYPES)}",
        )
    given = {key: value for key, value in data.items() if key != "line"}
    try:
        if kind is EventHandled:
            given["event"] = wire.from_dict("event", given["event"])
        elif kind is InstructionIssued:
            given["instruction"] = wire.from_dict("instruction", given["instruction"])
        elif kind is RunSetup:
            given["clusters"] = tuple(ClusterMetadata.from_dict(one) for one in given["clusters"])
            given["pools"] = tuple(Pool.from_dict(one) for one in given.get("pools", ()))
        elif kind is StateDump:
            given["waiting"] = {task_id: (code, text) for task_id, (code, text) in given["waiting"].items()}
            given |= {key: tuple(given[key]) for key in ("open_breakers", "left", "unequal")}
        return kind(**given)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise ConfigurationError(
            f"A history line of kind {name} cannot be read: {problem!r}.",
            next_step="use an unmodified file that this version of rmcs wrote",
        ) from problem


def write_history(path: Path, history: Iterable[HistoryLine]) -> None:
    """Write one JSON object per line."""
    with path.open("w", encoding="utf-8") as file:
        for line in history:
            file.write(json.dumps(to_dict(line), separators=(",", ":")) + "\n")


def read_history(path: Path) -> Iterator[HistoryLine]:
    """The lines that write_history wrote. Raises ConfigurationError that names the line of the file, OSError."""
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            try:
                yield from_dict(json.loads(text))
            except (ConfigurationError, ValueError, AttributeError) as problem:
                message = f"{path}, line {number}: {problem}"
                if number == 1:  # a JSON error would not explain a file of another kind
                    what = problem if isinstance(problem, ConfigurationError) else "its first line is not JSON"
                    message = f"{path} is not a recorded run: {what}"
                raise ConfigurationError(
                    message, next_step="give a file that `rmcs simulate --record FILE` or `make sim-test` has written"
                ) from problem
