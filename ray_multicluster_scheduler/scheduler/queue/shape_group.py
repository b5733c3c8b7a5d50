"""ShapeGroup: waiting items of one priority and one shape (equal for placement), in order of submission."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from ray_multicluster_scheduler.common.model import SchedulingDecision
from ray_multicluster_scheduler.scheduler.queue.shape import Shape, eligibility_class

_SLACK = 64
"""Stale heap entries that are tolerated beyond the number of waiting items."""


class QueueEntry(NamedTuple):
    """One waiting item of a group: its submission number, its id, and since when it waits."""

    number: int
    task_id: str
    since: float


class ShapeGroup:
    """Waiting items of one shape and priority. ``decision`` is why they wait; None before the first decision.
    ``parked``: the queue skips the group."""

    __slots__ = ("_heap", "_members", "decision", "eligibility", "need", "parked", "priority", "shape")

    def __init__(self, shape: Shape, priority: float) -> None:
        self.shape = shape
        self.priority = priority
        self.eligibility = eligibility_class(shape)
        self.need = dict(shape.placement)
        self.decision: SchedulingDecision | None = None
        self.parked = False
        self._heap: list[QueueEntry] = []
        self._members: dict[str, QueueEntry] = {}

    def add(self, task_id: str, number: int, since: float) -> None:
        self._members[task_id] = head = QueueEntry(number, task_id, since)
        heapq.heappush(self._heap, head)

    def remove(self, task_id: str) -> QueueEntry:
        """Remove an item and return its entry. Stale heap entries are dropped lazily."""
        gone = self._members.pop(task_id)
        if len(self._heap) > 2 * len(self._members) + _SLACK:
            self._heap = list(self.entries())
            heapq.heapify(self._heap)
        return gone

    def head(self) -> QueueEntry:
        """The next item. Raises IndexError when the group is empty."""
        while self._members.get(self._heap[0][1]) is not self._heap[0]:
            heapq.heappop(self._heap)
        return self._heap[0]

    def task_ids(self) -> Iterator[str]:
        return iter(self._members)

    def entry(self, task_id: str) -> QueueEntry:
        """Raises KeyError for an item that does not wait here."""
        return self._members[task_id]

    def entries(self) -> Iterator[QueueEntry]:
        """All entries, in no order."""
        return iter(self._members.values())

    def first(self, most: int) -> list[QueueEntry]:
        """The first entries in order, without a walk through all of them."""
        found: list[QueueEntry] = []
        reachable = [(entry, 0) for entry in self._heap[:1]]
        while reachable and len(found) < most:
            entry, at = heapq.heappop(reachable)
            if self._members.get(entry.task_id) is entry:
                found.append(entry)
            for child in range(2 * at + 1, min(2 * at + 3, len(self._heap))):
                heapq.heappush(reachable, (self._heap[child], child))
        return found

    def __len__(self) -> int:
        return len(self._members)
