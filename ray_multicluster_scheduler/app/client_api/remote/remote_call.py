"""Calls of actors' methods that a service passes on: one call, and the queue of one actor."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from ray_multicluster_scheduler.app.client_api.arguments.objects import ObjectHandle
from ray_multicluster_scheduler.app.client_api.remote.deferred_arguments import bytes_of, names_of
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.object_argument import ACTOR
from ray_multicluster_scheduler.control_plane.runtime import wire
from ray_multicluster_scheduler.control_plane.runtime.arguments import ArgumentFailure, Arguments, ArgumentWatch, Values
from ray_multicluster_scheduler.control_plane.runtime.call_queue import CallPromise, never_sent
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.remote.remote_calls import RemoteCalls


class Packed(NamedTuple):
    """What the service has to be given to pass a call on, and how it names that."""

    blobs: dict[str, bytes]
    said: dict[str, Any]

    @property
    def size(self) -> int:
        """What of it travels with the call."""
        return 500 + sum(len(data) for data in self.blobs.values() if len(data) <= wire.INLINE_BYTES)


class RemoteCall(CallPromise):
    """Made by the calling thread; from then on written on the loop.

    ``left``: the service may have heard of it. ``first``: it cannot have passed it on. ``taken``: it said that it has
    it. ``mailbox`` is the one that the program had when it was first sent: while the service has that, it has forgotten
    nothing. ``cancel_asked``: to be told to the service when it has it, with force or without.
    """

    __slots__ = (
        "arguments",
        "cancel_asked",
        "complete",
        "first",
        "has_paths",
        "left",
        "mailbox",
        "packed",
        "taken",
        "watch_arguments",
    )

    actor: RemoteActorCalls

    def __init__(self, call_id: str, actor: RemoteActorCalls, method: str, arguments: Arguments) -> None:
        super().__init__(call_id, actor, method)
        self.arguments: Arguments | None = arguments
        self.packed: Packed | None = None
        self.complete = all(isinstance(one, ObjectHandle) for one in arguments.sources)
        self.has_paths = self.taken = self.left = False
        self.first = True
        self.mailbox: str | None = None
        self.cancel_asked: bool | None = None
        self.watch_arguments: ArgumentWatch | None = None

    @property
    def state(self) -> TaskState:
        if self.outcome is not None:
            return self.outcome.completion.state
        return TaskState.QUEUED if self.complete else TaskState.PENDING

    def pack(self) -> Packed:
        """Raises ResultLostError."""
        packed, arguments = self.packed, self.arguments
        if packed is None:
            if arguments is None:  # the service had them
                return Packed({}, {})
            name = digest_of(arguments.data)
            objects = [*names_of(arguments.sources), *(f"{ACTOR}{actor._item.id}" for actor in arguments.actors)]
            said = {"arguments": name, "objects": objects, "paths": self.has_paths}
            packed = self.packed = Packed({name: arguments.data, **bytes_of(arguments.sources)}, said)
        return packed

    def unpack(self) -> None:
        """What it carries is not needed here any more."""
        self.arguments = self.packed = None

    def document(self) -> dict[str, Any]:
        """What tells it from others; what it carries is in its pack."""
        said: dict[str, Any] = {"id": self.id, "actor": self.actor.item.id, "method": self.method}
        return said if self.first else {**said, "first": False, "mailbox": self.mailbox}

    def never_sent(self, ended: Outcome) -> Outcome:
        """Its actor is over."""
        where, step = ended.completion.cluster, "make a new actor and call that"
        done = Complete(self.id, TaskState.FAILED, 0, where, "ActorDiedError", never_sent(self, ended), step)
        return Outcome(done, ended.result)

    def failed(self, error: SchedulerError) -> Outcome:
        """The service refused it."""
        return self.refused(type(error).__name__, error.message, error.next_step or "", cluster=error.cluster)

    def refused(
        self,
        error: str | None,
        message: str,
        next_step: str = "",
        *,
        cluster: str | None = None,
        origin: Outcome | None = None,
    ) -> Outcome:
        done = Complete(self.id, TaskState.FAILED, 0, cluster, error, message, next_step)
        return Outcome(done, None if origin is None else origin.result, origin)

    def cancelled(self, why: str) -> Outcome:
        message = f"{self.name} ({self.id}) was cancelled: {why}"
        return Outcome(Complete(self.id, TaskState.CANCELLED, 0, None, "TaskCancelledError", message), None)


class RemoteActorCalls:
    """The queue of one actor: calls leave in the order they were made, and wait while one before them waits for an
    argument, and while the actor does not run. The service would not write them down, so they wait here: what has not
    left is not lost with it."""

    def __init__(self, item: Item, calls: RemoteCalls) -> None:
        self.item = item
        self.waiting: deque[RemoteCall] = deque()
        self.unanswered = 0
        self.killed = False
        self._calls = calls
        item.watch_steps(self._moved)

    @property
    def serves(self) -> bool:
        """As far as is known here, the service passes calls on."""
        return self.item.outcome is None and self.item.state is TaskState.RUNNING

    def call(self, method: str, arguments: Arguments, *, has_paths: bool) -> RemoteCall:
        """As :meth:`CallQueue.call`."""
        calls = self._calls
        calls.check_own(arguments, self.item.id)
        call = RemoteCall(calls.new_id(), self, method, arguments)
        call.has_paths = has_paths
        if not call.complete:
            call.watch_arguments = ArgumentWatch(
                Arguments(b"", sources=arguments.sources),
                lambda values: self._filled_in(call, values),
                lambda failure: self._failed(call, failure),
            )
        calls.put(call)
        for actor in arguments.actors:
            if not actor._item.accepted:
                actor._item.watch_steps(self._moved)
        if call.watch_arguments is not None:
            call.watch_arguments.begin()
        return call

    def no_more(self) -> None:
        self.killed = True

    def ready(self) -> list[RemoteCall]:
        """On the loop: those that can leave now. The service must know of the actors that a call names; when its own is
        over, it never leaves."""
        leave: list[RemoteCall] = []
        over = self.item.outcome
        while self.waiting:
            call = self.waiting[0]
            if call.outcome is None and over is None and not self._may_leave(call):
                break
            self.waiting.popleft()
            if call.outcome is None and over is not None:
                self._calls.end(call, call.never_sent(over))
            elif call.outcome is None:
                leave.append(call)
        return leave

    def _may_leave(self, call: RemoteCall) -> bool:
        actors = () if call.arguments is None else call.arguments.actors
        return call.complete and self.serves and all(actor._item.accepted for actor in actors)

    def _moved(self, item: Item) -> None:
        if item is not self.item and item.accepted:
            item.unwatch_steps(self._moved)
        if self.waiting:
            self._calls.wake(self)

    def _filled_in(self, call: RemoteCall, _: Values) -> None:
        call.complete = True
        self._calls.wake(self)

    def _failed(self, call: RemoteCall, failure: ArgumentFailure) -> None:
        self._calls.end(call, call.refused(failure.error, failure.sentence, origin=failure.origin))
        self._calls.wake(self)
