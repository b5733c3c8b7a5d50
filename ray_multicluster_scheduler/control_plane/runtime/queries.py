"""Known: what an embedded control plane can tell of its items and its fleet, from any thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from ray_multicluster_scheduler.common.model import SchedulingDecision, TaskDescription
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.control_plane.runtime import explanation, fleet_control, job_logs, open_calls
from ray_multicluster_scheduler.control_plane.runtime.actor_calls import ActorCalls
from ray_multicluster_scheduler.control_plane.runtime.call_item import CallItem
from ray_multicluster_scheduler.control_plane.runtime.call_queue import CallPromise
from ray_multicluster_scheduler.control_plane.runtime.event_iterator import EventIterator
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome, Promise
from ray_multicluster_scheduler.control_plane.runtime.kept_value import Then, not_in_time
from ray_multicluster_scheduler.control_plane.runtime.kept_values import KeptValues
from ray_multicluster_scheduler.control_plane.runtime.loop_thread import LoopThread
from ray_multicluster_scheduler.control_plane.runtime.submission_checks import check_priority
from ray_multicluster_scheduler.scheduler.connection.links.remote_values import value_lost
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event_filter import EventFilter

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime

LOOK_AGAIN_S = 0.5


class Known(LoopThread, ControlPlane):
    """The questions of a ControlPlane, for the Runtime that is one; :class:`ControlPlane` says what each means."""

    @property
    def _here(self) -> Runtime:
        return cast("Runtime", self)

    def check_known(self, task_id: str) -> None:
        if self.settled(task_id) is None:
            self.ask(lambda: explanation.find_record(self._here, task_id))

    def whole_id(self, task_id: str) -> str:
        return explanation.whole_id(self._here, task_id)

    def is_call(self, item_id: str) -> bool:
        return self._here.method_calls.was_issued(item_id)

    def explain(self, task_id: str) -> dict[str, Any]:
        if self.is_call(task_id):
            return open_calls.explain_by_id(self._here, task_id)
        return explanation.explain_item(self._here, task_id)

    def calls_of(self, actor: Item) -> ActorCalls:
        return ActorCalls(actor, self._here.method_calls)

    def cancel_call(self, call_id: str, *, force: bool) -> None:
        open_calls.cancel_by_id(self._here, call_id, force=force)

    def explain_call(self, call: CallPromise) -> dict[str, Any]:
        assert isinstance(call, CallItem)
        return open_calls.explain_call(self._here, call)

    @functools.cached_property
    def kept_values(self) -> KeptValues:
        return KeptValues(self._here)

    def kept_value(self, outcome: Outcome, timeout: float | None = None) -> bytes:
        if self._here.closed:
            done, why = outcome.completion, "the scheduler was shut down, and its agents with it"
            raise value_lost(done.task_id, done.cluster, why)

        async def fetched() -> bytes:
            async with asyncio.timeout(timeout):
                return await self.kept_values.fetch(outcome)

        try:
            return self.run(fetched())
        except TimeoutError:
            raise not_in_time(outcome, timeout or 0.0) from None

    def bring_kept(self, item: Promise, then: Then) -> None:
        """As :data:`Bring`; ``then`` is called on the loop."""
        self.leave(self.kept_values.bring(item, then))

    def plan(self, task: TaskDescription) -> SchedulingDecision:
        check_priority(self._here, task)
        self.run(self._here.health.check_all())
        return self.ask(lambda: self._here.machine.plan(task, self.clock.now()))

    def job_info(self, job_id: str) -> dict[str, Any]:
        return explanation.job_info(self._here, job_id)

    def job_rows(self) -> list[dict[str, Any]]:
        return explanation.job_rows(self._here)

    def actor_rows(self) -> list[dict[str, Any]]:
        return explanation.actor_rows(self._here)

    def job_log(self, job_id: str) -> str:
        return job_logs.whole(self._here, job_id)

    def follow_job_log(self, job_id: str) -> Iterator[str]:
        return job_logs.follow(self._here, job_id)

    def events(self, wanted: EventFilter, since: int | None) -> EventIterator:
        return EventIterator(self, self.ask(lambda: self._here.news.told(wanted, since)))

    @property
    def homes(self) -> Sequence[str]:
        return self._here.preparation.homes

    def check_cluster(self, name: str) -> None:
        self._here.machine.registry.get(name)

    def limits_of(self, owner: str, *, anew: bool = False) -> OwnerLimits:
        if anew and not self.on_its_loop:
            self.run(self._until_heard())
        return self._here.machine.limits_of(owner)

    async def _until_heard(self) -> None:
        """Until the brain has handled what it was told so far, or is told nothing any more."""
        heard = asyncio.Event()
        self._here.manager.when_durable(heard.set)
        while not heard.is_set() and self._here.refusal is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await heard.wait()

    def cluster_rows(self, refresh: Sequence[str] | None = ()) -> list[dict[str, Any]]:
        if refresh is None:
            self.run(self._here.health.check_all())
        for name in refresh or ():
            self.run(self._here.health.check(name))
        return explanation.cluster_rows(self._here)

    def node_rows(self, clusters: Sequence[str]) -> list[dict[str, Any]]:
        return self.ask(lambda: explanation.node_rows(self._here, clusters))

    def is_drained(self, cluster: str) -> bool | None:
        return self.ask(lambda: fleet_control.is_drained(self._here, cluster))

    def declare_dead(self, cluster: str, reason: str, *, force: bool) -> list[str]:
        return self.run(fleet_control.declare_dead(self._here, cluster, reason, force=force))
