"""TaskQueue: who waits, grouped by shape, in order.

A task queue and a job queue, each global plus one per preferred cluster: these are the *lanes*. Within a lane,
items of one shape form a *group*, a heap in order. Placement decides a group's head; a head that has to wait
answers for the whole group, so ten thousand equal items cost one decision.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from ray_multicluster_scheduler.common.model import SchedulingDecision, TaskDescription
from ray_multicluster_scheduler.scheduler.queue.order import Order, OrderKey, PriorityThenFifo
from ray_multicluster_scheduler.scheduler.queue.shape import Lane, Shape, shape_of

_SLACK = 64


class ShapeGroup:
    """Waiting items of one shape. ``decision`` says why they wait; None while they were not looked at yet."""

    __slots__ = ("_heap", "_members", "decision", "shape")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.decision: SchedulingDecision | None = None
        self._heap: list[tuple[OrderKey, str]] = []
        self._members: dict[str, OrderKey] = {}

    def add(self, task_id: str, key: OrderKey) -> None:
        self._members[task_id] = key
        heapq.heappush(self._heap, (key, task_id))

    def remove(self, task_id: str) -> None:
        """Its heap entry stays until it comes up, or until such entries are the larger part."""
        del self._members[task_id]
        if len(self._heap) > 2 * len(self._members) + _SLACK:
            self._heap = [(key, one) for one, key in self._members.items()]
            heapq.heapify(self._heap)

    def head(self) -> tuple[OrderKey, str]:
        """The item whose turn it is. Raises IndexError when nobody waits here."""
        while self._members.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0]

    def ids(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


class TaskQueue:
    """O(log n) to enqueue, remove and (by :class:`QueueWalk`) pick, whatever the number of items."""

    def __init__(self, order: Order | None = None) -> None:
        self._order = order or PriorityThenFifo()
        self._groups: dict[Shape, ShapeGroup] = {}
        self._group_of: dict[str, ShapeGroup] = {}

    def enqueue(self, task: TaskDescription, number: int, *, retry: bool = False) -> ShapeGroup:
        """Let it wait. ``number`` is its submission number; a retry keeps its own and so its place."""
        shape = shape_of(task, retry=retry)
        group = self._groups.get(shape)
        if group is None:
            group = self._groups[shape] = ShapeGroup(shape)
        group.add(task.id, self._order.key(task, number))
        self._group_of[task.id] = group
        return group

    def remove(self, task_id: str) -> bool:
        """It no longer waits. False if it did not."""
        group = self._group_of.pop(task_id, None)
        if group is None:
            return False
        group.remove(task_id)
        if not group:
            del self._groups[group.shape]
        return True

    def group_of(self, task_id: str) -> ShapeGroup | None:
        """Where it waits, or None if it does not."""
        return self._group_of.get(task_id)

    def groups(self) -> Iterator[ShapeGroup]:
        """All groups; none is empty."""
        return iter(self._groups.values())

    def waiting_for(self, cluster: str) -> list[str]:
        """Ids of the items that go to this cluster or nowhere."""
        pinned = (group for group in self.groups() if group.shape.fallback == "wait")
        return [task_id for group in pinned if group.shape.lane.cluster == cluster for task_id in group.ids()]

    def depths(self) -> dict[Lane, int]:
        """How many wait in each lane that is not empty."""
        depths: dict[Lane, int] = {}
        for group in self.groups():
            depths[group.shape.lane] = depths.get(group.shape.lane, 0) + len(group)
        return depths

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._group_of

    def __len__(self) -> int:
        return len(self._group_of)
