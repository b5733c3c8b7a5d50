"""StoredKeptValues: fetches a value that was kept in its cluster into the store when it is needed elsewhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.exception import StoreFullError
from ray_multicluster_scheduler.common.logging import about_item, get_logger
from ray_multicluster_scheduler.control_plane.runtime.item import Outcome
from ray_multicluster_scheduler.control_plane.runtime.kept_values import KeptValueFetcher
from ray_multicluster_scheduler.control_plane.runtime.outcome import is_in_cluster
from ray_multicluster_scheduler.scheduler.scheduler_core.durable_log import DurableLog
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import encode_outcome

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime

_log = get_logger(__name__)
_AGAIN_S = 1.0


class StoredKeptValues(KeptValueFetcher):
    """Retention drops values that were never needed."""

    _lasting = True

    def __init__(self, runtime: ServiceRuntime, log: DurableLog) -> None:
        super().__init__(runtime)
        self._service, self._log = runtime, log

    async def _here_by_now(self, outcome: Outcome) -> Outcome | None:
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
                await asyncio.to_thread(self._service.store.put_blob, outcome.result.payload or b"", beyond_quota=True)
                break
            except StoreFullError as error:
                if not logged:
                    task_id, attempt = outcome.result.task_id, outcome.result.attempt
                    extra = about_item(task_id, attempt, None, error.code)
                    _log.warning("the value of %s cannot be written yet: %s", task_id, error, extra=extra)
                logged = True
                await asyncio.sleep(_AGAIN_S)
        self._log.add_outcome(encode_outcome(outcome.result))
        written = asyncio.Event()
        self._service.manager.when_durable(written.set)
        await written.wait()
