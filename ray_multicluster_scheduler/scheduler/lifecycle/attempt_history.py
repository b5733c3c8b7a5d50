"""The attempts of an item, one row each, derived from its transitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Transition
from ray_multicluster_scheduler.scheduler.lifecycle.transitions import LIVE

_HOW = {
    TaskState.RETRYING: "failed",
    TaskState.QUEUED: "called back",
    TaskState.SUCCEEDED: "succeeded",
    TaskState.FAILED: "failed",
    TaskState.CANCELLED: "cancelled",
}


@dataclass(slots=True)
class AttemptRow:
    """One attempt. ``ended_as`` is None while it may be alive; ``code`` and ``sentence`` are those of its newest
    transition."""

    attempt: int
    cluster: str | None
    fence: int | None
    sent_at: float
    started_at: float | None = None
    ended_at: float | None = None
    ended_as: str | None = None
    code: str = ""
    sentence: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def attempts_of(history: Iterable[Transition], fences: Mapping[int, int]) -> list[AttemptRow]:
    """The attempts of an item, oldest first. ``fences`` by attempt number, as far as they are known."""
    rows: dict[int, AttemptRow] = {}
    for step in history:
        row = rows.get(step.attempt)
        if row is None:
            if step.state is not TaskState.DISPATCHING:
                continue
            row = rows[step.attempt] = AttemptRow(step.attempt, step.cluster, fences.get(step.attempt), step.at)
        if row.ended_as is not None:
            continue
        if step.state is TaskState.RUNNING and row.started_at is None:
            row.started_at = step.at
        if step.state not in LIVE:
            row.ended_at, row.ended_as = step.at, _HOW[step.state]
        row.code, row.sentence = step.code, step.sentence
    return list(rows.values())
