"""Where transitions are written before they have any effect: in memory for an embedded control plane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from ray_multicluster_scheduler.common.model import SchedulingDecision
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Persist, Transition


class TransitionLog(Protocol):
    """The durable record, as far as the lifecycle manager needs it."""

    def append(self, entries: Sequence[Persist]) -> None:
        """Durable when it returns."""

    def history(self, task_id: str) -> list[Transition]:
        """Every step of an item, oldest first."""

    def decision(self, task_id: str) -> SchedulingDecision | None:
        """The newest placement decision."""

    def forget(self, task_id: str) -> None:
        """Retention is over."""


class MemoryTransitionLog:
    """Lives and dies with the program."""

    def __init__(self) -> None:
        self._histories: dict[str, list[Transition]] = {}
        self._decisions: dict[str, SchedulingDecision] = {}

    def append(self, entries: Sequence[Persist]) -> None:
        for entry in entries:
            self._histories.setdefault(entry.transition.task_id, []).append(entry.transition)
            if entry.decision is not None:
                self._decisions[entry.transition.task_id] = entry.decision

    def history(self, task_id: str) -> list[Transition]:
        return list(self._histories.get(task_id, ()))

    def decision(self, task_id: str) -> SchedulingDecision | None:
        decision = self._decisions.get(task_id)
        return None if decision is None else replace(decision, task_id=task_id)

    def forget(self, task_id: str) -> None:
        self._histories.pop(task_id, None)
        self._decisions.pop(task_id, None)
