"""OwnerAccount: what one owner holds, has used, and may have."""

from __future__ import annotations

from typing import NamedTuple

from ray_multicluster_scheduler.common.model import Resources, TaskDescription

ROUNDING = 0.5e-4
"""Ray keeps four decimals."""

UNKNOWN_COST = {"CPU": 1.0}
"""An item that asks for nothing still keeps something busy: it counts as this much."""


class Holding(NamedTuple):
    """What one item takes of its owner's share while it is on a cluster."""

    cost: float
    gpus: float
    since: float = 0.0


class OwnerAccount:
    """Shares are parts of the whole fleet, by the resource of which an item takes the largest part.

    ``used`` grows with what is held and with time. Whoever gets a turn is raised to near where the others are: what one
    did not use, for whatever reason, cannot be saved up.
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
        """Where it stands among the owners, by its share."""

    @property
    def idle(self) -> bool:
        return not self.queued and not self.running

    @property
    def exceeds_limits(self) -> bool:
        """Does it have more on clusters than it may? A limit that is lowered takes nothing away."""
        running = self.max_running is not None and self.running > self.max_running
        return running or (self.max_gpus is not None and self.gpus > self.max_gpus + ROUNDING)

    @property
    def may_start(self) -> bool:
        """May anything of it, unless that needs GPUs that it may not have?"""
        return self.paused is None and (not self.has_limits or self.refusal(0) is None)

    @property
    def limited(self) -> bool:
        """Does a limit keep anything of it from starting now, or may it?"""
        return self.refusal(0) is not None or self.max_gpus is not None

    def used(self, now: float) -> float:
        since = self._since
        return self._used + self.held * (now - since) if now > since else self._used

    def raise_used_to(self, used: float, now: float) -> None:
        """It counts as if it had used at least this much."""
        self._used, self._since = max(self.used(now), used), now

    def set_limits_from(self, other: OwnerAccount, now: float) -> None:
        """From now on it may have what the other may. By what it has used for its weight, it stands among the owners
        where it stood: another weight is neither a debt nor a credit."""
        self._used, self._since = self.used(now) * other.weight / self.weight, now
        self.weight, self.max_running, self.max_gpus = other.weight, other.max_running, other.max_gpus
        self.has_limits = other.has_limits

    def charge(self, holding: Holding, now: float) -> None:
        """One more item is on a cluster."""
        self._change(now, holding.cost)
        self.running += 1
        self.gpus += holding.gpus

    def refund(self, holding: Holding, now: float) -> None:
        self._change(now, -holding.cost)
        self.running -= 1
        self.gpus = max(0.0, round(self.gpus - holding.gpus, 6))
        if not self.running:
            self.held = self.gpus = 0.0  # without the noise of sums

    def refusal(self, gpus: float) -> str | None:
        """Why nothing of this owner's that needs so many GPUs may start now, as a sentence; None if it may."""
        if self.max_running is not None and self.running >= self.max_running:
            if not self.max_running:
                return "nothing of it may start, as its max_running is 0"
            are = "is" if self.running == 1 else "are"
            return f"{self.running} of its items {are} on clusters; its max_running is {self.max_running}"
        if self.max_gpus is not None and gpus and self.gpus + gpus > self.max_gpus + ROUNDING:
            if not self.max_gpus:
                return "nothing of it that needs a GPU may start, as its max_gpus is 0"
            return f"it holds {self.gpus:g} GPU{'' if self.gpus == 1 else 's'}; its max_gpus is {self.max_gpus:g}"
        return None

    def _change(self, now: float, cost: float) -> None:
        self._used, self._since = self.used(now), now
        self.held = max(0.0, self.held + cost)


def holding_of(task: TaskDescription, fleet: Resources, now: float) -> Holding:
    """What it takes of a fleet with these totals, from now on."""
    need = task.placement
    cost = 0.0
    for name, amount in (need or UNKNOWN_COST).items():
        there = fleet.get(name)
        if there and amount / there > cost:
            cost = amount / there
    return Holding(cost, need.get("GPU", 0.0), now)
