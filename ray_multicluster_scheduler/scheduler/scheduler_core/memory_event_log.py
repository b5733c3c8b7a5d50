"""ToldLog: the log of a control plane that lives and dies with its program, and what was told lately."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ray_multicluster_scheduler.common.model import SchedulingDecision
from ray_multicluster_scheduler.control_plane.store import EventRecord, LogEntry, OperationRecord
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Persist, Transition
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.transition_log import MemoryTransitionLog
from ray_multicluster_scheduler.scheduler.scheduler_core.stored.durable_log import Tell, tell_nobody, tell_safely
from ray_multicluster_scheduler.scheduler.scheduler_core.stored.stored_rows import DecisionWriter, step_of

KEPT = 10_000


class _Decision(NamedTuple):
    task_id: str
    attempt: int
    decision: SchedulingDecision


class MemoryEventLog(MemoryTransitionLog):
    """As a durable log tells, so far as memory allows: what is older is forgotten. Used on one loop."""

    def __init__(self, machine: SchedulerMachine) -> None:
        super().__init__()
        self._machine = machine
        self._lately: deque[Transition | _Decision | OperationRecord] = deque(maxlen=KEPT)
        self._last = 0
        self._writer = DecisionWriter()
        self.tell: Tell = tell_nobody
        """Hears what happens, in its order, with the number of the last of it."""
        self.listened: Callable[[], bool] = lambda: False
        """Does anybody want to hear it? Else nothing is put into words."""

    def append(self, entries: Sequence[Persist]) -> None:
        super().append(entries)
        fresh: list[Transition | _Decision | OperationRecord] = []
        for transition, decision in entries:
            if decision is not None:
                fresh.append(_Decision(transition.task_id, transition.attempt, decision))
            fresh.append(transition)
        self._tell(fresh)

    def note(self, note: OperationRecord) -> None:
        self._tell([note])

    def events_after(self, number: int, limit: int) -> list[EventRecord]:
        """On the loop: what is still known of what came after this number."""
        first = self._last - len(self._lately) + 1
        skipped = max(0, number + 1 - first)
        wanted = list(self._lately)[skipped : skipped + limit]
        return [self._happened(at, one) for at, one in enumerate(wanted, first + skipped)]

    def _tell(self, fresh: list[Transition | _Decision | OperationRecord]) -> None:
        self._lately.extend(fresh)
        self._last += len(fresh)
        tell_safely(self.tell, self._last, [self._words(one) for one in fresh] if self.listened() else [])

    def _words(self, one: Transition | _Decision | OperationRecord) -> LogEntry:
        match one:
            case Transition():
                return step_of(one)
            case _Decision():
                return self._writer.decided(*one)
            case OperationRecord():
                return one

    def _happened(self, number: int, one: Transition | _Decision | OperationRecord) -> EventRecord:
        if isinstance(one, OperationRecord):
            return EventRecord(number, one)
        try:
            task = self._machine.record(one.task_id).task
        except KeyError:  # it was forgotten, and only that something happened to it is known
            return EventRecord(number, self._words(one))
        return EventRecord(number, self._words(one), task.kind, task.name, task.owner)
