"""Prerequisites: what accepted items wait for before they may be queued: arguments, other items, a time."""

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
    """What those who waited for an item need to know of its end."""

    task_id: str
    state: TaskState
    sentence: str


@dataclass(slots=True)
class UnmetPrerequisites:
    """What one item still waits for. It may be queued once nothing of it is left."""

    arguments: str = ""
    after: dict[str, None] = field(default_factory=dict)
    begins_at: float | None = None
    owner: str = ""

    def __bool__(self) -> bool:
        return bool(self.arguments or self.after or self.begins_at is not None)

    @property
    def code(self) -> str:
        """The reason code of the first that is missing."""
        if self.arguments:
            return codes.WAITS_FOR_ARGUMENTS
        return codes.WAITS_FOR_DEPENDENCIES if self.after else codes.STARTS_LATER

    @property
    def sentence(self) -> str:
        """All that is missing, for people."""
        parts = [self.arguments] if self.arguments else []
        if self.after:
            parts.append(f"waits for {_some(self.after)} to succeed")
        if self.begins_at is not None:
            parts.append(f"may start from {_shown(self.begins_at)} on")
        return "; ".join(parts)

    @property
    def unblocked_by(self) -> str:
        """What would let it go on."""
        parts = ["its arguments have values"] if self.arguments else []
        if self.after:
            parts.append(f"{_some(self.after)} {'succeeds' if len(self.after) == 1 else 'succeed'}")
        if self.begins_at is not None:
            parts.append(f"it is {_shown(self.begins_at)}")
        return " and ".join(parts)


class Prerequisites:
    """Who waits for what. An end is only noted here; who waited is looked at later, a bounded number at a time."""

    def __init__(self) -> None:
        self._missing: dict[str, UnmetPrerequisites] = {}
        self._of_owner: Counter[str] = Counter()
        self._waiting_for: dict[str, dict[str, None]] = {}
        self._ends: deque[tuple[DependencyOutcome, deque[str]]] = deque()
        self._forgotten: OrderedDict[str, TaskState] = OrderedDict()

    def __len__(self) -> int:
        """How many items wait here."""
        return len(self._missing)

    def of(self, task_id: str) -> UnmetPrerequisites | None:
        """What it waits for; None if it does not wait here."""
        return self._missing.get(task_id)

    def count_of_owner(self, owner: str) -> int:
        """How many of this owner's items do."""
        return self._of_owner[owner]

    def add(self, task_id: str, missing: UnmetPrerequisites) -> None:
        """From now on it waits for these."""
        self._missing[task_id] = missing
        self._of_owner[missing.owner] += 1
        for other in missing.after:
            self._waiting_for.setdefault(other, {})[task_id] = None

    def remove(self, task_id: str) -> None:
        """Nothing is missing any more, or nobody asks any more; nothing happens if it does not wait here."""
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
        """An item is over: it waits no longer, and those that wait for it are told in turn."""
        self.remove(end.task_id)
        waiting = self._waiting_for.pop(end.task_id, None)
        if waiting:
            self._ends.append((end, deque(waiting)))

    def next_notification(self) -> tuple[DependencyOutcome, str] | None:
        """An end, and one item that waited for it and still waits; None when all were told."""
        if not self.has_notifications():
            return None
        end, waiting = self._ends[0]
        task_id = waiting.popleft()
        del self._missing[task_id].after[end.task_id]
        return end, task_id

    def has_notifications(self) -> bool:
        """Has somebody who still waits not been told of an end yet?"""
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
        """Its record is dropped. How it ended is kept for a while longer, for those that come after it."""
        self._forgotten[task_id] = state
        if len(self._forgotten) > KEPT_FORGOTTEN:
            self._forgotten.popitem(last=False)

    def forgotten_outcome(self, task_id: str) -> DependencyOutcome | None:
        """How an item ended whose record was dropped."""
        state = self._forgotten.get(task_id)
        return None if state is None else DependencyOutcome(task_id, state, "it ended long ago, and why was forgotten")


def _some(names: Collection[str]) -> str:
    shown = ", ".join(name for name, _ in zip(names, range(_NAMED), strict=False))
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown


def _shown(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
