"""OwnerQueue: the groups of one owner with one priority. PriorityLevel: those of all owners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TypeAlias

from ray_multicluster_scheduler.scheduler.queue.need_index import Need, NeedIndex
from ray_multicluster_scheduler.scheduler.queue.owner_account import ROUNDING, OwnerAccount
from ray_multicluster_scheduler.scheduler.queue.ranking import Ranking
from ray_multicluster_scheduler.scheduler.queue.shape import EligibilityClass
from ray_multicluster_scheduler.scheduler.queue.shape_group import ShapeGroup

FreeAmounts: TypeAlias = Callable[[EligibilityClass], Sequence[Need] | None]
"""The free amounts of the resources that a class needs, one entry per place; None: unlimited."""


def any_amount(eligibility: EligibilityClass) -> None:
    """A filter that accepts all groups."""


class OwnerQueue:
    """The groups of one owner, indexed by need."""

    __slots__ = ("account", "indexes", "numbers")

    def __init__(self, account: OwnerAccount) -> None:
        self.account = account
        self.indexes: dict[EligibilityClass, NeedIndex] = {}
        self.numbers = Ranking()

    def first(self, rooms: FreeAmounts) -> tuple[int, ShapeGroup] | None:
        """The group with the oldest head among those that fit ``rooms``, with the number of that head."""
        best: tuple[int, ShapeGroup] | None = None
        account = self.account
        for eligibility, index in self.indexes.items():
            free = rooms(eligibility)
            if account.max_gpus is not None and "GPU" in eligibility.names:
                free = _at_most(free, eligibility, account.max_gpus - account.gpus + ROUNDING)
            one = index.first(free) if free is None or free else None
            if one is not None and (best is None or one[0] < best[0]):
                best = one
        return best


class PriorityLevel(dict[str, OwnerQueue]):
    """All owners' groups of one priority."""

    __slots__ = ("ages", "numbers")

    def __init__(self) -> None:
        super().__init__()
        self.ages = Ranking()
        self.numbers = Ranking()


def _at_most(rooms: Sequence[Need] | None, eligibility: EligibilityClass, gpus: float) -> Sequence[Need]:
    """The same amounts, with GPUs limited to this number."""
    if rooms is None:
        rooms = [(inf,) * len(eligibility.names)]
    return [
        tuple(
            min(amount, gpus) if name == "GPU" else amount for name, amount in zip(eligibility.names, room, strict=True)
        )
        for room in rooms
    ]
