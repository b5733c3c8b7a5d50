"""MemoryEventLog: the transition log of an embedded control plane, and its most recent events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ray_multicluster_scheduler.common.model import SchedulingDecision
from ray_multicluster_scheduler.control_plane.store import EventRecord, LogEntry, OperationRecord
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Persist, Transition
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.transition_log import MemoryTransitionLog
from ray_multicluster_scheduler.scheduler.scheduler_core.durable_log import Publish, publish_nothing, publish_safely
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import DecisionEncoder, encode_step

MAX_EVENTS = 10_000


class _Decision(NamedTuple):
    task_id: str
    attempt: int
    decision: SchedulingDecision


class MemoryEventLog(MemoryTransitionLog):
    """Publishes like the DurableLog; only the last :data:`MAX_EVENTS` can be read again. Used on one loop."""

    def __init__(self, machine: SchedulerMachine) -> None:
        super().__init__()
        self._machine = machine
        self._recent: deque[Transition | _Decision | OperationRecord] = deque(maxlen=MAX_EVENTS)
        self._last = 0
        self._decisions_encoder = DecisionEncoder()
        self.publish: Publish = publish_nothing
        """Called with new entries, in order."""
        self.has_subscribers: Callable[[], bool] = lambda: False
        """Without subscribers entries are not encoded."""

    def append(self, entries: Sequence[Persist]) -> None:
        super().append(entries)
        fresh: list[Transition | _Decision | OperationRecord] = []
        for transition, decision in entries:
            if decision is not None:
                fresh.append(_Decision(transition.task_id, transition.attempt, decision))
            fresh.append(transition)
        self._add(fresh)

    def record_operation(self, operation: OperationRecord) -> None:
        self._add([operation])

    def events_after(self, number: int, limit: int) -> list[EventRecord]:
        """The events after this number that are still in memory."""
        first = self._last - len(self._recent) + 1
        skipped = max(0, number + 1 - first)
        selected = list(self._recent)[skipped : skipped + limit]
        return [self._event(at, one) for at, one in enumerate(selected, first + skipped)]

    def _add(self, fresh: list[Transition | _Decision | OperationRecord]) -> None:
        self._recent.extend(fresh)
        self._last += len(fresh)
        publish_safely(self.publish, self._last, [self._entry(one) for one in fresh] if self.has_subscribers() else [])

    def _entry(self, one: Transition | _Decision | OperationRecord) -> LogEntry:
        match one:
            case Transition():
                return encode_step(one)
            case _Decision():
                return self._decisions_encoder.encode(*one)
            case OperationRecord():
                return one

    def _event(self, number: int, one: Transition | _Decision | OperationRecord) -> EventRecord:
        if isinstance(one, OperationRecord):
            return EventRecord(number, one)
        try:
            task = self._machine.record(one.task_id).task
        except KeyError:  # the item is forgotten
            return EventRecord(number, self._entry(one))
        return EventRecord(number, self._entry(one), task.kind, task.name, task.owner)
