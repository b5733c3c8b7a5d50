"""SlotAllocator: decides for ``CallRunner`` which waiting calls to submit to Ray now, as the control plane's slots in
this cluster become free. It does not use Ray."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from ray_multicluster_scheduler.common.model.resources import ResourceShape
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import Key

EARLY_S = 0.02
"""The work that may wait in Ray behind each slot; it cannot be recalled from there."""
OVERHEAD_S = 0.001
MAX_EARLY = 16
_RECENT, _MIN_SAMPLES = 8, 4


@dataclass(slots=True)
class _ShapeQueue:
    """The calls of one resource shape. ``early`` calls were submitted to Ray before they had a slot: one for each slot,
    and more only while they are no more than ``EARLY_S`` of work. ``waiting`` is in the order of arrival; its values
    are whether a call may be submitted early."""

    holders: set[Key] = field(default_factory=set)
    early: OrderedDict[Key, None] = field(default_factory=OrderedDict)
    waiting: OrderedDict[Key, bool] = field(default_factory=OrderedDict)
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    early_per_slot: int = 1
    """Ray keeps a worker for us only while it has its next call: several for the shortest calls, otherwise one."""

    def submit_early(self) -> list[Key]:
        """Move as many waiting calls as allowed to ``early``, in order; one that may not be early blocks those
        behind."""
        submitted = []
        limit = len(self.holders) * self.early_per_slot
        while self.waiting and len(self.early) < limit and next(iter(self.waiting.values())):
            key, _ = self.waiting.popitem(last=False)
            self.early[key] = None
            submitted.append(key)
        return submitted

    def record_duration(self, seconds: float) -> None:
        """Adapt ``early_per_slot``. With enough samples the slowest is ignored: on a busy machine even a short call is
        sometimes slow, because its process did not get a CPU."""
        self.durations.append(seconds)
        if len(self.durations) >= _MIN_SAMPLES:
            slow = sorted(self.durations)[-2 if len(self.durations) == _RECENT else -1]
            self.early_per_slot = min(max(int(EARLY_S / (slow + OVERHEAD_S)), 1), MAX_EARLY)


class SlotAllocator:
    """Methods that return a list return the calls to submit to Ray now, in this order."""

    def __init__(self) -> None:
        self._queues: dict[ResourceShape, _ShapeQueue] = {}
        self._shapes: dict[Key, ResourceShape] = {}

    def hold(self, key: Key, shape: ResourceShape) -> list[Key]:
        """Add a call that came with a slot of its own."""
        queue = self._add(key, shape)
        queue.holders.add(key)
        return [key, *queue.submit_early()]

    def wait(self, key: Key, shape: ResourceShape, *, overlap: bool) -> list[Key]:
        """Add a call that was sent ahead, without a slot."""
        queue = self._add(key, shape)
        queue.waiting[key] = overlap
        return queue.submit_early()

    def start(self, key: Key) -> list[Key]:
        """Give it a slot, unless it has one or has ended."""
        queue = self._queue_of(key)
        if queue is None or key in queue.holders:
            return []
        waited = queue.waiting.pop(key, None) is not None
        queue.early.pop(key, None)
        queue.holders.add(key)
        return [key, *queue.submit_early()] if waited else queue.submit_early()

    def recall(self, key: Key) -> bool:
        """Remove a waiting call. False if Ray has it, or it has ended."""
        queue = self._queue_of(key)
        if queue is None or queue.waiting.pop(key, None) is None:
            return False
        self._forget(key)
        return True

    def ended(self, key: Key, took: float | None = None) -> tuple[Key | None, list[Key]]:
        """Remove a call that has ended: returns the call that got its slot, and the calls to submit."""
        queue = self._queue_of(key)
        if queue is None:
            return None, []
        if took is not None:
            queue.record_duration(took)
        heir, submitted = None, []
        if key in queue.holders:
            queue.holders.discard(key)
            if queue.early:
                heir, _ = queue.early.popitem(last=False)
            elif queue.waiting:
                heir, _ = queue.waiting.popitem(last=False)
                submitted.append(heir)
            if heir is not None:
                queue.holders.add(heir)
        else:  # Ray ran it before its turn, or refused it; its slot still belongs to another call
            queue.early.pop(key, None)
            queue.waiting.pop(key, None)
        submitted += queue.submit_early()
        self._forget(key)
        return heir, submitted

    def is_one_of_many(self, key: Key) -> bool:
        """True if it is one of several waiting calls that have been short so far."""
        queue = self._queue_of(key)
        return queue is not None and queue.early_per_slot > 1 and len(queue.early) + len(queue.waiting) > 1

    def _add(self, key: Key, shape: ResourceShape) -> _ShapeQueue:
        self._shapes[key] = shape
        return self._queues.setdefault(shape, _ShapeQueue())

    def _queue_of(self, key: Key) -> _ShapeQueue | None:
        shape = self._shapes.get(key)
        return None if shape is None else self._queues[shape]

    def _forget(self, key: Key) -> None:
        shape = self._shapes.pop(key)
        queue = self._queues[shape]
        if not queue.holders and not queue.early and not queue.waiting:
            del self._queues[shape]
