"""Who has which of our places in the cluster, and who waits for one: book-keeping only, no Ray."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from ray_multicluster_scheduler.common.model.resources import ResourceShape
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.reports import Key

EARLY_S = 0.02
"""So much work of ours may wait in Ray behind each place; it cannot be taken back from there."""
OVERHEAD_S = 0.001
MOST_EARLY = 16
_RECENT, _FEWEST = 8, 4


@dataclass(slots=True)
class _Class:
    """The calls of one shape. ``early`` ones were given to Ray before they had a place, never more than cover
    ``EARLY_S`` of work, but one for each place. ``queue`` is in the order of arrival; may each be early?"""

    holders: set[Key] = field(default_factory=set)
    early: OrderedDict[Key, None] = field(default_factory=OrderedDict)
    queue: OrderedDict[Key, bool] = field(default_factory=OrderedDict)
    took: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    early_per_place: int = 1
    """Ray keeps a worker for us only while it has its next call: a few of the shortest, one of the others."""

    def refill(self) -> list[Key]:
        """Give Ray as many as may wait there, the oldest first; one that may not holds up those behind it."""
        given = []
        most = len(self.holders) * self.early_per_place
        while self.queue and len(self.early) < most and next(iter(self.queue.values())):
            key, _ = self.queue.popitem(last=False)
            self.early[key] = None
            given.append(key)
        return given

    def learn(self, took: float) -> None:
        """How long one ran. The slowest of the last few does not count where they are enough: on a busy machine, one of
        the shortest calls takes long now and then, because its process did not get a processor."""
        self.took.append(took)
        if len(self.took) >= _FEWEST:
            slow = sorted(self.took)[-2 if len(self.took) == _RECENT else -1]
            self.early_per_place = min(max(int(EARLY_S / (slow + OVERHEAD_S)), 1), MOST_EARLY)


class Slots:
    """Every method that returns a list says which calls are to be given to Ray now, in this order."""

    def __init__(self) -> None:
        self._classes: dict[ResourceShape, _Class] = {}
        self._shapes: dict[Key, ResourceShape] = {}

    def hold(self, key: Key, shape: ResourceShape) -> list[Key]:
        """A call that came with a place of its own."""
        one = self._add(key, shape)
        one.holders.add(key)
        return [key, *one.refill()]

    def wait(self, key: Key, shape: ResourceShape, *, overlap: bool) -> list[Key]:
        """A call that was sent ahead."""
        one = self._add(key, shape)
        one.queue[key] = overlap
        return one.refill()

    def start(self, key: Key) -> list[Key]:
        """There is a place for it. Nothing happens if it has one, or is over."""
        one = self._class(key)
        if one is None or key in one.holders:
            return []
        waited = one.queue.pop(key, None) is not None
        one.early.pop(key, None)
        one.holders.add(key)
        return [key, *one.refill()] if waited else one.refill()

    def take_back(self, key: Key) -> bool:
        """True: it waited here, and is forgotten. False: it has begun, or is with Ray, or is over."""
        one = self._class(key)
        if one is None or one.queue.pop(key, None) is None:
            return False
        self._forget(key)
        return True

    def ended(self, key: Key, took: float | None = None) -> tuple[Key | None, list[Key]]:
        """A call is over, in whatever way. Who has its place now, if anybody; and whom to give to Ray."""
        one = self._class(key)
        if one is None:
            return None, []
        if took is not None:
            one.learn(took)
        heir, given = None, []
        if key in one.holders:
            one.holders.discard(key)
            if one.early:
                heir, _ = one.early.popitem(last=False)
            elif one.queue:
                heir, _ = one.queue.popitem(last=False)
                given.append(heir)
            if heir is not None:
                one.holders.add(heir)
        else:  # Ray ran it before its turn, or refused it; whoever it left behind has the place
            one.early.pop(key, None)
            one.queue.pop(key, None)
        given += one.refill()
        self._forget(key)
        return heir, given

    def is_one_of_many(self, key: Key) -> bool:
        """Is it one of several calls, all of them short as far as is known, that wait behind each other?"""
        one = self._class(key)
        return one is not None and one.early_per_place > 1 and len(one.early) + len(one.queue) > 1

    def _add(self, key: Key, shape: ResourceShape) -> _Class:
        self._shapes[key] = shape
        return self._classes.setdefault(shape, _Class())

    def _class(self, key: Key) -> _Class | None:
        shape = self._shapes.get(key)
        return None if shape is None else self._classes[shape]

    def _forget(self, key: Key) -> None:
        shape = self._shapes.pop(key)
        one = self._classes[shape]
        if not one.holders and not one.early and not one.queue:
            del self._classes[shape]
