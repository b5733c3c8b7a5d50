"""Ledger of one cluster: what we reserved on which node, and what others use.

Our reservations are exact and last from the decision to the end of the attempt. A snapshot is never exact: it shows the
cluster at some moment within its staleness. So only the use by *others* is taken from it: ``others = used in the
snapshot - ours within the staleness before it`` (see external_usage.py), and ``free = total - others - ours``.

What was sent to an autoscaling cluster before its node exists is booked on a pseudo node, NEW_NODE, and moved as soon
as a real node has capacity for it, which is where Ray will start it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ray_multicluster_scheduler.common.model import NodeSnapshot, Resources, ResourceSnapshot
from ray_multicluster_scheduler.common.model.resources import fits, minus, plus, total_of
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import NEW_NODE, NodeView
from ray_multicluster_scheduler.scheduler.cluster.external_usage import SETTLE_S, ExternalUsage, UsageObservation
from ray_multicluster_scheduler.scheduler.cluster.fit import best_node
from ray_multicluster_scheduler.scheduler.cluster.usage_history import UsageHistory, highest

STALENESS_S = {"agent": 0.3, "http": 6.0}
"""How old what a snapshot shows may be, by source (measured: 0.11 s and 5.6 s)."""

_MAX_PAST_SIZES = 16
_DIGITS = 6  # sums of Ray's four decimals, without the noise of floating point


@dataclass(slots=True)
class Reservation:
    """The resources of one attempt, by node; empty for an item that asks for nothing.

    ``spreads``: it may be divided. ``started_at``: when it was seen to run where it is booked.
    """

    since: float
    parts: dict[str, Resources]
    spreads: bool = False
    started_at: float = math.inf


class Ledger:
    """Bookings per node, for one cluster. Bookings on nodes that vanished are kept, but give no capacity."""

    def __init__(
        self, on_change: Callable[[], None] = lambda: None, on_rebooked: Callable[[str], object] = str
    ) -> None:
        self._on_change, self._on_rebooked = on_change, on_rebooked
        self._views: dict[str, NodeView] = {}
        self.latest_snapshot: ResourceSnapshot | None = None
        self.reservations: dict[str, Reservation] = {}
        """By item id."""
        self._reserved: dict[str, dict[str, float]] = {}
        self._history: dict[str, UsageHistory] = {}
        self._external = ExternalUsage()
        self.past_node_sizes: tuple[Resources, ...] = ()
        """The largest node sizes that were ever seen here."""
        self.largest_node_set: tuple[Resources, ...] = ()
        """The node sizes at the time when there were most nodes: a node that is away may come back."""
        self._known_since = self._session_since = -math.inf
        self._nodes_before = 0

    def node_count_at_placement(self, task_id: str) -> int | None:
        """How many nodes the session had in which the item was placed; None if no snapshot covers that time."""
        if self.latest_snapshot is None:
            return None
        reservation = self.reservations.get(task_id)
        if reservation is None:
            return max(self._nodes_before, len(self.latest_snapshot.nodes))
        if reservation.since < self._known_since:
            return None
        return self._nodes_before if reservation.since < self._session_since else len(self.latest_snapshot.nodes)

    def pending_on_new_nodes(self) -> Resources:
        """Reserved resources on nodes that do not exist yet."""
        return self._reserved.get(NEW_NODE, {})

    def waits_for_node(self, task_id: str) -> bool:
        """Does the item wait for a new node?"""
        reservation = self.reservations.get(task_id)
        return reservation is not None and NEW_NODE in reservation.parts

    def reserve(self, task_id: str, parts: Mapping[str, Resources], now: float, *, spreads: bool = False) -> None:
        """Hold this for the item until :meth:`release`. An item holds one reservation at a time."""
        self._drop(task_id, now)
        self.reservations[task_id] = Reservation(now, dict(parts), spreads)
        for node_id, amounts in parts.items():
            self._book(node_id, amounts, 1, now)

    def release(self, task_id: str, now: float) -> None:
        """Release what the item holds; no effect if it holds nothing."""
        self._drop(task_id, now)
        self._move_to_real_nodes(now)

    def hand_over(self, ended_id: str, begun_id: str) -> bool:
        """Give the reservation of one item to another. False if it held nothing."""
        reservation = self.reservations.pop(ended_id, None)
        if reservation is None:
            return False
        self.reservations[begun_id] = reservation
        return True

    def shrink(self, task_id: str, amounts: Resources, now: float) -> None:
        """From now on it holds only this, where it is."""
        reservation = self.reservations.get(task_id)
        if reservation is not None and reservation.parts:
            self.reserve(task_id, {next(iter(reservation.parts)): amounts} if amounts else {}, now)
            self.reservations[task_id].started_at = reservation.started_at
            self._move_to_real_nodes(now)

    def move(self, task_id: str, node_id: str, now: float) -> bool:
        """Ray started it on this node, whatever we expected. False if that is what we expected."""
        reservation = self.reservations.get(task_id)
        if reservation is None or not reservation.parts:
            return False
        if node_id in reservation.parts and len(reservation.parts) == 1:
            reservation.started_at = now
            return False
        return self.arrange(task_id, {node_id: total_of(reservation.parts.values())}, now)

    def arrange(self, task_id: str, parts: Mapping[str, Resources], now: float) -> bool:
        """Ray started it, or the members of a gang, on these nodes. False if that is what we expected."""
        reservation = self.reservations.get(task_id)
        if reservation is None:
            return False
        reservation.started_at = now
        if reservation.parts == parts:
            return False
        before, since = reservation.parts, reservation.since
        for node_id, amounts in parts.items():
            came = {name: amount for name, amount in minus(amounts, before.get(node_id, {})).items() if amount > 0}
            if came:
                self._history.setdefault(node_id, UsageHistory()).backdate(since, came)
                self._external.attribute_to_us(node_id, since, came)
        self.reserve(task_id, parts, now, spreads=reservation.spreads)
        self.reservations[task_id].since, self.reservations[task_id].started_at = since, now
        self._move_overbooked(parts, now)
        self._move_to_real_nodes(now)
        return True

    def observe(self, snapshot: ResourceSnapshot) -> None:
        """Learn from a snapshot, which may come late, early, twice or out of order."""
        self._forget_views()
        newest = self.latest_snapshot
        if newest is not None and _other_session(newest, snapshot):
            if snapshot.taken_at < newest.taken_at:
                return
            self._external = ExternalUsage()
            self._session_since, self._nodes_before = snapshot.taken_at, len(newest.nodes)
            newest = None
        elif newest is None:
            self._known_since = snapshot.taken_at
        if newest is None or snapshot.taken_at >= newest.taken_at:
            if newest is not None and NEW_NODE in self._reserved:
                self._book_on_added_nodes(newest, snapshot)
            self.latest_snapshot = newest = snapshot
            self._forget_vanished(snapshot)
            self._record_node_sizes(snapshot)
        if snapshot.taken_at < newest.taken_at - STALENESS_S[newest.source]:
            return
        alive = {node.node_id for node in newest.nodes}
        running = self._running_by(snapshot.taken_at - STALENESS_S[snapshot.source])
        for node in snapshot.nodes:
            if node.free is not None and node.node_id in alive:
                self._external.observe(node.node_id, self._observation(node, node.free, snapshot, running))
        self._move_to_real_nodes(newest.taken_at)
        self._forget_views()

    def forget_node_sizes(self) -> None:
        """The cluster was reconfigured: earlier node sizes no longer apply."""
        self.past_node_sizes = self.largest_node_set = ()
        self._on_change()

    def _forget_views(self) -> None:
        self._views.clear()
        self._on_change()

    def nodes(self) -> tuple[NodeView, ...]:
        """The nodes of the newest snapshot with the current bookings."""
        if self.latest_snapshot is None:
            return ()
        views = self._views
        return tuple([views.get(node.node_id) or self._view(node) for node in self.latest_snapshot.nodes])

    def free(self) -> Resources | None:
        """Free resources on all nodes together; None if that is unknown for any node."""
        known = [node.free for node in self.nodes() if node.free is not None]
        return total_of(known) if self.latest_snapshot and len(known) == len(self.latest_snapshot.nodes) else None

    def _view(self, node: NodeSnapshot) -> NodeView:
        ours = self._reserved.get(node.node_id, {})
        others = self._external.on_node(node.node_id)
        if node.free is None or others is None:
            view = NodeView(node.node_id, node.total, None, ours, None)
        else:
            free, over = {}, {}
            for name, amount in node.total.items():
                left = round(amount - others.get(name, 0.0) - ours.get(name, 0.0), _DIGITS)
                free[name] = max(0.0, left)
                if left < 0.0:
                    over[name] = -left
            view = NodeView(node.node_id, node.total, others, ours, free, over)
        self._views[node.node_id] = view
        return view

    def _drop(self, task_id: str, now: float) -> None:
        reservation = self.reservations.pop(task_id, None)
        if reservation is None:
            return
        for node_id, amounts in reservation.parts.items():
            self._book(node_id, amounts, -1, now)

    def _move_overbooked(self, taken: Iterable[str], now: float) -> None:
        """More is booked on these nodes than they have: attempts that have not started will start where there is
        capacity."""
        totals = {node.node_id: node.total for node in self.latest_snapshot.nodes} if self.latest_snapshot else {}
        for node_id in taken:
            for task_id, reservation in self._expected_on(node_id):
                if node_id not in totals or fits(self._reserved.get(node_id, {}), totals[node_id]):
                    break
                part = reservation.parts[node_id]
                elsewhere = best_node(part, [node for node in self.nodes() if node.node_id != node_id])
                if elsewhere is not None:
                    self._move_booking(task_id, elsewhere, part, now, expected=node_id)

    def _expected_on(self, node_id: str) -> list[tuple[str, Reservation]]:
        """Those that are booked there alone and were not seen to start."""
        return [
            (task_id, one)
            for task_id, one in self.reservations.items()
            if node_id in one.parts and len(one.parts) == 1 and one.started_at == math.inf and not one.spreads
        ]

    def _waiting_for_nodes(self) -> list[tuple[str, Reservation]]:
        return [(task_id, one) for task_id, one in self.reservations.items() if NEW_NODE in one.parts]

    def _move_to_real_nodes(self, now: float) -> None:
        """Capacity was freed or a node appeared: Ray starts there what waits for a new node."""
        if NEW_NODE not in self._reserved:
            return
        for task_id, reservation in self._waiting_for_nodes():
            node_id = best_node(reservation.parts[NEW_NODE], self.nodes())
            if node_id is not None:
                self._move_booking(task_id, node_id, reservation.parts[NEW_NODE], now)

    def _book_on_added_nodes(self, before: ResourceSnapshot, snapshot: ResourceSnapshot) -> None:
        """A node appeared. What may be divided is assumed to run there already, since no start will be reported."""
        known = {node.node_id for node in before.nodes}
        for node in snapshot.nodes:
            if node.node_id in known:
                continue
            for task_id, reservation in self._waiting_for_nodes():
                room = minus(node.total, self._reserved.get(node.node_id, {}))
                waiting = reservation.parts[NEW_NODE]
                part = {name: min(amount, room.get(name, 0.0)) for name, amount in waiting.items()}
                if reservation.spreads and any(part.values()):
                    self._history.setdefault(node.node_id, UsageHistory()).backdate(reservation.since, part)
                    self._move_booking(task_id, node.node_id, part, snapshot.taken_at)

    def _move_booking(
        self, task_id: str, node_id: str, part: Resources, now: float, *, expected: str = NEW_NODE
    ) -> None:
        """Move this part of a reservation to another node."""
        reservation = self.reservations[task_id]
        self._on_rebooked(task_id)
        rest = {name: amount for name, amount in minus(reservation.parts[expected], part).items() if amount > 0}
        parts = {**reservation.parts, node_id: plus(reservation.parts.get(node_id, {}), part), expected: rest}
        reservation.parts = {name: amounts for name, amounts in parts.items() if amounts}
        self._book(expected, part, -1, now)
        self._book(node_id, part, 1, now)

    def _book(self, node_id: str, amounts: Resources, sign: int, now: float) -> None:
        """Add to, or subtract from, what is ours on the node."""
        self._on_change()
        self._views.pop(node_id, None)
        ours = dict(self._reserved.get(node_id, ()))
        for name, amount in amounts.items():
            left = round(ours.get(name, 0.0) + sign * amount, _DIGITS)
            if left > 0:
                ours[name] = left
            else:
                ours.pop(name, None)
        history = self._history.get(node_id)
        if history is None:
            history = self._history[node_id] = UsageHistory()
        history.record(now, ours)
        if ours:
            self._reserved[node_id] = ours
        else:
            self._reserved.pop(node_id, None)

    def _running_by(self, since: float) -> dict[str, dict[str, float]]:
        """Resources of attempts that were seen to start by then and have not ended, by node."""
        running: dict[str, dict[str, float]] = {}
        for reservation in self.reservations.values():
            if reservation.started_at <= since:
                for node_id, part in reservation.parts.items():
                    running[node_id] = plus(running.get(node_id, {}), part)
        return running

    def _observation(
        self, node: NodeSnapshot, free: Resources, snapshot: ResourceSnapshot, running: Mapping[str, Resources]
    ) -> UsageObservation:
        """The use of a node in the snapshot, and how much of that may be ours."""
        since, until = snapshot.taken_at - STALENESS_S[snapshot.source], snapshot.taken_at
        used = minus(node.total, {name: amount for name, amount in free.items() if name in node.total})
        history = self._history.get(node.node_id)
        # An agent asks Ray itself, again and again; a dashboard keeps a report for a while.
        seen_at = snapshot.taken_at if snapshot.source == "agent" else snapshot.reported_at
        order = None if seen_at is None else (snapshot.source, seen_at)
        if history is None:
            return UsageObservation(since, until, used, {}, {}, order)
        least = highest(running.get(node.node_id, {}), history.trough(since - SETTLE_S, until))
        return UsageObservation(since, until, used, least, history.peak(since, until), order)

    def _forget_vanished(self, snapshot: ResourceSnapshot) -> None:
        alive = {node.node_id for node in snapshot.nodes}
        for node_id in [one for one in self._history if one not in alive and one not in self._reserved]:
            del self._history[node_id]
        self._external.keep_only(alive)

    def _record_node_sizes(self, snapshot: ResourceSnapshot) -> None:
        if len(snapshot.nodes) > len(self.largest_node_set):
            self.largest_node_set = tuple(node.total for node in snapshot.nodes)
        for node in snapshot.nodes:
            if any(fits(node.total, size) for size in self.past_node_sizes):
                continue
            larger = [size for size in self.past_node_sizes if not fits(size, node.total)]
            self.past_node_sizes = tuple([*larger, node.total][-_MAX_PAST_SIZES:])


def _other_session(left: ResourceSnapshot, right: ResourceSnapshot) -> bool:
    return None not in (left.session_id, right.session_id) and left.session_id != right.session_id
