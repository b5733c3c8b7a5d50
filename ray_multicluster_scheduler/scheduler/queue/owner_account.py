"""OwnerAccount: what one owner holds, has used, and may use."""

from __future__ import annotations

from typing import NamedTuple

from ray_multicluster_scheduler.common.model import Resources, TaskDescription

ROUNDING = 0.5e-4
"""Ray keeps four decimals."""

UNKNOWN_COST = {"CPU": 1.0}
"""What an item without requirements counts as."""


class Holding(NamedTuple):
    """The cost of one item for its owner while it is on a cluster."""

    cost: float
    gpus: float
    since: float = 0.0
    running: int = 1


class OwnerAccount:
    """Share and limits of one owner. A share is a part of the whole fleet, by the resource that an item needs most of.

    ``used`` grows with held share over time. When an owner gets a turn, its use is raised near that of the others:
    unused share cannot be saved up.
    """

    def __init__(
        self,
        weight: float = 1.0,
        max_running: int | None = None,
        max_gpus: float | None = None,
    ) -> None:
        self.weight, self.max_running, self.max_gpus = weight, max_running, max_gpus
        self.has_limits = max_running is not None or max_gpus is not None
        self.paused: str | None = None
        self.queued = 0
        self.running = 0
        self.gpus = 0.0
        self.held = 0.0
        self._used = 0.0
        self._since = 0.0
        self.share_key: tuple[float, int, str] = (0.0, 0, "")
        """Its sort key among the owners."""

    @property
    def idle(self) -> bool:
        return not self.queued and not self.running

    @property
    def exceeds_limits(self) -> bool:
        """Does it hold more than its limits allow? A lowered limit does not stop running items."""
        running = self.max_running is not None and self.running > self.max_running
        return running or (self.max_gpus is not None and self.gpus > self.max_gpus + ROUNDING)

    @property
    def may_start(self) -> bool:
        """May the owner start any item that needs no GPU?"""
        return self.paused is None and (not self.has_limits or self.refusal(0) is None)

    @property
    def limited(self) -> bool:
        """Does or may a limit keep items of the owner from starting?"""
        return self.refusal(0) is not None or self.max_gpus is not None

    def used(self, now: float) -> float:
        since = self._since
        return self._used + self.held * (now - since) if now > since else self._used

    def set_minimum_used(self, used: float, now: float) -> None:
        """Count as if it had used at least this much."""
        self._used, self._since = max(self.used(now), used), now

    def set_limits_from(self, other: OwnerAccount, now: float) -> None:
        """Take over weight and limits of another account. Its position among the owners stays the same."""
        self._used, self._since = self.used(now) * other.weight / self.weight, now
        self.weight, self.max_running, self.max_gpus = other.weight, other.max_running, other.max_gpus
        self.has_limits = other.has_limits

    def charge(self, holding: Holding, now: float) -> None:
        """One more item is on a cluster."""
        self._change(now, holding.cost)
        self.running += holding.running
        self.gpus += holding.gpus

    def refund(self, holding: Holding, now: float) -> None:
        self._change(now, -holding.cost)
        self.running -= holding.running
        self.gpus = max(0.0, round(self.gpus - holding.gpus, 6))
        if not self.running:
            self.held = self.gpus = 0.0  # without the noise of sums

    def refusal(self, gpus: float) -> str | None:
        """Why no item of this owner that needs this number of GPUs may start now; None if one may."""
        if self.max_running is not None and self.running >= self.max_running:
            if not self.max_running:
                return "none of its items may start, as its max_running is 0"
            are = "is" if self.running == 1 else "are"
            return f"{self.running} of its items {are} on clusters; its max_running is {self.max_running}"
        if self.max_gpus is not None and gpus and self.gpus + gpus > self.max_gpus + ROUNDING:
            if not self.max_gpus:
                return "none of its items that need a GPU may start, as its max_gpus is 0"
            return f"it holds {self.gpus:g} GPU{'' if self.gpus == 1 else 's'}; its max_gpus is {self.max_gpus:g}"
        return None

    def _change(self, now: float, cost: float) -> None:
        self._used, self._since = self.used(now), now
        self.held = max(0.0, self.held + cost)


def holding_of(task: TaskDescription, fleet: Resources, now: float) -> Holding:
    """The share that the item takes of a fleet with these totals, from now on."""
    if task.connects_only:
        return Holding(0.0, 0.0, now, running=0)
    need = task.placement
    cost = 0.0
    for name, amount in (need or UNKNOWN_COST).items():
        there = fleet.get(name)
        if there and amount / there > cost:
            cost = amount / there
    return Holding(cost, need.get("GPU", 0.0), now)
