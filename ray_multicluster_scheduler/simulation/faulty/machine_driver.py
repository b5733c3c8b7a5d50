"""Desk: feeds the machine in virtual time, keeps its timers, and writes the history."""

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


def made_durable(one: out.Instruction) -> str | None:
    """The id of the item whose row is to be written; None for all other instructions."""
    if type(one) is out.Persist:
        return one.transition.task_id
    return one.task_id if type(one) is out.Remember else None


class Desk:
    """One heap of (time, number, deed). ``carry_out`` is given every instruction that is not the desk's own affair."""

    def __init__(self, machine: SchedulerMachine, now: float, chance: Random, rate: float) -> None:
        self.machine, self.now = machine, now
        self.history: History = []
        self.steps = self.faults = 0
        self.rows: dict[str, ItemRow] = {}
        """What is durable of each item."""
        self.epoch = 0
        """Which life of the control plane this is: what was on its way to another one is lost."""
        self.dies_next = False
        """When what the next event brings is durable, and nothing of it was done."""
        self.carry_out: Callable[[out.Instruction], None] = lambda _: None
        self.on_death: Callable[[], None] = lambda: None
        self._chance, self.rate = chance, rate
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count(1)
        self._timers: dict[str, tuple[int, float]] = {}
        self._goes_on = False

    # ---- time

    def after(self, delay: float, deed: Callable[..., None], *given: Any) -> None:
        """Let this happen so much later."""
        heapq.heappush(self._agenda, (self.now + delay, next(self._numbers), deed, given))

    def run_until(self, end: float) -> None:
        """All that is due by then happens, in its order. Ends sooner when nothing will happen any more."""
        agenda = self._agenda
        while agenda and agenda[0][0] <= end:
            at, _, deed, given = heapq.heappop(agenda)
            self.now = max(self.now, at)
            deed(*given)
        if agenda:
            self.now = max(self.now, end)

    # ---- the machine

    def feed(self, event: events.Event) -> None:
        """Tell the machine, and see to what it answers."""
        self.history.append(EventHandled(self.now, event))
        self.steps += 1
        answer = self.machine.handle(event, self.now)
        changed = {task_id: None for one in answer if (task_id := made_durable(one)) is not None}
        self.rows.update({task_id: self.machine.row(task_id) for task_id in changed})
        if self.dies_next:
            answer = [one for one in answer if made_durable(one) is not None]
        self.history.extend([InstructionIssued(self.now, one) for one in answer])
        if self.dies_next:
            self.dies_next = False
            self.on_death()
            return
        for one in answer:
            match one:
                case out.SetTimer():
                    self._set_timer(one)
                case out.ClearTimer():
                    self._timers.pop(one.key, None)
                case out.Continue():
                    self._ask_for_more()
                case out.Persist() | out.Publish() | out.Remember() | out.RememberFleet():
                    pass
                case _:
                    self.carry_out(one)

    def restart(self, machine: SchedulerMachine) -> None:
        """Another machine takes over from the rows; timers and promises of the old one are gone with it."""
        before, self.machine = self.machine, machine
        self.epoch += 1
        self._timers.clear()
        self._goes_on = False
        people = before.cluster_rows(), before.owner_rows()
        self.feed(events.Restored(tuple(self.rows.values()), *people, before.next_fence))

    @property
    def owes(self) -> bool:
        """Does the machine wait for something that only we are late with: more time, or a timer?"""
        return self._goes_on or any(due < self.now for _, due in self._timers.values())

    def note(self, line: HistoryLine) -> None:
        self.history.append(line)

    def fault(self, what: str) -> None:
        self.faults += 1
        self.history.append(FaultInjected(self.now, what))

    def suffers(self, chance: Random, share: float) -> bool:
        """Does this message suffer? ``share`` of them do, in a run at full rate."""
        return chance.random() < share * self.rate

    def _ask_for_more(self) -> None:
        if not self._goes_on:
            self._goes_on = True
            self.after(0.0, self._continue)

    def _continue(self) -> None:
        if self._goes_on:
            self._goes_on = False
            self.feed(events.Continued())

    def _set_timer(self, timer: out.SetTimer) -> None:
        number = next(self._numbers)
        self._timers[timer.key] = number, timer.at
        late = self._chance.uniform(0.0, 1.5) if self.suffers(self._chance, 0.02) else 0.0
        self.after(max(0.0, timer.at - self.now) + late, self._fire, timer.key, number)

    def _fire(self, key: str, number: int) -> None:
        if self._timers.get(key, (0, 0.0))[0] != number:
            return
        del self._timers[key]
        self.feed(events.TimerFired(key))
        if self.suffers(self._chance, 0.01):
            self.fault(f"the timer {key} fired twice")
            self.feed(events.TimerFired(key))
