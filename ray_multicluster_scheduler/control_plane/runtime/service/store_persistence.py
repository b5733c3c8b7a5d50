"""StorePersistence: state of a service, kept in its store so that it outlives the process."""

from __future__ import annotations

from collections.abc import Callable

from ray_multicluster_scheduler.control_plane.runtime.event_publisher import EventPublisher
from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime
from ray_multicluster_scheduler.control_plane.store import Store
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecordStore
from ray_multicluster_scheduler.scheduler.lifecycle.events import Event
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.scheduler_core.durable_log import DurableLog
from ray_multicluster_scheduler.scheduler.scheduler_core.output_store import OutputStore, StoredOutput
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import PayloadCache, StoredPayloads
from ray_multicluster_scheduler.scheduler.scheduler_core.result_collector import DurableResultCollector
from ray_multicluster_scheduler.scheduler.scheduler_core.stored_agent_records import StoredAgentRecords


class StorePersistence:
    """See :class:`Persistence`."""

    durable_log: DurableLog

    def __init__(self, store: Store) -> None:
        self._store = store
        self.objects = StoredPayloads(store)
        self.payload_cache: PayloadCache = self.objects
        self.printed = StoredOutput(store)
        self.output: OutputStore = self.printed
        self.agents = StoredAgentRecords(store)
        self.memory: AgentRecordStore = self.agents
        self.life, self.lasting = store.epoch, True

    def blob(self, digest: str) -> bytes | None:
        return self._store.blob(digest)

    def log(
        self,
        machine: SchedulerMachine,
        soon: Callable[[Callable[[], object]], object],
        fail: Callable[[BaseException], object],
    ) -> DurableLog:
        self.durable_log = DurableLog(self._store, machine, soon, fail)
        return self.durable_log

    def event_publisher(self, runtime: Runtime) -> EventPublisher:
        return EventPublisher(
            runtime, self.durable_log, self._store.last_event_number, self._store.events_after, slow=True
        )

    def collector(
        self, post: Callable[[Event], None], when_durable: Callable[[Callable[[], object]], object]
    ) -> DurableResultCollector:
        self._collector = DurableResultCollector(post, self.printed, self._store, self.durable_log, when_durable)
        return self._collector

    def write_output(self) -> None:
        """On the loop: start writing the output received so far."""
        self._collector.write_output()
        self.durable_log.flush()

    def stop_acknowledging(self) -> None:
        """On the loop: see :meth:`DurableResultCollector.stop_acknowledging`."""
        self._collector.stop_acknowledging()
