"""SimulatedHands: who carries out the machine's instructions in virtual time, towards all clusters of a fleet."""

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
from ray_multicluster_scheduler.simulation.model import OthersLoad, PlannedFault, SimulatedFleet
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_cluster import Attempt, Watcher, Work
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_link import NearSide
from ray_multicluster_scheduler.simulation.virtual_fleet.virtual_clock import Clockwork


def stream(seed: int, purpose: str) -> Random:
    """Chance for one purpose: what is drawn for another one changes nothing here."""
    return Random(f"{seed}/{purpose}")  # nosec B311 # a seed is to give the same again


class SimulatedHands:
    """``post`` feeds an event to the machine at a time; ``find`` knows the work behind an id."""

    def __init__(
        self,
        fleet: SimulatedFleet,
        seed: int,
        clock: Clockwork,
        post: Callable[[float, Event], None],
        find: Callable[[str], Work],
        watcher: Watcher,
    ) -> None:
        self._seed, self._clock, self._find = seed, clock, find
        self.clusters = {
            one.name: NearSide(one, fleet.settings, clock, self._chance, post, watcher) for one in fleet.clusters
        }
        self._faults, self._watcher = fleet.faults, watcher
        self.sent = self.sent_ahead = 0
        self.deeds: dict[type[object], Callable[[Any], None]] = {
            Dispatch: self._dispatch,
            StartAttempt: lambda one: self.clusters[one.cluster].start((one.task_id, one.attempt)),
            RecallAttempt: lambda one: self.clusters[one.cluster].recall((one.task_id, one.attempt)),
            CancelAttempt: lambda one: self.clusters[one.cluster].cancel((one.task_id, one.attempt)),
            RefreshSnapshot: lambda one: self.clusters[one.cluster].refresh(),
            CheckDashboard: lambda one: self.clusters[one.cluster].check_dashboard(),
        }

    def begin(self) -> None:
        """All links are up; from now on clusters tell what changes, and their troubles take their course."""
        for number, near in enumerate(self.clusters.values()):
            if near.spec.others is not None:
                self._let_others(near, near.spec.others)
            near.introduce()
            # Not all in the same moment: clusters know nothing of each other.
            self._clock.at(near.spec.snapshot_every_s * (1 + number / len(self.clusters)), self._look, near)
        for fault in self._faults:
            self._clock.at(fault.at, self._happens, fault)

    def _dispatch(self, order: Dispatch) -> None:
        self.sent += 1
        self.sent_ahead += bool(order.ahead)
        self.clusters[order.cluster].dispatch(Attempt(order, self._find(order.task_id)))

    def _chance(self, purpose: str) -> Random:
        return stream(self._seed, purpose)

    def _look(self, near: NearSide) -> None:
        near.look()
        self._clock.after(near.spec.snapshot_every_s, self._look, near)

    # ---- troubles

    def _happens(self, fault: PlannedFault) -> None:
        near = self.clusters[fault.cluster]
        length = "for good" if fault.for_s is None else f"for {fault.for_s:g} s"
        self._watcher.trouble(f"{fault.cluster}: {fault.what} {length}")
        match fault.what:
            case "cut":
                near.cut()
            case "dies":
                near.die()
            case "node_dies":
                near.far.node_died(fault.node)
        if fault.for_s is not None:
            self._clock.after(fault.for_s, self._passes, fault)

    def _passes(self, fault: PlannedFault) -> None:
        near = self.clusters[fault.cluster]
        match fault.what:
            case "cut":
                near.mend()
            case "dies":
                near.rise()
            case "node_dies" if near.alive:
                near.far.node_came(fault.node)

    def _let_others(self, near: NearSide, load: OthersLoad) -> None:
        for at, share in load.steps:
            self._clock.at(at, self._others_step, (near, share))
        if load.every_s is not None:
            self._others_draw((near, load, self._chance(f"others on {near.name}")))
        elif load.share:
            self._others_step((near, load.share))

    def _others_step(self, what: tuple[NearSide, float]) -> None:
        near, share = what
        for number in range(len(near.far.room.nodes)):
            near.far.others_want(number, share)

    def _others_draw(self, what: tuple[NearSide, OthersLoad, Random]) -> None:
        near, load, chance = what
        for number in range(len(near.far.room.nodes)):
            near.far.others_want(number, min(1.0, chance.uniform(0.0, 2.0 * load.share)))
        if load.every_s is not None:
            self._clock.after(load.every_s, self._others_draw, what)
