"""NeedIndex: finds the first waiting group whose needs are covered by what is free.

A binary tree over the groups, sorted by need. Each branch stores the lowest number and the smallest needs below it, so
a search skips whole branches that cannot fit. Search, insert and update take O(log n).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ray_multicluster_scheduler.scheduler.queue.shape_group import ShapeGroup

Need: TypeAlias = tuple[float, ...]
NO_NUMBER = 1 << 62
"""The number of an empty branch: larger than any other."""

_ROUNDING = 0.5e-4
_UNSORTED = 16


class NeedIndex:
    """Groups that need the same resource names, ``names``, in different amounts."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._no_need: Need = (inf,) * len(self._names)
        self._leaf_of: dict[ShapeGroup, int] = {}
        self._needs: dict[ShapeGroup, Need] = {}
        self._leaves: list[ShapeGroup | None] = []
        self._free: list[int] = []
        self._firsts: list[int] = []
        self._earliest: list[int] = []
        self._least: list[Need] = []
        self._size = 0
        self._unsorted = 0

    def __len__(self) -> int:
        return len(self._leaf_of)

    def update(self, group: ShapeGroup, amounts: Mapping[str, float], first: int) -> None:
        """Insert a group, or change the number of its head to ``first``."""
        place = self._leaf_of.get(group)
        if place is None:
            self._needs[group] = tuple(amounts[name] for name in self._names)
            place = self._allocate_leaf(group)
        elif self._firsts[self._size + place] == first:
            return
        self._set(place, first, self._needs[group] if first != NO_NUMBER else self._no_need)

    def remove(self, group: ShapeGroup) -> None:
        """Remove a group that became empty."""
        place = self._leaf_of.pop(group)
        del self._needs[group]
        self._leaves[place] = None
        self._free.append(place)
        self._set(place, NO_NUMBER, self._no_need)

    def first(self, rooms: Sequence[Need] | None) -> tuple[int, ShapeGroup] | None:
        """The earliest group that fits one of ``rooms`` (None: any group), with its number."""
        if not self._leaf_of or self._firsts[1] == NO_NUMBER:
            return None
        if rooms is None:
            return self._search((inf,) * len(self._names))
        if len(rooms) == 1:
            return self._search(rooms[0])
        found = [one for one in map(self._search, rooms) if one is not None]
        return min(found, key=lambda one: one[0]) if found else None

    def _search(self, room: Need) -> tuple[int, ShapeGroup] | None:
        firsts, least, size = self._firsts, self._least, self._size
        earliest = self._earliest[1]
        if _covers(room, least[earliest]):  # the usual case: the first one fits
            return firsts[earliest], self._group_at(earliest)
        if not _covers(room, least[1]):
            return None
        branches = [(firsts[1], 1)]
        while branches:
            number, branch = heapq.heappop(branches)
            if branch >= size:
                return number, self._group_at(branch)
            for child in (2 * branch, 2 * branch + 1):
                if firsts[child] != NO_NUMBER and _covers(room, least[child]):
                    heapq.heappush(branches, (firsts[child], child))
        return None

    def _group_at(self, branch: int) -> ShapeGroup:
        group = self._leaves[branch - self._size]
        assert group is not None, "an empty leaf has a number"
        return group

    def _allocate_leaf(self, group: ShapeGroup) -> int:
        if not self._free or self._unsorted > max(_UNSORTED, len(self._leaf_of) // 4):
            self._rebuild(group)
        else:
            self._unsorted += 1
            self._leaf_of[group] = self._free.pop()
            self._leaves[self._leaf_of[group]] = group
        return self._leaf_of[group]

    def _rebuild(self, newcomer: ShapeGroup) -> None:
        """Sort all groups by need: those with small needs are in the left branches."""
        numbers = {group: self._firsts[self._size + place] for group, place in self._leaf_of.items()}
        groups = sorted((*self._leaf_of, newcomer), key=lambda one: self._needs[one])
        self._size = 2
        while self._size < 2 * len(groups):
            self._size *= 2
        self._leaves = [*groups, *(None for _ in range(self._size - len(groups)))]
        self._free = list(range(self._size - 1, len(groups) - 1, -1))
        self._leaf_of = {group: place for place, group in enumerate(groups)}
        self._firsts = [NO_NUMBER] * (2 * self._size)
        self._earliest = list(range(2 * self._size))
        self._least = [self._no_need] * (2 * self._size)
        self._unsorted = 0
        for group, number in numbers.items():
            if number != NO_NUMBER:
                self._firsts[self._size + self._leaf_of[group]] = number
                self._least[self._size + self._leaf_of[group]] = self._needs[group]
        for branch in range(self._size - 1, 0, -1):
            self._update_branch(branch)

    def _set(self, place: int, first: int, need: Need) -> None:
        branch = self._size + place
        is_as_before = self._least[branch] == need
        self._firsts[branch], self._least[branch] = first, need
        branch //= 2
        if is_as_before:
            self._update_numbers(branch)
            return
        while branch and self._update_branch(branch):
            branch //= 2

    def _update_numbers(self, branch: int) -> None:
        """Update the numbers from this branch to the root; needs have not changed."""
        firsts, earliest = self._firsts, self._earliest
        while branch:
            left = 2 * branch
            first = left if firsts[left] <= firsts[left + 1] else left + 1
            number, leaf = firsts[first], earliest[first]
            if firsts[branch] == number and earliest[branch] == leaf:
                return
            firsts[branch], earliest[branch] = number, leaf
            branch //= 2

    def _update_branch(self, branch: int) -> bool:
        """Recompute a branch from its two children; False if nothing changed, here and above."""
        firsts, least = self._firsts, self._least
        left = 2 * branch
        right = left + 1
        first = left if firsts[left] <= firsts[right] else right
        needs, others = least[left], least[right]
        if needs != others:
            needs = tuple(map(min, needs, others))
        if (
            firsts[branch] == firsts[first]
            and self._earliest[branch] == self._earliest[first]
            and least[branch] == needs
        ):
            return False
        firsts[branch], self._earliest[branch], least[branch] = firsts[first], self._earliest[first], needs
        return True


def amounts_of(room: Mapping[str, float], names: Sequence[str]) -> Need:
    """The amounts of these resources, to compare with needs; tolerates the rounding of Ray's fixed-point amounts."""
    return tuple(room.get(name, 0.0) + _ROUNDING for name in names)


def _covers(room: Need, need: Need) -> bool:
    for there, wanted in zip(room, need):  # noqa: B905, SIM110 - the hot loop of a search
        if wanted > there:
            return False
    return True
