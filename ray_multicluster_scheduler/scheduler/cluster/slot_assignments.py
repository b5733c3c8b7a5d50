"""SlotAssignments: which of our attempts hold a slot on a cluster, and which were prefetched to it.

A slot that is freed can be taken over by an attempt of the same shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.common.model.resources import ResourceShape, shape_of

Key = TypeVar("Key")


@dataclass(slots=True)
class Slot:
    """The slot of an attempt. ``short``: it is expected to end within ``prefetch_ms``; ``undeclared``: it holds no
    resources."""

    kind: str
    shape: ResourceShape
    short: bool
    ready: bool = False
    undeclared: bool = False


@dataclass(frozen=True, slots=True)
class PrefetchedAttempt:
    """An attempt that was sent before a slot was free."""

    shape: ResourceShape
    priority: float
    since: float


class SlotAssignments:
    """Slots of one cluster. Prefetched attempts are counted apart: they hold nothing."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._changed = on_change
        self.held: dict[str, Slot] = {}
        self.prefetched: dict[str, PrefetchedAttempt] = {}
        self._short_slots: Counter[ResourceShape] = Counter()
        self._prefetched_counts: Counter[ResourceShape] = Counter()
        self._priorities: Counter[float] = Counter()
        self.running_jobs = 0
        self.ready_actors = 0
        self.undeclared = 0
        """The number of items that hold no resources."""

    def assign(self, task: TaskDescription, *, short: bool = False) -> None:
        """Give the item a slot."""
        place = self.held[task.id] = Slot(task.kind, shape_of(task.requirements), short, undeclared=not task.placement)
        self._changed()
        if short:
            self._short_slots[place.shape] += 1
        self.running_jobs += place.kind == "job"
        self.undeclared += place.undeclared

    def release(self, task_id: str) -> Slot | None:
        """Free the slot of an item; None if it had none."""
        place = self.held.pop(task_id, None)
        if place is not None:
            self._changed()
            if place.short:
                _one_less(self._short_slots, place.shape)
            self.running_jobs -= place.kind == "job"
            self.ready_actors -= place.ready
            self.undeclared -= place.undeclared
        return place

    def actor_ready(self, task_id: str) -> None:
        place = self.held.get(task_id)
        if place is not None and not place.ready:
            self._changed()
            place.ready = True
            self.ready_actors += 1
            if not place.shape and not place.undeclared:  # it was placed by more than it holds now
                place.undeclared = True
                self.undeclared += 1

    def add_prefetched(self, task: TaskDescription, now: float) -> None:
        """The item was sent there and waits for a slot."""
        of = shape_of(task.requirements)
        self.prefetched[task.id] = PrefetchedAttempt(of, task.priority, now)
        self._changed()
        self._prefetched_counts[of] += 1
        self._priorities[task.priority] += 1

    def remove_prefetched(self, task_id: str) -> PrefetchedAttempt | None:
        """The item no longer waits for a slot; None if it did not."""
        waiting = self.prefetched.pop(task_id, None)
        if waiting is not None:
            self._changed()
            _one_less(self._prefetched_counts, waiting.shape)
            _one_less(self._priorities, waiting.priority)
        return waiting

    def has_prefetched_below(self, priority: float) -> bool:
        """Was anything less urgent than this prefetched?"""
        return any(below < priority for below in self._priorities)

    def short_slot_shapes(self) -> list[ResourceShape]:
        """Shapes with slots that will soon be free."""
        return list(self._short_slots)

    def short_slots(self, of: ResourceShape) -> int:
        """The number of slots of this shape that will soon be free."""
        return self._short_slots[of]

    def prefetched_count(self, of: ResourceShape) -> int:
        """The number of prefetched attempts of this shape."""
        return self._prefetched_counts[of]

    def oldest_prefetched(self, of: ResourceShape) -> Iterable[str]:
        """Prefetched attempts of this shape in the order in which they were sent."""
        if not self._prefetched_counts[of]:
            return ()
        return (task_id for task_id, waiting in self.prefetched.items() if waiting.shape == of)


def _one_less(counts: Counter[Key], key: Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
