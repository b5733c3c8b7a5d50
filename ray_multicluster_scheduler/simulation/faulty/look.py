"""Looks: what a machine says of itself between two events, as a line of the history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.policy.reasons import BREAKER_OPEN
from ray_multicluster_scheduler.simulation.history import Line, Looked


class Rebuild(Protocol):
    """How a machine comes back after a crash of the control plane."""

    def machine(self, history: Sequence[Line], now: float) -> SchedulerMachine:
        """A new one, from the Persist lines (and what else was durable) of this history."""

    def differences(self, live: SchedulerMachine, history: Sequence[Line], now: float) -> tuple[str, ...]:
        """How a machine rebuilt from this history differs from the live one, less soft state; in words."""


def look(machine: SchedulerMachine, history: Sequence[Line], now: float, rebuild: Rebuild | None = None) -> Looked:
    """Ask why each waiting item waits, which breakers are open, and what is left once nothing is unfinished."""
    waiting = {}
    for record in machine.records():
        if record.state.terminal:
            continue
        decision = machine.why(record.task.id, now)
        missing = machine.missing(record.task.id)
        if decision is not None:
            waiting[record.task.id] = decision.code, decision.sentence
        elif missing is not None:
            waiting[record.task.id] = missing.code, missing.sentence
    unequal = () if rebuild is None else rebuild.differences(machine, history, now)
    return Looked(now, waiting, _open_breakers(machine, now), _left(machine), unequal)


def _open_breakers(machine: SchedulerMachine, now: float) -> tuple[str, ...]:
    views = [machine.view(metadata.name, now) for metadata in machine.registry.list()]
    return tuple(view.name for view in views if view.trouble is not None and view.trouble.code == BREAKER_OPEN)


def _left(machine: SchedulerMachine) -> tuple[str, ...]:
    """What it still holds although every item is over."""
    if machine.has_unfinished():
        return ()
    left = [f"timer {key}" for key in sorted(machine.timers)]
    left += [f"{depth} waiting in {lane}" for lane, depth in machine.queue_depths().items()]
    for metadata in machine.registry.list():
        state = machine.registry.state(metadata.name)
        left += [f"reservation of {task_id} on {state.name}" for task_id in state.ledger.reservations]
        left += [f"{task_id} counted on {state.name}" for task_id in (*state.places.held, *state.places.ahead)]
        left += [f"{node.ours} of ours on {node.node_id}" for node in state.ledger.nodes() if node.ours]
        left += [f"room kept on {state.name} for {state.pin.task_id}"] if state.pin is not None else []
    return tuple(left)
