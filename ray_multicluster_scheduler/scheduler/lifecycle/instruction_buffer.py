"""InstructionBuffer: collects the instructions of one call of the machine and tracks which timers are set."""

from __future__ import annotations

from collections.abc import KeysView

from ray_multicluster_scheduler.common.model import SchedulingDecision
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    ClearTimer,
    Continue,
    Instruction,
    Persist,
    Publish,
    Remember,
    RememberFleet,
    SetTimer,
    Transition,
)


class InstructionBuffer:
    """First in, first out, but everything that must be durable comes before everything else."""

    def __init__(self) -> None:
        self._durable: list[Instruction] = []
        self._effects: list[Instruction] = []
        self._more = False
        self._timers: dict[str, float] = {}

    @property
    def timers(self) -> frozenset[str]:
        """Keys of the timers that have not fired."""
        return frozenset(self._timers)

    @property
    def timer_keys(self) -> KeysView[str]:
        """The same as a live view, without a copy."""
        return self._timers.keys()

    def due_at(self, key: str) -> float | None:
        """When this timer fires; None if it is not set."""
        return self._timers.get(key)

    def add_transition(self, step: Transition, decision: SchedulingDecision | None) -> None:
        """Persist and publish a transition."""
        self._durable.append(Persist(step, decision))
        self._effects.append(Publish(step))

    def add(self, instruction: Instruction) -> None:
        (self._durable if isinstance(instruction, (Remember, RememberFleet)) else self._effects).append(instruction)

    def request_continue(self) -> None:
        """Work is left: end the list with one Continue."""
        self._more = True

    def set_timer(self, key: str, at: float) -> None:
        """Set or move a timer; emits nothing if it is already set to that time."""
        if self._timers.get(key) != at:
            self._timers[key] = at
            self.add(SetTimer(key, at))

    def clear_timer(self, key: str) -> None:
        if self._timers.pop(key, None) is not None:
            self.add(ClearTimer(key))

    def consume_timer(self, key: str) -> bool:
        """Remove a timer that fired. False if it was cleared before it fired."""
        return self._timers.pop(key, None) is not None

    def drain(self) -> list[Instruction]:
        """Return all instructions of this call and start an empty list."""
        instructions = [*self._durable, *self._effects]
        if self._more:
            instructions.append(Continue())
        self._durable, self._effects, self._more = [], [], False
        return instructions
