"""KeptValueFetcher: fetches and releases the result values that are kept in clusters."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.exception import ResultLostError, SchedulerError
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome, Promise
from ray_multicluster_scheduler.control_plane.runtime.outcome import OnFetched, is_in_cluster, with_payload
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult, ClusterLink
from ray_multicluster_scheduler.scheduler.connection.links.remote_values import value_lost

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime


class KeptValueFetcher:
    """Used on the loop. Concurrent fetches of a value share one transfer; its cluster keeps it until that is done."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._fetching: dict[tuple[str, int], asyncio.Future[Outcome]] = {}

    def on_ended(self, item: Item, outcome: Outcome) -> Outcome:
        """Release the kept value of a finished item once no handle refers to the item; immediately if it failed."""
        result = outcome.result
        if result is None or result.kept is None:
            return outcome
        if not outcome.succeeded:
            self._release(outcome.completion.cluster, result)
        elif not self._lasting:
            end = weakref.finalize(item, self._runtime.call_soon, self._release, outcome.completion.cluster, result)
            end.atexit = False
        return outcome

    def release_older_than(self, seconds: float) -> None:
        """Release all values that are kept for longer than this."""
        for link in self._runtime.links.links():
            link.release_values_older_than(seconds)

    async def fetch(self, outcome: Outcome) -> bytes:
        """The pickled value. Raises ResultLostError."""
        assert outcome.result is not None
        fetching = self._fetching.get((outcome.result.task_id, outcome.result.attempt))
        if fetching is not None:
            return _payload(await asyncio.shield(fetching))
        try:
            return await self._fetch_from_cluster(outcome)
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
        fetching = self._fetching.get(key)
        if fetching is None:
            fetching = self._fetching[key] = asyncio.ensure_future(self._fetch_once(outcome))
            fetching.add_done_callback(lambda _: self._fetching.pop(key, None))
        return await asyncio.shield(fetching)

    async def _fetch_once(self, outcome: Outcome) -> Outcome:
        assert outcome.result is not None
        here = await self._already_here(outcome)
        if here is None:
            here = with_payload(outcome, await self._fetch_from_cluster(outcome))
            await self._keep(here)
            self._release(outcome.completion.cluster, outcome.result)
        return here

    async def _fetch_from_cluster(self, outcome: Outcome) -> bytes:
        cluster, result = outcome.completion.cluster, outcome.result
        assert result is not None
        link = self._link(cluster, result)
        if link is None:
            raise value_lost(result.task_id, cluster, "the agent that held it has ended")
        return await link.fetch(result.task_id, result.attempt)

    def _release(self, cluster: str | None, result: CallResult) -> None:
        link = self._link(cluster, result)
        if link is not None:
            link.release_value(result.task_id, result.attempt)

    def _link(self, cluster: str | None, result: CallResult) -> ClusterLink | None:
        link = None if cluster is None else self._runtime.links.existing_link(cluster)
        return link if link is not None and link.agent == result.kept_by else None

    # ---- overridden where values outlive the process

    _lasting = False

    async def _already_here(self, outcome: Outcome) -> Outcome | None:
        """The outcome with its value, if a concurrent call has fetched it."""
        item = self._runtime.item(outcome.completion.task_id)
        return None if item is None or is_in_cluster(item.outcome) else item.outcome

    async def _keep(self, outcome: Outcome) -> None:
        """Store the value; the cluster may drop it afterwards."""


def _payload(outcome: Outcome) -> bytes:
    assert outcome.result is not None
    return outcome.result.payload or b""
