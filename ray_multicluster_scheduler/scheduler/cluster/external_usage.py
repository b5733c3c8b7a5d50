"""ExternalUsage: how much of each node others use, derived from snapshots.

A snapshot shows some moment within its staleness, and what of ours ran at that moment is not known exactly. So it gives
two bounds: others use at least what is left after subtracting the most that may have been ours, and at most what is
left after subtracting what surely was. A lower bound holds until a later snapshot contradicts it or none has confirmed
it for ``UNCONFIRMED_S``. So the estimate errs towards too much external use.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ray_multicluster_scheduler.common.model import Resources
from ray_multicluster_scheduler.common.model.resources import minus

SETTLE_S = 2.0
"""A reservation older than this counts as running, even if no start was reported."""

UNCONFIRMED_S = 30.0
"""A lower bound that no snapshot has confirmed for this time is dropped, so that an error does not last."""

_MAX_CLAIMS = 6


@dataclass(frozen=True, slots=True)
class UsageObservation:
    """The use of one node in one snapshot, at an unknown moment between ``since`` and ``until``.

    At that moment ``used`` was in use, of which at least ``ours_min`` and at most ``ours_max`` was ours. ``order`` is
    the source, and a time on the source's clock that grows from one moment to the next; None if the source has none.
    """

    since: float
    until: float
    used: Resources
    ours_min: Resources
    ours_max: Resources
    order: tuple[str, float] | None = None

    def is_later_than(self, other: UsageObservation) -> bool:
        """True if it certainly shows a later moment than the other."""
        if self.since >= other.until:
            return True
        if self.order is None or other.order is None or self.order[0] != other.order[0]:
            return False
        return self.order[1] > other.order[1] and self.until > other.until  # the source's clock may be set back


class _LowerBound:
    """Others use at least this much, unless a later observation shows less."""

    __slots__ = ("at_least", "at_most", "observation", "until", "value")

    def __init__(self, observation: UsageObservation) -> None:
        self.observation, self.until = observation, observation.until
        least, most = observation.ours_min, observation.ours_max
        self.at_least = {name: max(0.0, used - most.get(name, 0.0)) for name, used in observation.used.items()}
        self.at_most = {name: max(0.0, used - least.get(name, 0.0)) for name, used in observation.used.items()}
        self.value = self.at_least

    def tighten_from(self, other: _LowerBound) -> None:
        """Lower the bound by an observation that was surely later."""
        if other.observation.is_later_than(self.observation):
            most = other.at_most
            self.value = {name: min(amount, most.get(name, 0.0)) for name, amount in self.value.items()}

    def is_covered_by(self, other: _LowerBound) -> bool:
        """Is the other bound at least as new, and at least as high for every resource?"""
        value = other.value
        return self.until <= other.until and all(amount <= value.get(name, 0.0) for name, amount in self.value.items())


class ExternalUsage:
    """External use of the nodes of one cluster, in one session."""

    def __init__(self) -> None:
        self._bounds: dict[str, list[_LowerBound]] = {}
        self._usage: dict[str, dict[str, float]] = {}
        self._last_seen: dict[str, float] = {}

    def on_node(self, node_id: str) -> Resources | None:
        """The use by others on this node; None if unknown."""
        return self._usage.get(node_id)

    def observe(self, node_id: str, observation: UsageObservation) -> None:
        """Update the bounds by an observation, which may come late."""
        fresh = _LowerBound(observation)
        before = self._last_seen.get(node_id, observation.until)
        self._last_seen[node_id] = max(before, observation.until)
        claims = [claim for claim in self._bounds.get(node_id, ()) if claim.until > before - UNCONFIRMED_S]
        for claim in claims:
            claim.tighten_from(fresh)
            fresh.tighten_from(claim)
        kept = [claim for claim in claims if not claim.is_covered_by(fresh)]
        if not any(fresh.is_covered_by(claim) for claim in kept):
            kept.append(fresh)
            kept.sort(key=lambda claim: claim.until)
        self._set_bounds(node_id, kept)

    def attribute_to_us(self, node_id: str, since: float, amounts: Resources) -> None:
        """Count the usage observed there since then as possibly ours: it was started on another node than expected."""
        for claim in self._bounds.get(node_id, ()):
            if claim.until >= since:
                rest = minus(claim.at_least, {name: amounts.get(name, 0.0) for name in claim.at_least})
                claim.at_least, claim.value = rest, {name: min(rest[name], claim.value[name]) for name in rest}
        if node_id in self._bounds:
            self._set_bounds(node_id, self._bounds[node_id])

    def keep_only(self, node_ids: Iterable[str]) -> None:
        """Forget all other nodes."""
        alive = set(node_ids)
        for node_id in [one for one in self._bounds if one not in alive]:
            del self._bounds[node_id], self._usage[node_id], self._last_seen[node_id]

    def _set_bounds(self, node_id: str, claims: list[_LowerBound]) -> None:
        while len(claims) > _MAX_CLAIMS:
            oldest, second = claims.pop(0), claims[0]
            second.value = _highest(oldest.value, second.value)
        self._bounds[node_id] = claims
        most = claims[-1].value
        for claim in claims[:-1]:
            most = _highest(claim.value, most)
        self._usage[node_id] = most


def _highest(left: dict[str, float], right: dict[str, float]) -> dict[str, float]:
    """The maximum by resource, of the resources that the right one has."""
    return {name: max(amount, left.get(name, 0.0)) for name, amount in right.items()}
