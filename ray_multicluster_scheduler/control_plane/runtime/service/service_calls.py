"""ServiceCalls: calls of actors' methods, from programs to the links. They are not written down."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ray_multicluster_scheduler.control_plane.runtime.actor_calls import ActorCalls, CallItem
from ray_multicluster_scheduler.control_plane.runtime.arguments import Arguments
from ray_multicluster_scheduler.scheduler.scheduler_core.stored.durable_result_collector import DurableResultCollector

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.item import Item, Promise
    from ray_multicluster_scheduler.control_plane.runtime.service.service_queries import Check
    from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime


class WantedCall(NamedTuple):
    """A call as its program sent it, ``first`` or again. ``fresh``: nobody can have passed it on before. ``user`` is
    whose payloads it may name; None: everybody's."""

    id: str
    actor: str
    method: str
    arguments: str | None
    objects: tuple[str, ...]
    paths: bool
    first: bool
    fresh: bool
    user: str | None


class ServiceCalls:
    """On the loop of the service. A call is passed on at most once. After a restart its program names it again, and its
    actor's cluster is asked what became of it."""

    def __init__(self, runtime: ServiceRuntime) -> None:
        self._runtime = runtime
        self._queues: dict[str, ActorCalls] = {}
        self._ended: weakref.WeakValueDictionary[str, ActorCalls] = weakref.WeakValueDictionary()
        """Of actors that are over, as long as somebody knows of them: each watches its actor."""

    def find(self, call_id: str) -> CallItem | None:
        """The call, while it is not answered."""
        return self._runtime.method_calls.find(call_id)

    async def take(
        self,
        wanted: WantedCall,
        blobs: Mapping[str, bytes],
        known: Callable[[], Promise | None],
        check: Check | None = None,
    ) -> Promise:
        """``known`` tells of one that was taken before, answered or not: it may be sent twice at the same time. Raises
        UnknownItemError for an actor that is not known, MissingBlobs, SchedulerError, and as ``check`` does for the
        actor or a value."""
        queue = await self._queue(wanted.actor, check)
        if not wanted.fresh:
            before = known()
            if before is not None:
                return before
            call = CallItem(wanted.id, queue, wanted.method, b"", complete=True)
            queue.adopt(call)
            return call
        values = self._runtime.values
        data = await values.blob(wanted.arguments or "", blobs, wanted.id, wanted.user)
        arguments = Arguments(b"")
        if wanted.objects:
            arguments = await values.arguments(wanted.objects, blobs, wanted.id, check, wanted.user)
        before = known()
        if before is not None:
            return before
        call = CallItem(wanted.id, queue, wanted.method, data, complete=arguments.plain)
        call.has_paths = wanted.paths
        queue.take(call, arguments)
        return call

    def heard(self, call_id: str) -> None:
        """Its program has the answer, or will never ask for it: its agent may forget it."""
        collector = self._runtime.collector
        assert isinstance(collector, DurableResultCollector)
        collector.heard(call_id)

    def no_more(self, item_id: str) -> None:
        """The end of this actor, or of this gang of actors, was asked for."""
        for queue in self._queues.values():
            if item_id in (queue.item.id, queue.item.whole):
                queue.no_more()

    async def _queue(self, actor_id: str, check: Check | None) -> ActorCalls:
        known = self._queues.get(actor_id)
        if known is not None:
            if check is not None:
                check(known.item.task.owner, actor_id)
            return known
        item = await self._runtime.values.actor(actor_id, check)
        known = self._queues.get(actor_id)
        if known is not None:
            return known
        if item.outcome is not None:
            self._ended[actor_id] = queue = self._ended.get(actor_id) or ActorCalls(item, self._runtime.method_calls)
            return queue
        queue = self._queues[actor_id] = ActorCalls(item, self._runtime.method_calls)
        item.watch(self._over)
        return queue

    def _over(self, item: Item) -> None:
        queue = self._queues.pop(item.id, None)
        if queue is not None:
            self._ended[item.id] = queue
