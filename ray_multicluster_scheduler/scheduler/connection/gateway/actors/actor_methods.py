"""The methods of actors: given to Ray in the order of their numbers, whatever came first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayActorError

from ray_multicluster_scheduler.common.frames import Message
from ray_multicluster_scheduler.scheduler.connection.gateway.actors.actor_channel import CANCEL
from ray_multicluster_scheduler.scheduler.connection.gateway.actors.actor_life import Actor
from ray_multicluster_scheduler.scheduler.connection.gateway.actors.actor_shell import UNBORN
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import CallRecord
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.calls import Calls
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.failures import actor_died, cause_of
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.ray_executor import Hands
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.reports import Key
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.envelope import unpack
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.work_order import MethodOrder

_MANY = 16  # calls of one actor that are not answered
_TOO_LATE = (
    "it came after calls of a later process of the control plane, so it has no place in their order any more; it was "
    "not run"
)
Tell = Callable[[Key, Message], None]
"""Says something to an actor's process."""


class ActorMethods:
    """Everything here happens on the event loop unless said otherwise. ``suspect`` is called when a method died with
    its actor, and ``answered`` after each answer."""

    def __init__(
        self,
        hands: Hands,
        calls: Calls,
        tell: Tell,
        suspect: Callable[[Key], None],
        answered: Callable[[Actor], None],
    ) -> None:
        self._hands, self._calls, self._tell = hands, calls, tell
        self._suspect, self._after_answer = suspect, answered

    def call(self, actor: Actor | None, record: CallRecord) -> None:
        """Take the call of a method. It is given to Ray when all with smaller numbers were."""
        method = record.method
        if method is None:
            raise TypeError(f"{record.key} is no call of a method")
        self._calls.records[record.key] = record
        if actor is not None:
            record.report, record.part_of = actor.record.report, actor.record.part_of
        if record.head is not None:  # it came as one that is not to be called
            self._calls.conclude(record, record.head)
        elif actor is None or actor.buried:
            self.fail(record, actor)
            return
        if actor is None or actor.buried:
            return
        if not actor.turns.add(method, record):
            self._refuse_late(record)
            return
        if record.head is None and record.slow_to_give:
            record.being_stored = True
            self._hands.beside(partial(self._store, actor, record))
        self.advance(actor)

    def cancel(self, actor: Actor | None, record: CallRecord) -> None:
        """End a method that has not begun. Ray itself can only interrupt what runs on an event loop; what waits in an
        actor's process runs even though Ray says that it was cancelled, so the process is told."""
        record.cancelled = True
        if actor is None:
            return
        if record.ref is None and record.key not in actor.open:
            self._calls.conclude(record, {"status": "cancelled"})
            return
        self._tell_cancelled(actor, record)
        if actor.spec["asynchronous"] and record.ref is not None:
            try:
                ray.cancel(record.ref)
            except Exception as error:  # noqa: BLE001 - it ends this wish, not the agent with all its other calls
                print(f"rmcs agent: {record.name} ({record.key[0]}) cannot be cancelled: {error!r}", flush=True)

    def tell_cancelled(self, actor: Actor) -> None:
        """There is a line to its process: say again what may not have got through."""
        for key in actor.open:
            record = self._calls.records.get(key)
            if record is not None and record.cancelled:
                self._tell_cancelled(actor, record)

    def _tell_cancelled(self, actor: Actor, record: CallRecord) -> None:
        self._tell(actor.record.key, Message(CANCEL, {"id": record.key[0], "attempt": record.key[1]}))

    def _store(self, actor: Actor, record: CallRecord) -> None:
        """On a thread of the hands: what is large goes first, and then the call is small."""
        problem: Exception | None = None
        try:
            record.arguments = ray.put(record.arguments)
            for one in record.objects:
                one.argument(ray.put)
        except Exception as error:  # noqa: BLE001 - whatever Ray refuses is this call's answer
            problem = error
        self._hands.back(partial(self._stored, actor, record, problem))

    def _stored(self, actor: Actor, record: CallRecord, problem: Exception | None) -> None:
        record.being_stored = False
        if problem is not None:
            self._calls.complete(record, None, problem)
        self.advance(actor)

    def advance(self, actor: Actor) -> None:
        """Give Ray what is next, as far as it is there."""
        while actor.handle is not None and (record := actor.turns.take()) is not None:
            if record.head is None:
                actor.open.add(record.key)
                self._submit(actor, actor.handle, record)

    def _submit(self, actor: Actor, handle: Any, record: CallRecord) -> None:
        try:
            name = "" if record.method is None else record.method.name
            (_, arguments), beside = record.given(ray.put)
            order = MethodOrder(record.key, name, record.homes, arguments).packed()
            record.ref = handle.run.remote(order, *beside)
            record.arguments, record.objects = b"", []  # Ray has them
        except Exception as error:  # noqa: BLE001 - whatever Ray refuses is this call's answer
            self._hands.back(partial(self._answered, actor, record, None, error))
            return
        told = partial(self._answered, actor, record)
        if len(actor.open) < _MANY:
            self._hands.watch(record.ref, told)
        else:
            self._hands.watch_with_others(record.ref, told)

    def _answered(self, actor: Actor, record: CallRecord, value: bytes | None, error: BaseException | None) -> None:
        actor.open.discard(record.key)
        if isinstance(error, RayActorError):
            self.fail(record, actor, error)
            self._suspect(actor.record.key)
        elif value is not None and unpack(value)[0]["status"] == UNBORN:
            self.fail(record, actor)
        else:
            self._calls.complete(record, value, error)
        self._after_answer(actor)

    def _refuse_late(self, record: CallRecord) -> None:
        if record.head is None:
            head = {"status": "failed", "failure": "permanent", "code": "CAME_TOO_LATE", "error_type": "RuntimeError"}
            self._calls.conclude(record, {**head, "message": _TOO_LATE})

    def fail(self, record: CallRecord, actor: Actor | None, error: BaseException | None = None) -> None:
        """It was not called, or died with its actor."""
        if record.head is not None or record.method is None:
            return
        if record.cancelled:
            self._calls.conclude(record, {"status": "cancelled"})
            return
        key = record.method.actor
        if actor is None:
            self._calls.conclude(record, actor_died("", key, "its agent does not have it any more"))
            return
        why = actor.why_dead() if error is None or actor.ending else cause_of(error)
        self._calls.conclude(record, actor_died(actor.record.name, key, why, error))
