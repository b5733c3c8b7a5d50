"""WideItemReservations: reserves capacity for wide items that waited ``reserve_after_s``, so that they do not starve.

An item is wide if the end of one of our attempts alone may not free enough for it: smaller items would always take what
is freed first. Reserved capacity is closed to other items, except to more urgent ones and to those that are expected to
end before the wide item could start (backfill).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from math import inf

from ray_multicluster_scheduler.common.model import Resources, TaskDescription
from ray_multicluster_scheduler.common.model.resources import fits, plus, shape_of
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState, WideItemReservation
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView, NodeView
from ray_multicluster_scheduler.scheduler.cluster.fit import find_placement
from ray_multicluster_scheduler.scheduler.lifecycle import timers
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import MachineState
from ray_multicluster_scheduler.scheduler.lifecycle.placement.run_times import code_key
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.policy.verdict import lacks_capacity
from ray_multicluster_scheduler.scheduler.queue.shape_group import ShapeGroup

MAX_CHECKED = 10
_SLACK = 64
_AGAIN_S = 1.0
"""Interval after which a waiting item is checked again."""


class WideItemReservations:
    """At most one reservation per cluster, for the most urgent wide item, and at most one per item."""

    def __init__(self, machine: MachineState) -> None:
        self._machine = machine
        self._after_s = machine.settings.reserve_after_s
        self._deadlines: list[tuple[float, int, ShapeGroup]] = []
        self._watched: set[ShapeGroup] = set()
        self._numbers = count()

    def watch(self, group: ShapeGroup, since: float, now: float) -> None:
        """An item of this group waits since then: check it after ``reserve_after_s``."""
        if group not in self._watched:
            if len(self._deadlines) > 2 * self._machine.queue.group_count + _SLACK:
                self._forget_empty()
            self._watched.add(group)
            heapq.heappush(self._deadlines, (since + self._after_s, next(self._numbers), group))
            self._set_timer(now)

    def views_for(self, record: TaskRecord, views: tuple[ClusterView, ...], now: float) -> tuple[ClusterView, ...]:
        """The views without the reservations that this item may ignore."""
        if not self._machine.wide_reservations:
            return views
        urgency = inf if record.group is None else self._machine.queue.urgency(record.group)
        return tuple(
            view.without_reservation or view if self._may_use(record.task, urgency, view, now) else view
            for view in views
        )

    def views_for_new(
        self, task: TaskDescription, views: tuple[ClusterView, ...], now: float
    ) -> tuple[ClusterView, ...]:
        """The same for an item that would be submitted now."""
        urgency = self._machine.queue.order.urgency(task.priority, now)
        return tuple(
            view.without_reservation or view if self._may_use(task, urgency, view, now) else view for view in views
        )

    def reserve_overdue(self, now: float) -> list[str]:
        """Reserve capacity for wide items that have waited long enough. Returns the clusters with a new reservation.

        A bounded number per call: for the rest the timer is set to now.
        """
        clusters = []
        self.drop_useless(now)
        for _ in range(MAX_CHECKED):
            if not self._deadlines or self._deadlines[0][0] > now:
                break
            group = heapq.heappop(self._deadlines)[2]
            if not group:
                self._watched.discard(group)
                continue
            record = self._machine.records[group.head().task_id]
            due = (record.queued_at or now) + self._after_s
            if due <= now:
                kept_on = self._machine.wide_reservations.get(record.task.id)
                if kept_on is not None:
                    self._advance_start(self._machine.registry.state(kept_on), now)
                else:
                    kept_on = self._reserve(record, group, now)
                    clusters += [kept_on] if kept_on is not None else []
                due = now + (_AGAIN_S if kept_on is not None else max(self._after_s, _AGAIN_S))
            heapq.heappush(self._deadlines, (due, next(self._numbers), group))
        self._set_timer(now)
        return clusters

    def drop_useless(self, now: float) -> None:
        """Drop the reservations that cannot help any more, after clusters have changed."""
        for task_id, cluster in list(self._machine.wide_reservations.items()):
            state = self._machine.registry.find(cluster)
            if state is None or not self._is_useful(self._machine.records[task_id], state, now):
                self._machine.release_wide_reservation(task_id)

    def clear(self) -> None:
        """Forget all deadlines: no item waits any more."""
        if self._deadlines:
            self._deadlines.clear()
            self._watched.clear()
            self._set_timer()

    def _is_useful(self, record: TaskRecord, state: ClusterState, now: float) -> bool:
        """May the item start at all, and will there be capacity once all our work there has ended?"""
        if record.group is None or self._machine.refusal(record.group) is not None:
            return False
        if state.problem(now) is not None or state.cordoned or state.paused is not None:
            return False
        return find_placement(record.wanted, _emptied(state.ledger.nodes())) is not None

    def _forget_empty(self) -> None:
        self._deadlines = [entry for entry in self._deadlines if entry[2]]
        self._watched = {entry[2] for entry in self._deadlines}
        heapq.heapify(self._deadlines)

    def _may_use(self, task: TaskDescription, urgency: float, view: ClusterView, now: float) -> bool:
        state = self._machine.registry.find(view.name)
        pin = None if state is None else state.wide_reservation
        if pin is None or pin.task_id == task.id or urgency < pin.urgency:
            return True
        expected = self._machine.run_times.expected_s(code_key(task))
        return expected is not None and pin.start_at is not None and now + expected <= pin.start_at

    def _reserve(self, record: TaskRecord, group: ShapeGroup, now: float) -> str | None:
        """Reserve on the cluster where the item is expected to start first; not on one reserved for a more urgent
        item."""
        best: tuple[tuple[float, bool], ClusterState, WideItemReservation] | None = None
        if self._machine.refusal(group) is not None:
            return None
        urgency = self._machine.queue.urgency(group)
        for row in self._machine.engine.table(record.wanted, self._machine.fleet.views(now), retry=record.retry):
            state = self._machine.registry.state(row.cluster)
            taken = state.wide_reservation is not None
            if state.wide_reservation is not None and state.wide_reservation.urgency <= urgency:
                continue
            if not lacks_capacity(row) or not self._is_wide(record, state):
                continue
            parts = find_placement(record.wanted, _emptied(state.ledger.nodes()))
            if not parts:
                continue
            start_at = self._free_at(state, parts, now)
            pin = WideItemReservation(record.task.id, parts, urgency, None if start_at == inf else start_at)
            if best is None or (start_at, taken) < best[0]:
                best = (start_at, taken), state, pin
        if best is None:
            return None
        _, state, pin = best
        if state.wide_reservation is not None:
            self._machine.release_wide_reservation(state.wide_reservation.task_id)
        state.wide_reservation = pin
        self._machine.wide_reservations[record.task.id] = state.name
        return state.name

    def _advance_start(self, state: ClusterState, now: float) -> None:
        """Attempts may end earlier than expected: bring the start forward, so that backfill stops earlier. The start
        never moves back."""
        pin = state.wide_reservation
        if pin is not None and pin.start_at is not None:
            state.wide_reservation = replace(
                pin, start_at=min(pin.start_at, self._free_at(state, dict(pin.parts), now))
            )

    def _is_wide(self, record: TaskRecord, state: ClusterState) -> bool:
        """Is there an attempt of ours whose end alone would not free enough for the item?

        What is free now does not count: smaller items may have taken it by then.
        """
        nodes = [replace(node, free={}) if node.free else node for node in state.ledger.nodes()]
        distinct = {
            tuple((node_id, shape_of(amounts)) for node_id, amounts in sorted(reservation.parts.items()))
            for reservation in state.ledger.reservations.values()
        }
        for parts in distinct:
            freed = {node_id: dict(amounts) for node_id, amounts in parts}
            if find_placement(record.wanted, [_with(node, freed.get(node.node_id)) for node in nodes]) is None:
                return True
        return False

    def _free_at(self, state: ClusterState, parts: dict[str, Resources], now: float) -> float:
        """The time when enough of the running work is expected to have ended; infinity if that is unknown."""
        free = {node.node_id: node.free or {} for node in state.ledger.nodes()}
        for ends_at, held in sorted(self._ends(state), key=lambda one: one[0]):
            if all(fits(need, free.get(node_id, {})) for node_id, need in parts.items()):
                return now
            for node_id, amounts in held.items():
                free[node_id] = plus(free.get(node_id, {}), amounts)
            now = max(now, ends_at)
        return now if all(fits(need, free.get(node_id, {})) for node_id, need in parts.items()) else inf

    def _ends(self, state: ClusterState) -> Iterator[tuple[float, dict[str, Resources]]]:
        for task_id, reservation in state.ledger.reservations.items():
            record = self._machine.records[task_id]
            expected = self._machine.run_times.expected_s(code_key(record.task))
            begun = reservation.since if record.started_at is None else record.started_at
            yield inf if expected is None else begun + expected, reservation.parts

    def _set_timer(self, now: float = 0.0) -> None:
        if self._deadlines:
            self._machine.output.set_timer(timers.KEEP, max(now, self._deadlines[0][0]))
        else:
            self._machine.output.clear_timer(timers.KEEP)


def _emptied(nodes: Iterable[NodeView]) -> list[NodeView]:
    """The nodes as they will be when all our work there has ended."""
    return [node if node.free is None else replace(node, free=plus(node.free, node.reserved)) for node in nodes]


def _with(node: NodeView, amounts: Resources | None) -> NodeView:
    if node.free is None or not amounts:
        return node
    return replace(node, free=plus(node.free, amounts))
