"""Persistence: which state of a control plane outlives its process, and where it is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ray_multicluster_scheduler.control_plane.runtime.event_publisher import EventPublisher
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecordStore, NoAgentRecords
from ray_multicluster_scheduler.scheduler.lifecycle.events import Event
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.transition_log import TransitionLog
from ray_multicluster_scheduler.scheduler.scheduler_core.memory_event_log import MemoryEventLog
from ray_multicluster_scheduler.scheduler.scheduler_core.output_store import OutputStore
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import PayloadCache
from ray_multicluster_scheduler.scheduler.scheduler_core.result_collector import ResultCollector

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime


class Persistence(Protocol):
    """Factory for the parts of a control plane that store state; each method is called once."""

    payload_cache: PayloadCache
    output: OutputStore
    memory: AgentRecordStore
    life: int
    """The number of processes that this control plane has had so far."""
    lasting: bool
    """Can items that ended be read here by any client?"""

    def blob(self, digest: str) -> bytes | None:
        """The bytes of a package that a program uploaded. Blocks: not on the loop."""

    def log(
        self,
        machine: SchedulerMachine,
        soon: Callable[[Callable[[], object]], object],
        fail: Callable[[BaseException], object],
    ) -> TransitionLog:
        """``soon`` schedules a call on the loop; ``fail`` is called when nothing can be stored any more."""

    def event_publisher(self, runtime: Runtime) -> EventPublisher:
        """On the loop, after :meth:`log`."""

    def collector(
        self, post: Callable[[Event], None], when_durable: Callable[[Callable[[], object]], object]
    ) -> ResultCollector:
        """``when_durable`` runs a callback once all events posted before are handled and their results stored."""


class InMemoryPersistence:
    """State of an embedded control plane: in memory, gone with the program."""

    def __init__(self) -> None:
        self.payload_cache, self.output = PayloadCache(), OutputStore()
        self.memory: AgentRecordStore = NoAgentRecords()
        self.life, self.lasting = 1, False

    def blob(self, digest: str) -> bytes | None:
        return None

    def log(
        self,
        machine: SchedulerMachine,
        soon: Callable[[Callable[[], object]], object],
        fail: Callable[[BaseException], object],
    ) -> TransitionLog:
        self._log = MemoryEventLog(machine)
        return self._log

    def event_publisher(self, runtime: Runtime) -> EventPublisher:
        publisher = EventPublisher(runtime, self._log, 0, self._log.events_after)
        self._log.has_subscribers = lambda: len(publisher.hub) > 0
        return publisher

    def collector(
        self, post: Callable[[Event], None], when_durable: Callable[[Callable[[], object]], object]
    ) -> ResultCollector:
        return ResultCollector(post, self.output)
