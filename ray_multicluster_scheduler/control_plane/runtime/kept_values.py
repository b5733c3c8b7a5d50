"""KeptValueFetcher: the values that were left in clusters, as their control plane gets at them."""

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
    """On the loop. One that is needed here is brought once, for all that want it, and its cluster has it until then."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.cluster_values = ClusterValues(runtime.links)
        self._bringing: dict[tuple[str, int], asyncio.Future[Outcome]] = {}

    def on_ended(self, item: Item, outcome: Outcome) -> Outcome:
        """An item ends in this way. What it left in its cluster stays as long as somebody can ask for it; if it did not
        succeed after all, nobody can."""
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
        under_way = self._bringing.get((outcome.result.task_id, outcome.result.attempt))
        if under_way is not None:
            return _payload(await asyncio.shield(under_way))
        try:
            return await self.cluster_values.fetch(outcome.completion.cluster, outcome.result)
        except ResultLostError:
            here = await self._here_by_now(outcome)
            if here is None:
                raise
            return _payload(here)

    async def fetch_value(self, item: Promise, then: OnFetched) -> None:
        """Let the item have its value here; ``then`` hears what is wrong, if something is."""
        problem: SchedulerError | None = None
        try:
            if item.outcome is not None and is_in_cluster(item.outcome):
                item.outcome = await self._brought(item.outcome)
        except SchedulerError as error:
            problem = error
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for an answer
            problem = ResultLostError(f"The value of {item.id} cannot be had: {error!r}.", task_id=item.id)
        then(problem)

    async def _brought(self, outcome: Outcome) -> Outcome:
        assert outcome.result is not None
        key = (outcome.result.task_id, outcome.result.attempt)
        under_way = self._bringing.get(key)
        if under_way is None:
            under_way = self._bringing[key] = asyncio.ensure_future(self._bring_once(outcome))
            under_way.add_done_callback(lambda _: self._bringing.pop(key, None))
        return await asyncio.shield(under_way)

    async def _bring_once(self, outcome: Outcome) -> Outcome:
        assert outcome.result is not None
        here = await self._here_by_now(outcome)
        if here is None:
            here = with_payload(outcome, await self.cluster_values.fetch(outcome.completion.cluster, outcome.result))
            await self._keep(here)
            self.cluster_values.release_value(outcome.completion.cluster, outcome.result)
        return here

    # ---- where values are kept for longer than the process, it is one of them afterwards

    _lasting = False

    async def _here_by_now(self, outcome: Outcome) -> Outcome | None:
        """Somebody may have brought it since this outcome was read."""
        item = self._runtime.item(outcome.completion.task_id)
        return None if item is None or is_in_cluster(item.outcome) else item.outcome

    async def _keep(self, outcome: Outcome) -> None:
        """Its cluster may forget it after this."""


def _payload(outcome: Outcome) -> bytes:
    assert outcome.result is not None
    return outcome.result.payload or b""
