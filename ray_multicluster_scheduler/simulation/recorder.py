"""Recorder: writes the history of a run, for whoever wants to judge or replay it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from ray_multicluster_scheduler.scheduler.lifecycle.events import Event
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Instruction
from ray_multicluster_scheduler.simulation.history import Began, Fault, Fed, How, Line, Nodes, Over, Setup, Told
from ray_multicluster_scheduler.simulation.model import SimulatedFleet
from ray_multicluster_scheduler.simulation.virtual_fleet.attempts import Attempt
from ray_multicluster_scheduler.simulation.virtual_fleet.node_allocation import Room
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_cluster import Watcher
from ray_multicluster_scheduler.simulation.virtual_fleet.virtual_clock import Clockwork


class Recorder:
    """Stands before the meter, and tells ``observe`` what it hears."""

    def __init__(
        self, next_one: Watcher, clock: Clockwork, observe: Callable[[Line], object], fleet: SimulatedFleet
    ) -> None:
        self._next, self._clock, self._observe = next_one, clock, observe
        settings = fleet.settings.model_dump(mode="json", exclude_defaults=True)
        observe(Setup(clock.now, settings, tuple(one.metadata for one in fleet.clusters)))
        for one in fleet.clusters:
            sizes = {f"{one.name}-n{number}": dict(size) for number, size in enumerate(one.nodes, start=1)}
            observe(Nodes(clock.now, one.name, sizes))

    def fed(self, event: Event, instructions: Iterable[Instruction]) -> None:
        """The machine was told this, and answered that."""
        now = self._clock.now
        self._observe(Fed(now, event))
        for instruction in instructions:
            self._observe(Told(now, instruction))

    def began(self, cluster: str, attempt: Attempt) -> None:
        parts: dict[str, Any] = {}
        for node, amounts in attempt.parts or ():
            held = parts.setdefault(node.name, {})
            for name, amount in amounts.items():
                held[name] = held.get(name, 0.0) + amount
        order = attempt.order
        self._observe(
            Began(self._clock.now, cluster, order.task_id, order.attempt, order.fence, parts, attempt.work.task.kind)
        )
        self._next.began(cluster, attempt)

    def over(self, cluster: str, attempt: Attempt, how: str) -> None:
        if attempt.began_at is not None:
            order = attempt.order
            self._observe(Over(self._clock.now, cluster, order.task_id, order.attempt, cast("How", how)))
        self._next.over(cluster, attempt, how)

    def trouble(self, what: str) -> None:
        self._observe(Fault(self._clock.now, what))
        self._next.trouble(what)

    def nodes(self, cluster: str, room: Room) -> None:
        self._observe(Nodes(self._clock.now, cluster, {name: dict(size) for name, size in room.totals().items()}))
        self._next.nodes(cluster, room)
