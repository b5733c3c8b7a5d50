"""SimulatedExecutor: carries out the machine's instructions in virtual time; injects faults and other load."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from ray_multicluster_scheduler.scheduler.lifecycle.events import Event
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    CancelAttempt,
    CheckDashboard,
    Dispatch,
    RecallAttempt,
    RefreshSnapshot,
    StartAttempt,
)
from ray_multicluster_scheduler.simulation.simulated_fleet import OthersLoad, PlannedFault, SimulatedFleet
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_cluster import Attempt, RunObserver, SimulatedItem
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_link import SimulatedLink
from ray_multicluster_scheduler.simulation.virtual_fleet.virtual_clock import VirtualClock, random_stream


class SimulatedExecutor:
    """The executor of a whole fleet. ``post`` feeds an event to the machine at a time; ``find_item`` looks up an id."""

    def __init__(
        self,
        fleet: SimulatedFleet,
        seed: int,
        clock: VirtualClock,
        post: Callable[[float, Event], None],
        find_item: Callable[[str], SimulatedItem],
        observer: RunObserver,
    ) -> None:
        self._seed, self._clock, self._find_item = seed, clock, find_item
        self.links = {
            one.name: SimulatedLink(one, fleet.settings, clock, self._random_stream, post, observer)
            for one in fleet.clusters
        }
        self._faults, self._observer = fleet.faults, observer
        self.sent = self.sent_ahead = 0
        self.handlers: dict[type[object], Callable[[Any], None]] = {
            Dispatch: self._dispatch,
            StartAttempt: lambda one: self.links[one.cluster].start((one.task_id, one.attempt)),
            RecallAttempt: lambda one: self.links[one.cluster].recall((one.task_id, one.attempt)),
            CancelAttempt: lambda one: self.links[one.cluster].cancel((one.task_id, one.attempt)),
            RefreshSnapshot: lambda one: self.links[one.cluster].refresh(),
            CheckDashboard: lambda one: self.links[one.cluster].check_dashboard(),
        }

    def start(self) -> None:
        """Bring all links up, and schedule snapshots, other users' load and faults."""
        for number, link in enumerate(self.links.values()):
            if link.spec.others is not None:
                self._schedule_other_load(link, link.spec.others)
            link.link_up()
            # Staggered: clusters do not push their snapshots at the same moment.
            self._clock.at(link.spec.snapshot_every_s * (1 + number / len(self.links)), self._push_periodically, link)
        for fault in self._faults:
            self._clock.at(fault.at, self._inject, fault)

    def _dispatch(self, dispatch: Dispatch) -> None:
        self.sent += 1
        self.sent_ahead += bool(dispatch.ahead)
        self.links[dispatch.cluster].dispatch(Attempt(dispatch, self._find_item(dispatch.task_id)))

    def _random_stream(self, purpose: str) -> Random:
        return random_stream(self._seed, purpose)

    def _push_periodically(self, link: SimulatedLink) -> None:
        link.push_changes()
        self._clock.after(link.spec.snapshot_every_s, self._push_periodically, link)

    # ---- faults and other users

    def _inject(self, fault: PlannedFault) -> None:
        link = self.links[fault.cluster]
        length = "for good" if fault.for_s is None else f"for {fault.for_s:g} s"
        self._observer.fault_injected(f"{fault.cluster}: {fault.what} {length}")
        match fault.what:
            case "cut":
                link.cut()
            case "dies":
                link.kill()
            case "node_dies":
                link.cluster.kill_node(fault.node)
        if fault.for_s is not None:
            self._clock.after(fault.for_s, self._recover, fault)

    def _recover(self, fault: PlannedFault) -> None:
        link = self.links[fault.cluster]
        match fault.what:
            case "cut":
                link.end_cut()
            case "dies":
                link.restart()
            case "node_dies" if link.alive:
                link.cluster.restore_node(fault.node)

    def _schedule_other_load(self, link: SimulatedLink, load: OthersLoad) -> None:
        for at, share in load.steps:
            self._clock.at(at, self._set_other_load, (link, share))
        if load.every_s is not None:
            self._draw_other_load((link, load, self._random_stream(f"others on {link.name}")))
        elif load.share:
            self._set_other_load((link, load.share))

    def _set_other_load(self, what: tuple[SimulatedLink, float]) -> None:
        link, share = what
        for number in range(len(link.cluster.allocation.nodes)):
            link.cluster.set_other_share(number, share)

    def _draw_other_load(self, what: tuple[SimulatedLink, OthersLoad, Random]) -> None:
        link, load, rng = what
        for number in range(len(link.cluster.allocation.nodes)):
            link.cluster.set_other_share(number, min(1.0, rng.uniform(0.0, 2.0 * load.share)))
        if load.every_s is not None:
            self._clock.after(load.every_s, self._draw_other_load, what)
