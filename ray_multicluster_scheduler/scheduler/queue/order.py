"""Orders of the queue: one small class each, registered by name.

Three criteria in sequence: urgency, the owner's turn, submission order. Only the second changes while items wait.
"""

from __future__ import annotations

from typing import Protocol

from ray_multicluster_scheduler.scheduler.queue.owner_account import OwnerAccount

_DIGITS = 9
"""Rounded to remove floating-point noise, so that equal holdings give equal shares."""


class Order(Protocol):
    """An order of waiting items; smaller values go first."""

    name: str

    def urgency(self, priority: float, since: float) -> float:
        """Urgency of an item with this priority that was submitted at ``since``; an older one is never less urgent. It
        does not change while the item waits."""

    def share(self, account: OwnerAccount) -> float:
        """Share of an owner, compared among items of equal priority. It changes only when the owner takes or returns
        something."""

    def turn(self, account: OwnerAccount, now: float) -> tuple[float, ...]:
        """Tie-breaker for owners with equal shares; begins with the share."""


class _Aged:
    def __init__(self, ageing_s: float) -> None:
        self._ageing_s = ageing_s

    def urgency(self, priority: float, since: float) -> float:
        """Higher priority first; waiting ``ageing_s`` longer is worth one step of priority."""
        return since - priority * self._ageing_s


class FairOrder(_Aged):
    """Priority, then the owner who holds least for its weight (who has used least, if equal), then first come."""

    name = "fair"

    def share(self, account: OwnerAccount) -> float:
        return round(account.held / account.weight, _DIGITS)

    def turn(self, account: OwnerAccount, now: float) -> tuple[float, ...]:
        return self.share(account), account.used(now) / account.weight


class FifoOrder(_Aged):
    """Priority, then submission order, regardless of the owner."""

    name = "fifo"

    def share(self, account: OwnerAccount) -> float:
        return 0.0

    def turn(self, account: OwnerAccount, now: float) -> tuple[float, ...]:
        return ()


ORDERS: dict[str, type[FairOrder | FifoOrder]] = {order.name: order for order in (FairOrder, FifoOrder)}
