"""KeptValueFetcher: fetches and releases the result values that are kept in clusters."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.exception import ResultLostError, SchedulerError
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome, Promise
from ray_multicluster_scheduler.control_plane.runtime.outcome import OnFetched, is_in_cluster, with_payload
from ray_multicluster_scheduler.scheduler.scheduler_core.cluster_values import ClusterValues

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime


class KeptValueFetcher:
    """Used on the loop. Concurrent fetches of a value share one transfer; its cluster keeps it until that is done."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.cluster_values = ClusterValues(runtime.links)
        self._fetching: dict[tuple[str, int], asyncio.Future[Outcome]] = {}

    def on_ended(self, item: Item, outcome: Outcome) -> Outcome:
        """Release the kept value of a finished item once no handle refers to the item; immediately if it failed."""
        result = outcome.result
        if result is None or result.kept is None:
            return outcome
        if not outcome.succeeded:
            self.cluster_values.release_value(outcome.completion.cluster, result)
        elif not self._lasting:
            end = weakref.finalize(
                item, self._runtime.call_soon, self.cluster_values.release_value, outcome.completion.cluster, result
            )
            end.atexit = False
        return outcome

    async def fetch(self, outcome: Outcome) -> bytes:
        """The pickled value. Raises ResultLostError."""
        assert outcome.result is not None
        under_way = self._fetching.get((outcome.result.task_id, outcome.result.attempt))
        if under_way is not None:
            return _payload(await asyncio.shield(under_way))
        try:
            return await self.cluster_values.fetch(outcome.completion.cluster, outcome.result)
        except ResultLostError:
            here = await self._already_here(outcome)
            if here is None:
                raise
            return _payload(here)

    async def fetch_value(self, item: Promise, then: OnFetched) -> None:
        """Fetch the value into the outcome of the item, then call ``then`` with the error, or None."""
        problem: SchedulerError | None = None
        try:
            if item.outcome is not None and is_in_cluster(item.outcome):
                item.outcome = await self._shared_fetch(item.outcome)
        except SchedulerError as error:
            problem = error
        except Exception as error:  # noqa: BLE001 - the callback must be called
            problem = ResultLostError(f"The value of {item.id} cannot be fetched: {error!r}.", task_id=item.id)
        then(problem)

    async def _shared_fetch(self, outcome: Outcome) -> Outcome:
        assert outcome.result is not None
        key = (outcome.result.task_id, outcome.result.attempt)
        under_way = self._fetching.get(key)
        if under_way is None:
            under_way = self._fetching[key] = asyncio.ensure_future(self._fetch_once(outcome))
            under_way.add_done_callback(lambda _: self._fetching.pop(key, None))
        return await asyncio.shield(under_way)

    async def _fetch_once(self, outcome: Outcome) -> Outcome:
        assert outcome.result is not None
        here = await self._already_here(outcome)
        if here is None:
            here = with_payload(outcome, await self.cluster_values.fetch(outcome.completion.cluster, outcome.result))
            await self._keep(here)
            self.cluster_values.release_value(outcome.completion.cluster, outcome.result)
        return here

    # ---- overridden where values outlive the process

    _lasting = False

    async def _already_here(self, outcome: Outcome) -> Outcome | None:
        """The outcome with its value, if another call has fetched it meanwhile."""
        item = self._runtime.item(outcome.completion.task_id)
        return None if item is None or is_in_cluster(item.outcome) else item.outcome

    async def _keep(self, outcome: Outcome) -> None:
        """Store the value; the cluster may drop it afterwards."""


def _payload(outcome: Outcome) -> bytes:
    assert outcome.result is not None
    return outcome.result.payload or b""
