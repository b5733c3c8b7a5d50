"""Prerequisites: what accepted items wait for before they are queued: arguments, other items, a start time."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import codes

KEPT_FORGOTTEN = 100_000
_NAMED = 3


class DependencyOutcome(NamedTuple):
    """The end of an item, for the items that depend on it."""

    task_id: str
    state: TaskState
    sentence: str


@dataclass(slots=True)
class UnmetPrerequisites:
    """The conditions that one item still waits for; it is queued when all of it is there."""

    arguments: str = ""
    after: dict[str, None] = field(default_factory=dict)
    begins_at: float | None = None
    owner: str = ""

    def __bool__(self) -> bool:
        return bool(self.arguments or self.after or self.begins_at is not None)

    @property
    def code(self) -> str:
        """The reason code of the first missing prerequisite."""
        if self.arguments:
            return codes.WAITS_FOR_ARGUMENTS
        return codes.WAITS_FOR_DEPENDENCIES if self.after else codes.STARTS_LATER

    @property
    def sentence(self) -> str:
        """All missing prerequisites as one sentence."""
        parts = [self.arguments] if self.arguments else []
        if self.after:
            parts.append(f"waits for {_first_names(self.after)} to succeed")
        if self.begins_at is not None:
            parts.append(f"may start from {_shown(self.begins_at)} on")
        return "; ".join(parts)

    @property
    def unblocked_by(self) -> str:
        """The event that would let it continue."""
        parts = ["its arguments have values"] if self.arguments else []
        if self.after:
            parts.append(f"{_first_names(self.after)} {'succeeds' if len(self.after) == 1 else 'succeed'}")
        if self.begins_at is not None:
            parts.append(f"it is {_shown(self.begins_at)}")
        return " and ".join(parts)


class Prerequisites:
    """Dependencies between items. An end is only recorded; dependents are notified later, a bounded number per call."""

    def __init__(self) -> None:
        self._missing: dict[str, UnmetPrerequisites] = {}
        self._of_owner: Counter[str] = Counter()
        self._waiting_for: dict[str, dict[str, None]] = {}
        self._ends: deque[tuple[DependencyOutcome, deque[str]]] = deque()
        self._forgotten: OrderedDict[str, TaskState] = OrderedDict()

    def __len__(self) -> int:
        """The number of items that wait here."""
        return len(self._missing)

    def of(self, task_id: str) -> UnmetPrerequisites | None:
        """The conditions that the item waits for; None if nothing is missing."""
        return self._missing.get(task_id)

    def count_of_owner(self, owner: str) -> int:
        """The number of this owner's items that wait here."""
        return self._of_owner[owner]

    def add(self, task_id: str, missing: UnmetPrerequisites) -> None:
        """The item waits for these from now on."""
        self._missing[task_id] = missing
        self._of_owner[missing.owner] += 1
        for other in missing.after:
            self._waiting_for.setdefault(other, {})[task_id] = None

    def remove(self, task_id: str) -> None:
        """The item waits no longer; no effect if it did not."""
        missing = self._missing.pop(task_id, None)
        if missing is None:
            return
        self._of_owner[missing.owner] -= 1
        if not self._of_owner[missing.owner]:
            del self._of_owner[missing.owner]
        for other in missing.after:
            waiting = self._waiting_for.get(other)
            if waiting is not None:
                waiting.pop(task_id, None)
                if not waiting:
                    del self._waiting_for[other]

    def item_ended(self, end: DependencyOutcome) -> None:
        """An item has ended: remove it, and queue the notification of its dependents."""
        self.remove(end.task_id)
        waiting = self._waiting_for.pop(end.task_id, None)
        if waiting:
            self._ends.append((end, deque(waiting)))

    def next_notification(self) -> tuple[DependencyOutcome, str] | None:
        """An ended item and one dependent that still waits for it; None when all were notified."""
        if not self.has_notifications():
            return None
        end, waiting = self._ends[0]
        task_id = waiting.popleft()
        del self._missing[task_id].after[end.task_id]
        return end, task_id

    def has_notifications(self) -> bool:
        """Is there a dependent that was not notified of an end yet?"""
        while self._ends:
            end, waiting = self._ends[0]
            while waiting:
                missing = self._missing.get(waiting[0])
                if missing is not None and end.task_id in missing.after:
                    return True
                waiting.popleft()
            self._ends.popleft()
        return False

    def forget(self, task_id: str, state: TaskState) -> None:
        """The record of the item is dropped; keep its end state for a while for later dependents."""
        self._forgotten[task_id] = state
        if len(self._forgotten) > KEPT_FORGOTTEN:
            self._forgotten.popitem(last=False)

    def forgotten_outcome(self, task_id: str) -> DependencyOutcome | None:
        """The end of an item whose record was dropped; None if it is unknown."""
        state = self._forgotten.get(task_id)
        return (
            None
            if state is None
            else DependencyOutcome(task_id, state, "it ended long ago, and its reason was dropped")
        )


def _first_names(names: Collection[str]) -> str:
    shown = ", ".join(name for name, _ in zip(names, range(_NAMED), strict=False))
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown


def _shown(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
