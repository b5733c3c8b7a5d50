"""A history: what the machine was told, what it answered, and what was true over there meanwhile.

Lines stand in the order in which things happened. ``Fed`` and ``Told`` are what passed through the machine; the other
lines are the truth, as only a cluster (or whoever injects a fault) knows it: the machine does not see them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import ClusterMetadata
from ray_multicluster_scheduler.scheduler.lifecycle.events import Event
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Instruction
from ray_multicluster_scheduler.simulation.wire import (
    event_from_dict,
    event_to_dict,
    instruction_from_dict,
    instruction_to_dict,
)

How = Literal["succeeded", "failed", "crashed", "cancelled", "lease", "died"]
HOWS: tuple[str, ...] = get_args(How)
Parts: TypeAlias = Mapping[str, Mapping[str, float]]
"""Amounts by resource, by node."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The first line: the settings (as a mapping, only those that are not the default) and the clusters of the run."""

    at: float
    settings: Mapping[str, Any]
    clusters: tuple[ClusterMetadata, ...]


@dataclass(frozen=True, slots=True)
class Fed:
    """The machine was told this."""

    at: float
    event: Event


@dataclass(frozen=True, slots=True)
class Told:
    """It answered this."""

    at: float
    instruction: Instruction


@dataclass(frozen=True, slots=True)
class Began:
    """Truth: user code of this attempt begins over there, and holds this on these nodes from now on."""

    at: float
    cluster: str
    task_id: str
    attempt: int
    fence: int
    parts: Parts = field(default_factory=dict)
    kind: str = "task"


@dataclass(frozen=True, slots=True)
class Over:
    """Truth: it is over there. ``lease``: it ended itself for want of contact; ``died``: with its node or cluster."""

    at: float
    cluster: str
    task_id: str
    attempt: int
    how: How


@dataclass(frozen=True, slots=True)
class Nodes:
    """Truth: what the cluster has from now on, by node; nothing means that it is down."""

    at: float
    cluster: str
    nodes: Parts


@dataclass(frozen=True, slots=True)
class Crashed:
    """The control plane died; nothing that it had not persisted is left."""

    at: float


@dataclass(frozen=True, slots=True)
class Restarted:
    """It came back, rebuilt from what it had persisted."""

    at: float


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault was injected."""

    at: float
    what: str


@dataclass(frozen=True, slots=True)
class Looked:
    """What the machine says of itself when it is asked, between two events.

    ``waiting`` is every waiting item's code and sentence, ``open_breakers`` are the clusters that take no work because
    they keep failing. ``left`` is what it holds although nothing is unfinished; ``unequal`` is how one rebuilt from its
    rows at this moment would differ from it, in words.
    """

    at: float
    waiting: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    open_breakers: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    unequal: tuple[str, ...] = ()


Line: TypeAlias = Setup | Fed | Told | Began | Over | Nodes | Crashed | Restarted | Fault | Looked
History: TypeAlias = list[Line]
_KINDS: dict[str, type[Line]] = {kind.__name__: kind for kind in get_args(Line)}


def to_dict(line: Line) -> dict[str, Any]:
    """One line as plain data; ``line`` says what it is."""
    data: dict[str, Any] = {"line": type(line).__name__}
    for name in line.__slots__:
        data[name] = getattr(line, name)
    match line:
        case Fed(event=event):
            data["event"] = event_to_dict(event)
        case Told(instruction=instruction):
            data["instruction"] = instruction_to_dict(instruction)
        case Setup(clusters=clusters):
            data["clusters"] = [one.to_dict() for one in clusters]
    return data


def from_dict(data: Mapping[str, Any]) -> Line:
    """The line that this was. Raises ConfigurationError for what is none."""
    kind = _KINDS.get(str(data.get("line")))
    if kind is None:
        raise ConfigurationError(
            f"{data.get('line')!r} is no kind of line of a history.", next_step=f"expected one of {', '.join(_KINDS)}"
        )
    given = {name: value for name, value in data.items() if name != "line"}
    try:
        if kind is Fed:
            given["event"] = event_from_dict(given["event"])
        elif kind is Told:
            given["instruction"] = instruction_from_dict(given["instruction"])
        elif kind is Setup:
            given["clusters"] = tuple(ClusterMetadata.from_dict(one) for one in given["clusters"])
        elif kind is Looked:
            given["waiting"] = {task_id: (code, text) for task_id, (code, text) in given["waiting"].items()}
            given |= {name: tuple(given[name]) for name in ("open_breakers", "left", "unequal")}
        return kind(**given)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise ConfigurationError(
            f"A line {kind.__name__} of a history cannot be read: {problem!r}.",
            next_step="take the file as it was written by this version",
        ) from problem


def write_history(path: Path, history: Iterable[Line]) -> None:
    """One JSON object for each line."""
    with path.open("w", encoding="utf-8") as file:
        for line in history:
            file.write(json.dumps(to_dict(line), separators=(",", ":")) + "\n")


def read_history(path: Path) -> Iterator[Line]:
    """The lines that write_history wrote. Raises ConfigurationError that names the line of the file, OSError."""
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            try:
                yield from_dict(json.loads(text))
            except (ConfigurationError, ValueError, AttributeError) as problem:
                where = f"{path}, line {number}: {problem}"
                if number == 1:  # a word of JSON's says nothing about another kind of file
                    what = problem if isinstance(problem, ConfigurationError) else "it does not begin as one"
                    where = f"{path} is no recorded run: {what}"
                raise ConfigurationError(
                    where,
                    next_step="give a file that `rmcs simulate --record FILE` or `make sim-test` has written",
                ) from problem
