"""MachineDriver: feeds events to a SchedulerMachine in virtual time, keeps its timers and rows, records the history."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle import instructions as out
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ItemRow
from ray_multicluster_scheduler.simulation.history import (
    EventHandled,
    FaultInjected,
    History,
    HistoryLine,
    InstructionIssued,
)


def persisted_id(instruction: out.Instruction) -> str | None:
    """The id of the item whose row the instruction writes; None for all other instructions."""
    if type(instruction) is out.Persist:
        return instruction.transition.task_id
    return instruction.task_id if type(instruction) is out.Remember else None


class MachineDriver:
    """Drives one machine. ``execute`` receives every instruction that the driver does not carry out itself."""

    def __init__(self, machine: SchedulerMachine, now: float, rng: Random, fault_rate: float) -> None:
        self.machine, self.now = machine, now
        self.history: History = []
        self.steps = self.faults = 0
        self.rows: dict[str, ItemRow] = {}
        """The durable row of each item."""
        self.epoch = 0
        """Counts restarts of the control plane: a message sent to an earlier one is lost."""
        self.crash_on_next_event = False
        """Crash once the answer to the next event is durable, before any of its effects."""
        self.execute: Callable[[out.Instruction], None] = lambda _: None
        self.on_crash: Callable[[], None] = lambda: None
        self._rng, self.fault_rate = rng, fault_rate
        self._calls: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count(1)
        self._timers: dict[str, tuple[int, float]] = {}
        self._continue_due = False

    # ---- time

    def after(self, delay: float, call: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call so many seconds from now."""
        heapq.heappush(self._calls, (self.now + delay, next(self._numbers), call, arguments))

    def run_until(self, end: float) -> None:
        """Run all calls that are due by then, in order. Time stops earlier if no call is left."""
        calls = self._calls
        while calls and calls[0][0] <= end:
            at, _, call, arguments = heapq.heappop(calls)
            self.now = max(self.now, at)
            call(*arguments)
        if calls:
            self.now = max(self.now, end)

    # ---- the machine

    def feed(self, event: events.Event) -> None:
        """Feed an event to the machine, record its answer and carry it out."""
        self.history.append(EventHandled(self.now, event))
        self.steps += 1
        answer = self.machine.handle(event, self.now)
        changed = {task_id: None for one in answer if (task_id := persisted_id(one)) is not None}
        self.rows.update({task_id: self.machine.row(task_id) for task_id in changed})
        if self.crash_on_next_event:
            answer = [one for one in answer if persisted_id(one) is not None]
        self.history.extend([InstructionIssued(self.now, one) for one in answer])
        if self.crash_on_next_event:
            self.crash_on_next_event = False
            self.on_crash()
            return
        for one in answer:
            match one:
                case out.SetTimer():
                    self._set_timer(one)
                case out.ClearTimer():
                    self._timers.pop(one.key, None)
                case out.Continue():
                    self._schedule_continue()
                case out.Persist() | out.Publish() | out.Remember() | out.RememberFleet():
                    pass
                case _:
                    self.execute(one)

    def restart(self, machine: SchedulerMachine) -> None:
        """Replace the machine by one that is restored from the rows; timers of the old one are gone."""
        before, self.machine = self.machine, machine
        self.epoch += 1
        self._timers.clear()
        self._continue_due = False
        fleet_rows = before.cluster_rows(), before.owner_rows(), before.pool_rows()
        self.feed(events.Restored(tuple(self.rows.values()), *fleet_rows, before.next_fence))

    @property
    def has_overdue_work(self) -> bool:
        """Does the machine wait for a Continued event or for a timer that is late?"""
        return self._continue_due or any(due < self.now for _, due in self._timers.values())

    def record(self, line: HistoryLine) -> None:
        self.history.append(line)

    def record_fault(self, what: str) -> None:
        self.faults += 1
        self.history.append(FaultInjected(self.now, what))

    def draw_fault(self, rng: Random, probability: float) -> bool:
        """Draw whether a fault happens; ``probability`` is that of a run at the full fault rate."""
        return rng.random() < probability * self.fault_rate

    def _schedule_continue(self) -> None:
        if not self._continue_due:
            self._continue_due = True
            self.after(0.0, self._continue)

    def _continue(self) -> None:
        if self._continue_due:
            self._continue_due = False
            self.feed(events.Continued())

    def _set_timer(self, timer: out.SetTimer) -> None:
        number = next(self._numbers)
        self._timers[timer.key] = number, timer.at
        late = self._rng.uniform(0.0, 1.5) if self.draw_fault(self._rng, 0.02) else 0.0
        self.after(max(0.0, timer.at - self.now) + late, self._fire_timer, timer.key, number)

    def _fire_timer(self, key: str, number: int) -> None:
        if self._timers.get(key, (0, 0.0))[0] != number:
            return
        del self._timers[key]
        self.feed(events.TimerFired(key))
        if self.draw_fault(self._rng, 0.01):
            self.record_fault(f"the timer {key} fired twice")
            self.feed(events.TimerFired(key))
