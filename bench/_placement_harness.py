"""Drives a scheduler machine for the placement benchmark: every dispatch is accepted at once, and ends on request."""

from __future__ import annotations

import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from bench._naive import differences, evaluate
from bench._placement_fleet import PYTHON, fleet, introductions, synthetic_pools
from ray_multicluster_scheduler.common.model import Resources, SchedulingDecision, TaskDescription
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView, NodeView
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Continue, Dispatch
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine

Clock: TypeAlias = Callable[[], int]
"""A clock in nanoseconds."""

STEP_S = 2e-5
"""Virtual time between two events."""


@dataclass(frozen=True)
class Placed:
    """An item that is on a cluster, and its node in the ledger."""

    task: TaskDescription
    attempt: int
    cluster: str
    node_id: str | None


@dataclass(frozen=True)
class Sample:
    """A decision, and its whole input."""

    task: TaskDescription
    decision: SchedulingDecision
    views: list[ClusterView]
    last_placed: dict[str, int]


class PlacementHarness:
    """Feeds events, times each call of ``handle``, and keeps the running items."""

    def __init__(self, clusters: int, settings: Settings, clock: Clock = time.perf_counter_ns, pools: int = 0) -> None:
        self.clusters = fleet(clusters)
        self.settings = settings
        self._clock = clock
        described = [one.metadata for one in self.clusters]
        self.machine = SchedulerMachine(
            settings, described, local_python=PYTHON, pools=synthetic_pools(pools, self.clusters)
        )
        self.now = 1000.0
        self.running: list[Placed] = []
        self.dispatched: list[Placed] = []
        """Dispatches of the last event, not accepted yet."""
        self.last_placed: dict[str, int] = {}
        self.submitted = self.placements = 0
        self.timed = False
        self.times: dict[str, array[int]] = defaultdict(lambda: array("q"))
        """Nanoseconds of every timed call, by the name of its event."""
        self.spent = 0
        """Nanoseconds in all timed calls."""
        for event in introductions(self.clusters, self.now):
            self.feed(event)

    def feed(self, event: events.Event) -> None:
        """Feed one event, and a Continued event for each Continue that it answers."""
        self.dispatched = []
        again: events.Event | None = event
        while again is not None:
            self.now += STEP_S
            begin = self._clock()
            out = self.machine.handle(again, self.now)
            took = self._clock() - begin
            if self.timed:
                self.times[type(again).__name__].append(took)
                self.spent += took
            for one in out:
                if isinstance(one, Dispatch):
                    self._note(one)
            again = events.Continued() if out and isinstance(out[-1], Continue) else None

    def submit(self, task: TaskDescription) -> list[Placed]:
        """Submit a task. Returns the placed items: the task, or none."""
        self.submitted += 1
        self.feed(events.Submitted(task))
        return self.accept_dispatches()

    @property
    def queued(self) -> int:
        return self.submitted - self.placements

    def accept_dispatches(self) -> list[Placed]:
        """Accept the dispatches of the last event; returns them."""
        dispatched = list(self.dispatched)
        for one in dispatched:
            self.feed(events.DispatchAccepted(one.task.id, one.attempt))
            self.running.append(one)
            dispatched += self.dispatched
        return dispatched

    def pop_running(self, index: int) -> Placed:
        """Remove a running item, which the caller will end."""
        self.running[index], self.running[-1] = self.running[-1], self.running[index]
        return self.running.pop()

    def finish(self, one: Placed) -> None:
        """End an item after one second; start and end are one event, as for short tasks."""
        event = events.AttemptFinished(
            one.task.id, one.attempt, "succeeded", took=1.0, started_at=self.now, node_id=one.node_id
        )
        self.feed(event)

    def forget(self, one: Placed) -> None:
        self.machine.forget(one.task.id)

    def views(self, without: Placed | None = None) -> list[ClusterView]:
        """The views for the next event; ``without`` an item that this event ends."""
        views = [self.machine.view(one.metadata.name, self.now + STEP_S) for one in self.clusters]
        if without is None:
            return views
        held = self.machine.registry.state(without.cluster).ledger.reservations[without.task.id].parts
        return [_freed(view, held) if view.name == without.cluster else view for view in views]

    def sample(self, views: list[ClusterView], last_placed: dict[str, int]) -> Sample | None:
        """The first decision of the last event, if there is one."""
        if not self.dispatched:
            return None
        first = self.dispatched[0]
        decision = self.machine.record(first.task.id).decision
        return None if decision is None else Sample(first.task, decision, views, last_placed)

    def disagreements(self, samples: list[Sample]) -> list[str]:
        """Where the machine and the naive evaluator disagree, as sentences."""
        found = []
        for one in samples:
            answer = evaluate(one.task, one.views, self.settings, one.last_placed, local_python=PYTHON)
            found += [f"{one.task.id}: {text}" for text in differences(one.decision, answer)]
        return found

    def _note(self, sent: Dispatch) -> None:
        record = self.machine.record(sent.task_id)
        held = self.machine.registry.state(sent.cluster).ledger.reservations.get(sent.task_id)
        nodes = list(held.parts) if held is not None else []
        self.placements += 1
        self.last_placed[sent.cluster] = self.placements
        node_id = nodes[0] if len(nodes) == 1 else None
        self.dispatched.append(Placed(record.task, sent.attempt, sent.cluster, node_id))


def _freed(view: ClusterView, held: Mapping[str, Resources]) -> ClusterView:
    """The cluster without the reservation of one item."""
    nodes = tuple(_node_freed(node, held[node.node_id]) if node.node_id in held else node for node in view.nodes)
    return replace(view, nodes=nodes, in_flight=view.in_flight - 1)


def _node_freed(node: NodeView, held: Resources) -> NodeView:
    ours = {name: round(node.reserved.get(name, 0.0) - held.get(name, 0.0), 6) for name in node.total}
    others = node.external or {}
    free = {name: max(0.0, round(node.total[name] - others.get(name, 0.0) - ours[name], 6)) for name in node.total}
    return replace(node, reserved=ours, free=free)
