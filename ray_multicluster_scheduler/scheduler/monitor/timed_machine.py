"""TimedMachine: the brain, with a note of how long each of its turns took."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from ray_multicluster_scheduler.scheduler.lifecycle.events import Event
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Instruction
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.monitor.prometheus_client import Histogram


class TimedMachine(SchedulerMachine):
    """Decides as the other one does."""

    def __init__(self, *given: Any, took: Histogram, **named: Any) -> None:
        self._took = took
        super().__init__(*given, **named)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        began = perf_counter()
        instructions = super().handle(event, now)
        self._took.add(perf_counter() - began)
        return instructions
