"""Where transitions are written before they have any effect: in memory for an embedded control plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from ray_multicluster_scheduler.common.model import SchedulingDecision
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, Persist, Transition


class TransitionLog(Protocol):
    """The durable record, as far as the lifecycle manager needs it. Used on one loop."""

    def append(self, entries: Sequence[Persist]) -> None:
        """Write these steps, in this order."""

    def persist_item(self, task_id: str) -> None:
        """Write the row of this item: something of it has changed without a step."""

    def persist_fleet(self) -> None:
        """Write what people said of clusters and owners."""

    def record_completion(self, completion: Complete) -> None:
        """Write how an item ended: its last word to whoever asks."""

    def after_durable(self, deed: Callable[[], object]) -> None:
        """Do this when all that came before it is durable, and in the order in which it was said; maybe at once."""

    def flush(self) -> None:
        """Nothing more comes for now."""

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

    def persist_item(self, task_id: str) -> None:
        """What lives with its program needs no rows."""

    def persist_fleet(self) -> None:
        """Nor this."""

    def record_completion(self, completion: Complete) -> None:
        """Whoever wants to know holds a handle."""

    def after_durable(self, deed: Callable[[], object]) -> None:
        deed()

    def flush(self) -> None:
        """Nothing waits here."""

    def history(self, task_id: str) -> list[Transition]:
        return list(self._histories.get(task_id, ()))

    def decision(self, task_id: str) -> SchedulingDecision | None:
        decision = self._decisions.get(task_id)
        return None if decision is None else replace(decision, task_id=task_id)

    def forget(self, task_id: str) -> None:
        self._histories.pop(task_id, None)
        self._decisions.pop(task_id, None)
