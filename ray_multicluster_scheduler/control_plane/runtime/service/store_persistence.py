"""StorePersistence: the state of a service, kept in its store so that it outlives the process.

:class:`StoredKeptValues` moves a value that was kept in its cluster into the store when it is needed elsewhere.
``service_runtime.py`` uses both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.exception import StoreFullError
from ray_multicluster_scheduler.common.logging import about_item, get_logger
from ray_multicluster_scheduler.control_plane.runtime.event_publisher import EventPublisher
from ray_multicluster_scheduler.control_plane.runtime.item import Outcome
from ray_multicluster_scheduler.control_plane.runtime.kept_values import KeptValueFetcher
from ray_multicluster_scheduler.control_plane.runtime.outcome import is_in_cluster
from ray_multicluster_scheduler.control_plane.runtime.runtime import Persistence, Runtime
from ray_multicluster_scheduler.control_plane.store import Store
from ray_multicluster_scheduler.scheduler.lifecycle.events import Event
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.scheduler_core.durable_log import DurableLog
from ray_multicluster_scheduler.scheduler.scheduler_core.output_store import StoredOutput
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import StoredPayloads
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import encode_outcome
from ray_multicluster_scheduler.scheduler.scheduler_core.result_collector import DurableResultCollector
from ray_multicluster_scheduler.scheduler.scheduler_core.stored_agent_records import StoredAgentRecords

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime

_log = get_logger(__name__)
_RETRY_S = 1.0


class StorePersistence(Persistence):
    durable_log: DurableLog
    lasting = True

    def __init__(self, store: Store) -> None:
        self._store, self.life = store, store.epoch
        self.objects, self.printed, self.agents = StoredPayloads(store), StoredOutput(store), StoredAgentRecords(store)
        super().__init__(self.objects, self.printed, self.agents)

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


class StoredKeptValues(KeptValueFetcher):
    """Fetches kept values and stores them; retention deletes unused ones."""

    _lasting = True

    def __init__(self, runtime: ServiceRuntime, log: DurableLog) -> None:
        super().__init__(runtime)
        self._service, self._log = runtime, log

    async def _already_here(self, outcome: Outcome) -> Outcome | None:
        stored = await asyncio.to_thread(self._service.store.item, outcome.completion.task_id)
        if stored is None or not stored.status.state.terminal:
            return None
        now = (await asyncio.to_thread(self._service.history.item, stored)).outcome
        return None if is_in_cluster(now) else now

    async def _keep(self, outcome: Outcome) -> None:
        """Write the value, retrying while the disk is full: its cluster keeps it until then."""
        assert outcome.result is not None
        logged = False
        while True:
            try:
                store, payload = self._service.store, outcome.result.payload or b""
                digest = await asyncio.to_thread(store.put_blob, payload, beyond_quota=True)
                break
            except StoreFullError as error:
                if not logged:
                    task_id, attempt = outcome.result.task_id, outcome.result.attempt
                    extra = about_item(task_id, attempt, None, error.code)
                    _log.warning("the value of %s cannot be written yet: %s", task_id, error, extra=extra)
                logged = True
                await asyncio.sleep(_RETRY_S)
        self._log.add_outcome(encode_outcome(replace(outcome.result, digest=digest)))
        written = asyncio.Event()
        self._service.manager.when_durable(written.set)
        await written.wait()
