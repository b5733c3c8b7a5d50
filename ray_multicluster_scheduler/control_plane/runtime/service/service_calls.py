"""ServiceCalls: accepts actor method calls from the HTTP route and queues them per actor. Calls are not stored."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ray_multicluster_scheduler.control_plane.runtime.actor_calls import ActorCalls, CallItem
from ray_multicluster_scheduler.control_plane.runtime.arguments import Arguments

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.item import Item, Promise
    from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import OwnershipCheck, ServiceRuntime


class CallRequest(NamedTuple):
    """A call as its client sent it, for the ``first`` time or again. ``fresh``: no earlier process of the
    service can have sent it to an agent. ``user``: the owner of the payloads it may name; None: all payloads."""

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
    """Used on the loop only. A call is sent at most once. After a restart its client repeats it, and the actor's
    cluster is asked for its result."""

    def __init__(self, runtime: ServiceRuntime) -> None:
        self._runtime = runtime
        self._queues: dict[str, ActorCalls] = {}
        self._ended: weakref.WeakValueDictionary[str, ActorCalls] = weakref.WeakValueDictionary()
        """Queues of ended actors, while anything still refers to them."""

    async def accept(
        self,
        request: CallRequest,
        blobs: Mapping[str, bytes],
        known: Callable[[], Promise | None],
        check: OwnershipCheck | None = None,
    ) -> Promise:
        """``known`` looks up a call of this id that was accepted before, since two requests may carry it concurrently.
        Raises UnknownItemError for an unknown actor, MissingBlobs, SchedulerError, and as ``check`` does for the actor
        or a value."""
        queue = await self.queue(request.actor, check)
        if not request.fresh:
            before = known()
            if before is not None:
                return before
            call = CallItem(request.id, queue, request.method, b"", complete=True)
            queue.adopt(call)
            return call
        stored = self._runtime.stored_arguments
        data = await stored.blob(request.arguments or "", blobs, request.id, request.user)
        arguments = Arguments(b"")
        if request.objects:
            arguments = await stored.arguments(request.objects, blobs, request.id, check, request.user)
        before = known()
        if before is not None:
            return before
        call = CallItem(request.id, queue, request.method, data, complete=arguments.plain)
        call.has_paths = request.paths
        queue.take(call, arguments)
        return call

    def no_more(self, item_id: str) -> None:
        """Refuse further calls of an actor, or of a gang of actors, whose cancellation was requested."""
        for queue in self._queues.values():
            if item_id in (queue.item.id, queue.item.scheduled_id):
                queue.no_more()

    async def queue(self, actor_id: str, check: OwnershipCheck | None = None) -> ActorCalls:
        """The queue of an actor. Raises UnknownItemError, and as ``check`` does."""
        known = self._queues.get(actor_id)
        if known is not None:
            if check is not None:
                check(known.item.task.owner, actor_id)
            return known
        item = await self._runtime.stored_arguments.actor(actor_id, check)
        known = self._queues.get(actor_id)
        if known is not None:
            return known
        if item.outcome is not None:
            self._ended[actor_id] = queue = self._ended.get(actor_id) or ActorCalls(item, self._runtime.method_calls)
            return queue
        queue = self._queues[actor_id] = ActorCalls(item, self._runtime.method_calls)
        item.watch(self._forget_ended)
        return queue

    def _forget_ended(self, item: Item) -> None:
        queue = self._queues.pop(item.id, None)
        if queue is not None:
            self._ended[item.id] = queue
