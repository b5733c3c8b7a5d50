"""QueueWalk: picks groups by their heads, first in order first, until each had its say."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from ray_multicluster_scheduler.scheduler.queue.order import OrderKey
from ray_multicluster_scheduler.scheduler.queue.shape import Shape
from ray_multicluster_scheduler.scheduler.queue.task_queue import ShapeGroup


class QueueWalk:
    """One walk over the queue. The queue may change meanwhile; groups that are not offered again are done."""

    def __init__(self, groups: Iterable[ShapeGroup] = ()) -> None:
        self._heap: list[tuple[OrderKey, str, ShapeGroup]] = []
        self._open: dict[Shape, OrderKey] = {}
        for group in groups:
            self.offer(group)

    def offer(self, group: ShapeGroup) -> None:
        """It has to be looked at (again). An empty one is not."""
        if not group:
            return
        key, task_id = group.head()
        if self._open.get(group.shape) != key:
            self._open[group.shape] = key
            heapq.heappush(self._heap, (key, task_id, group))

    def next(self) -> tuple[str, ShapeGroup] | None:
        """The group whose head comes first of all, and that head; None when the walk is over."""
        while self._heap:
            key, task_id, group = heapq.heappop(self._heap)
            if self._open.get(group.shape) != key:
                continue  # it was offered again with another head
            del self._open[group.shape]
            if group and group.head() == (key, task_id):
                return task_id, group
            self.offer(group)
        return None

    def __bool__(self) -> bool:
        return bool(self._open)
