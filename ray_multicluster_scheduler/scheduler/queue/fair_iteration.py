"""FairIteration: iterates over the groups of all owners in fair order, while groups are parked one by one.

Recomputing all owners for each group would be quadratic in the number of owners. They are computed once; after that
only the owner of the parked group is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from typing import Any, TypeAlias

from ray_multicluster_scheduler.scheduler.queue.shape_group import ShapeGroup

First: TypeAlias = tuple[int, ShapeGroup]
"""The group of an owner that comes first, after the number of its head."""


class FairIteration:
    """The groups of one priority, as of one moment: later changes are not seen.

    ``turns`` holds the sort key of each owner that may start something, smallest first; ``ask`` returns an owner's
    first group.
    """

    def __init__(
        self,
        turns: Mapping[str, Any],
        ask: Callable[[str], First | None],
        urgency: Callable[[ShapeGroup], float],
    ) -> None:
        self._turns, self._first_of, self._urgency = turns, ask, urgency
        self._first_groups = {owner: first for owner in turns if (first := ask(owner)) is not None}
        here = self._first_groups.items()
        self._by_turn = [(turns[owner], number, owner) for owner, (number, _) in here]
        self._by_age = [(urgency(group), number, owner) for owner, (number, group) in here]
        heapify(self._by_turn)
        heapify(self._by_age)

    def first(self) -> tuple[ShapeGroup, ShapeGroup] | None:
        """The group of the next owner in turn (for equal turns, the older one), and the oldest of all owners' first
        groups; None when all are parked."""
        turn, oldest = self._top(self._by_turn), self._top(self._by_age)
        return None if turn is None or oldest is None else (turn, oldest)

    def next_of(self, owner: str) -> None:
        """A group of this owner was parked: move on to its next one."""
        self._first_groups.pop(owner, None)
        first = self._first_of(owner) if owner in self._turns else None
        if first is not None:
            self._first_groups[owner] = first
            heappush(self._by_turn, (self._turns[owner], first[0], owner))
            heappush(self._by_age, (self._urgency(first[1]), first[0], owner))

    def _top(self, heap: list[tuple[Any, int, str]]) -> ShapeGroup | None:
        while heap:
            _, number, owner = heap[0]
            first = self._first_groups.get(owner)
            if first is not None and first[0] == number:
                return first[1]
            heappop(heap)  # stale: its group was parked
        return None
