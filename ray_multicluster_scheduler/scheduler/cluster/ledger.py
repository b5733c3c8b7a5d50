"""The ledger of one cluster: what we reserved on which node, and what others use.

Our reservations are exact and last from the decision to the end of the attempt. A snapshot is never exact:
it shows the cluster as it was at some moment within its staleness. So it only tells what *others* use:

    others = used in the snapshot − the most that was ours within the staleness before it,
             the highest such figure of the snapshots within one staleness
    free   = total − others − ours
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ray_multicluster_scheduler.common.model import NodeSnapshot, Resources, ResourceSnapshot
from ray_multicluster_scheduler.common.model.resources import fits, minus, plus
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import NodeView
from ray_multicluster_scheduler.scheduler.cluster.usage_history import UsageHistory

STALENESS_S = {"agent": 0.3, "http": 6.0}
"""How old what a snapshot shows may be, by source (measured: 0.11 s and 5.6 s)."""

_BYGONE_SIZES = 16
_DIGITS = 6  # sums of Ray's four decimals, without the noise of floating point


@dataclass(slots=True)
class Reservation:
    """What one attempt holds, by node. Nothing, for an item that asks for nothing."""

    since: float
    parts: dict[str, Resources]


@dataclass(slots=True)
class _Estimate:
    taken_at: float
    others: dict[str, float]


class Ledger:
    """Per node, for one cluster. Amounts of nodes that vanished are kept, but give no capacity."""

    def __init__(self) -> None:
        self._newest: ResourceSnapshot | None = None
        self._reservations: dict[str, Reservation] = {}
        self._ours: dict[str, dict[str, float]] = {}
        self._history: dict[str, UsageHistory] = {}
        self._estimates: dict[str, list[_Estimate]] = {}
        self._others: dict[str, dict[str, float]] = {}
        self._bygone: list[Resources] = []

    @property
    def newest(self) -> ResourceSnapshot | None:
        return self._newest

    @property
    def reservations(self) -> Mapping[str, Reservation]:
        """By item id."""
        return self._reservations

    @property
    def bygone_nodes(self) -> tuple[Resources, ...]:
        """The largest sizes that nodes ever had here."""
        return tuple(self._bygone)

    def reserve(self, task_id: str, parts: Mapping[str, Resources], now: float) -> None:
        """Hold this for the item until :meth:`release`. An item holds one reservation at a time."""
        self.release(task_id, now)
        self._reservations[task_id] = Reservation(now, dict(parts))
        for node_id, amounts in parts.items():
            self._set_ours(node_id, plus(self._ours.get(node_id, {}), amounts), now)

    def release(self, task_id: str, now: float) -> None:
        """Give back what the item holds; nothing happens if it holds nothing."""
        reservation = self._reservations.pop(task_id, None)
        if reservation is None:
            return
        for node_id, amounts in reservation.parts.items():
            self._set_ours(node_id, minus(self._ours.get(node_id, {}), amounts), now)

    def hand_over(self, ended_id: str, begun_id: str) -> bool:
        """What one item held is another one's from now on. False if it held nothing."""
        reservation = self._reservations.pop(ended_id, None)
        if reservation is None:
            return False
        self._reservations[begun_id] = reservation
        return True

    def shrink(self, task_id: str, amounts: Resources, now: float) -> None:
        """From now on it holds only this, where it is."""
        reservation = self._reservations.get(task_id)
        if reservation is not None and reservation.parts:
            self.reserve(task_id, {next(iter(reservation.parts)): amounts} if amounts else {}, now)

    def move(self, task_id: str, node_id: str, now: float) -> bool:
        """Ray started it on this node, whatever we expected. False if that is what we expected."""
        reservation = self._reservations.get(task_id)
        if (
            reservation is None
            or not reservation.parts
            or (node_id in reservation.parts and len(reservation.parts) == 1)
        ):
            return False
        amounts: dict[str, float] = {}
        for expected, part in reservation.parts.items():
            amounts = plus(amounts, part)
            self._set_ours(expected, minus(self._ours.get(expected, {}), part), now)
        reservation.parts = {node_id: amounts}
        self._history.setdefault(node_id, UsageHistory()).backdate(reservation.since, amounts)
        self._set_ours(node_id, plus(self._ours.get(node_id, {}), amounts), now)
        return True

    def observe(self, snapshot: ResourceSnapshot) -> None:
        """Learn from a snapshot, whenever it comes: late, early, twice or out of order."""
        newest = self._newest
        if newest is not None and _other_session(newest, snapshot):
            if snapshot.taken_at < newest.taken_at:
                return
            self._estimates.clear()
            self._others.clear()
            newest = None
        if newest is None or snapshot.taken_at >= newest.taken_at:
            self._newest = newest = snapshot
            self._forget_vanished(snapshot)
            self._remember_sizes(snapshot)
        if snapshot.taken_at < newest.taken_at - STALENESS_S[newest.source]:
            return
        alive = {node.node_id for node in newest.nodes}
        for node in snapshot.nodes:
            if node.free is not None and node.node_id in alive:
                self._estimate(node, node.free, snapshot, newest)

    def forget_sizes(self) -> None:
        """The cluster was configured anew: what nodes it had before says nothing any more."""
        self._bygone.clear()

    def nodes(self) -> tuple[NodeView, ...]:
        """The nodes of the newest snapshot as they are now, by our books."""
        if self._newest is None:
            return ()
        return tuple(self._view(node) for node in self._newest.nodes)

    def _view(self, node: NodeSnapshot) -> NodeView:
        ours = self._ours.get(node.node_id, {})
        others = self._others.get(node.node_id)
        if node.free is None or others is None:
            return NodeView(node.node_id, node.total, None, ours, None)
        left = minus(node.total, plus(others, ours))
        free = {name: round(left[name], _DIGITS) for name in node.total}
        return NodeView(node.node_id, node.total, others, ours, free)

    def _set_ours(self, node_id: str, amounts: Resources, now: float) -> None:
        rounded = {name: round(amount, _DIGITS) for name, amount in amounts.items()}
        ours = {name: amount for name, amount in rounded.items() if amount > 0}
        self._history.setdefault(node_id, UsageHistory()).record(now, ours)
        if ours:
            self._ours[node_id] = ours
        else:
            self._ours.pop(node_id, None)

    def _estimate(
        self, node: NodeSnapshot, free: Resources, snapshot: ResourceSnapshot, newest: ResourceSnapshot
    ) -> None:
        history = self._history.get(node.node_id)
        staleness = STALENESS_S[snapshot.source]
        ours = history.peak(snapshot.taken_at - staleness, snapshot.taken_at) if history else {}
        used = minus(node.total, {name: amount for name, amount in free.items() if name in node.total})
        estimate = _Estimate(snapshot.taken_at, minus(used, {name: ours.get(name, 0.0) for name in used}))
        horizon = newest.taken_at - STALENESS_S[newest.source]
        kept = [one for one in [*self._estimates.get(node.node_id, ()), estimate] if one.taken_at >= horizon]
        self._estimates[node.node_id] = kept
        self._others[node.node_id] = {name: max(one.others.get(name, 0.0) for one in kept) for name in used}

    def _forget_vanished(self, snapshot: ResourceSnapshot) -> None:
        alive = {node.node_id for node in snapshot.nodes}
        for node_id in [one for one in self._history if one not in alive and one not in self._ours]:
            del self._history[node_id]
        for books in (self._estimates, self._others):
            for node_id in [one for one in books if one not in alive]:
                del books[node_id]

    def _remember_sizes(self, snapshot: ResourceSnapshot) -> None:
        for node in snapshot.nodes:
            if any(fits(node.total, size) for size in self._bygone):
                continue
            self._bygone = [size for size in self._bygone if not fits(size, node.total)]
            self._bygone = [*self._bygone, node.total][-_BYGONE_SIZES:]


def _other_session(left: ResourceSnapshot, right: ResourceSnapshot) -> bool:
    return None not in (left.session_id, right.session_id) and left.session_id != right.session_id
