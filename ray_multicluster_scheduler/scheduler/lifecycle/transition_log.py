"""TransitionLog: where transitions are written before they take effect; MemoryTransitionLog for an embedded control
plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from ray_multicluster_scheduler.common.model import SchedulingDecision
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, Persist, Transition


class TransitionLog(Protocol):
    """The durable record, as the lifecycle manager uses it. Used on one event loop."""

    def append(self, entries: Sequence[Persist]) -> None:
        """Write these transitions in order."""

    def persist_item(self, task_id: str) -> None:
        """Write the row of this item, which changed without a transition."""

    def persist_fleet(self) -> None:
        """Write the rows of clusters and owners."""

    def record_completion(self, completion: Complete) -> None:
        """Write how an item ended."""

    def after_durable(self, action: Callable[[], object]) -> None:
        """Run this when all earlier writes are durable, in the order of the calls; maybe at once."""

    def flush(self) -> None:
        """No more writes follow for now."""

    def history(self, task_id: str) -> list[Transition]:
        """Every step of an item, oldest first."""

    def decision(self, task_id: str) -> SchedulingDecision | None:
        """The newest placement decision."""

    def forget(self, task_id: str) -> None:
        """Delete the item: its retention time is over."""


class MemoryTransitionLog:
    """Keeps histories in memory only."""

    def __init__(self) -> None:
        self._histories: dict[str, list[Transition]] = {}
        self._decisions: dict[str, SchedulingDecision] = {}

    def append(self, entries: Sequence[Persist]) -> None:
        for entry in entries:
            self._histories.setdefault(entry.transition.task_id, []).append(entry.transition)
            if entry.decision is not None:
                self._decisions[entry.transition.task_id] = entry.decision

    def persist_item(self, task_id: str) -> None:
        """Nothing to write: state in memory ends with the program."""

    def persist_fleet(self) -> None:
        """Nothing to write."""

    def record_completion(self, completion: Complete) -> None:
        """Nothing to write: the program holds a handle."""

    def after_durable(self, action: Callable[[], object]) -> None:
        action()

    def flush(self) -> None:
        """Nothing is buffered."""

    def history(self, task_id: str) -> list[Transition]:
        return list(self._histories.get(task_id, ()))

    def decision(self, task_id: str) -> SchedulingDecision | None:
        decision = self._decisions.get(task_id)
        return None if decision is None else replace(decision, task_id=task_id)

    def forget(self, task_id: str) -> None:
        self._histories.pop(task_id, None)
        self._decisions.pop(task_id, None)
