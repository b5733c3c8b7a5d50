"""The actors of this agent: made once each, their methods called in order, their deaths noticed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ray.exceptions import ActorUnavailableError, RayActorError

from ray_multicluster_scheduler.scheduler.connection.gateway.actors.actor_life import (
    Actor,
    ActorMaker,
    NameTaken,
    NoSuchActor,
    end,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.actors.actor_methods import ActorMethods, Tell
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import CallRecord
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.calls import Calls
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.failures import (
    actor_died,
    cause_of,
    describe,
    left_by_itself,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.ray_executor import Hands
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.reports import Key
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.envelope import unpack

_NAME_PATIENCE_S, _NAME_PAUSE_S = 10.0, 0.2
_LOOK_AGAIN_S = 0.3
_LAST_ANSWERS_S = 5.0

Later = Callable[[float, Callable[[], object]], object]
"""Does something on the loop after so many seconds."""
Ready = Callable[[CallRecord, float, str], None]
"""Tells that an actor is ready, since when, and on which node."""


class Actors:
    """Everything here happens on the event loop unless said otherwise."""

    def __init__(
        self, cluster: str, own_modules: list[str], hands: Hands, calls: Calls, later: Later, ready: Ready, tell: Tell
    ) -> None:
        self._hands, self._calls, self._later, self._ready = hands, calls, later, ready
        self._maker = ActorMaker(cluster, own_modules, calls)
        self._methods = ActorMethods(hands, calls, tell, self.look_after, self._answered)
        self._actors: dict[Key, Actor] = {}

    def __len__(self) -> int:
        return len(self._actors)

    # Making and ending ------------------------------------------------------------------------------------

    def make(self, record: CallRecord, spec: dict[str, Any]) -> None:
        """Take the call that is an actor's life."""
        self._calls.records[record.key] = record
        actor = self._actors[record.key] = Actor(record, spec)
        self._hands.beside(partial(self._create, actor, time.monotonic() + _NAME_PATIENCE_S))

    def _create(self, actor: Actor, patience: float) -> None:
        """On a thread of the hands."""
        if actor.record.cancelled:
            self._hands.back(partial(self._died, actor, None))
            return
        try:
            handle = self._maker.make(actor)
            ref = self._maker.attend(actor, handle)
        except Exception as error:  # noqa: BLE001 - whatever Ray refuses is this actor's end
            if isinstance(error, NameTaken) and time.monotonic() < patience:
                # By an earlier attempt, perhaps, whose end Ray is about to see.
                again = partial(self._hands.beside, partial(self._create, actor, patience))
                self._hands.back(partial(self._later, _NAME_PAUSE_S, again))
            else:
                self._hands.back(partial(self._died, actor, error))
            return
        self._hands.back(partial(self._made, actor, handle))
        self._hands.watch(ref, partial(self._looked, actor))

    def _made(self, actor: Actor, handle: Any) -> None:
        actor.handle = handle
        actor.record.arguments, actor.record.function, actor.record.objects = b"", None, []  # Ray has them
        if actor.record.cancelled:
            self._kill(actor)
        self._methods.advance(actor)

    def cancel(self, record: CallRecord) -> None:
        """End an actor."""
        record.cancelled = True
        actor = self._actors.get(record.key)
        if actor is not None and actor.handle is not None and not actor.buried:
            self._kill(actor)

    def leaves(self, key: Key) -> None:
        """It said that it ends by its own wish."""
        if key in self._actors:
            self._actors[key].left = True

    def forget(self, keys: Iterable[Key]) -> None:
        """The control plane knows that these are over."""
        for key in keys:
            self._actors.pop(key, None)

    def _kill(self, actor: Actor) -> None:
        handle = actor.handle

        def kill() -> None:
            end(handle)
            self._hands.back(partial(self.look_after, actor.record.key))

        self._hands.beside(kill)

    # Noticing deaths --------------------------------------------------------------------------------------

    def nodes_seen(self, nodes: set[str]) -> None:
        """The nodes that the cluster has now: who lived elsewhere may be dead."""
        for key, actor in list(self._actors.items()):
            if actor.node and actor.node not in nodes:
                self.look_after(key)

    def line(self, key: Key, is_open: bool) -> None:
        """Its process can be heard from now on; or not any more, so it may be dead."""
        if key in self._actors:
            self._actors[key].on_line = is_open
            if is_open:
                self._methods.tell_cancelled(self._actors[key])
            else:
                self.look_after(key)

    def look_after(self, key: Key) -> None:
        """Something happened to this actor: ask whether it lives. Ray answers for it when it is dead."""
        actor = self._actors.get(key)
        if actor is None or actor.handle is None or actor.looked_at or actor.buried:
            return
        actor.looked_at = True
        handle = actor.handle

        def ask() -> None:
            try:
                ref = self._maker.attend(actor, handle)
            except Exception as error:  # noqa: BLE001 - whatever Ray raises, it is looked at
                self._hands.back(partial(self._looked, actor, None, error))
            else:
                self._hands.watch(ref, partial(self._looked, actor))

        self._hands.beside(ask)

    def _looked(self, actor: Actor, value: bytes | None, error: BaseException | None) -> None:
        actor.looked_at = False
        if actor.buried:
            return
        if error is not None and not isinstance(error, ActorUnavailableError):
            self._died(actor, error)
            return
        if value is not None and not actor.ending:
            self._lives(actor, *unpack(value))
        if value is None or actor.ending or not actor.on_line:
            self._later(_LOOK_AGAIN_S, partial(self._look_again, actor))

    def _look_again(self, actor: Actor) -> None:
        """Until it is dead, or its line is open and tells of its death."""
        if actor.ending or not actor.on_line or not actor.node:
            self.look_after(actor.record.key)

    def _lives(self, actor: Actor, head: dict[str, Any], payload: memoryview) -> None:
        """Its process answered with how the constructor fared."""
        if head["status"] != "succeeded":
            actor.born_with = {name: head[name] for name in head.keys() - {"at", "node"}}, bytes(payload)
            self._kill(actor)
            return
        first = not actor.node
        actor.node = str(head["node"])
        if first:
            self._ready(actor.record, float(head["at"]), actor.node)

    def _died(self, actor: Actor, error: BaseException | None) -> None:
        """Ray keeps the name of a dead actor for as long as somebody could still ask for it: let go of it first."""
        if actor.buried:
            return
        actor.buried, actor.death = True, error
        actor.left = actor.left or left_by_itself(error)
        handle, actor.handle = actor.handle, None

        def bury() -> None:
            if handle is not None:
                end(handle)
            self._hands.back(partial(self._buried, actor))

        self._hands.beside(bury)

    def _buried(self, actor: Actor) -> None:
        for record in actor.turns.clear():
            self._methods.fail(record, actor)
        if actor.open:  # their answers first; Ray gives them by itself
            self._later(_LAST_ANSWERS_S, partial(self._conclude, actor))
        else:
            self._conclude(actor)

    def _conclude(self, actor: Actor) -> None:
        record = actor.record
        if record.head is not None:
            return
        if actor.born_with is not None:
            self._calls.conclude(record, *actor.born_with)
        elif record.cancelled:
            self._calls.conclude(record, {"status": "cancelled"})
        elif actor.left:
            self._calls.conclude(record, {"status": "succeeded"})
        elif isinstance(actor.death, (NoSuchActor, NameTaken)):
            self._calls.conclude(record, {**describe(actor.death, cancelled=False), "code": actor.death.code})
        elif isinstance(actor.death, RayActorError):
            self._calls.conclude(record, actor_died(record.name, record.key, cause_of(actor.death)))
        else:
            self._calls.conclude(record, describe(actor.death, cancelled=False))

    def _answered(self, actor: Actor) -> None:
        if actor.buried and not actor.open and not actor.turns:
            self._conclude(actor)

    # Methods ----------------------------------------------------------------------------------------------

    def call(self, record: CallRecord) -> None:
        """Take the call of a method."""
        self._methods.call(self._of(record), record)

    def wait_no_longer(self, record: CallRecord) -> None:
        """Who sent this call of a method is gone: those before it that have not come never will."""
        actor = self._of(record)
        if actor is not None and record.method is not None:
            actor.turns.skip_to(record.method)
            self._methods.advance(actor)

    def cancel_method(self, record: CallRecord) -> None:
        """End a method, if it can be ended."""
        self._methods.cancel(self._of(record), record)

    def _of(self, record: CallRecord) -> Actor | None:
        return None if record.method is None else self._actors.get(record.method.actor)
