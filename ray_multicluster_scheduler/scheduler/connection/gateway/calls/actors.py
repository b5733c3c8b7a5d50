"""ActorRunner: creates the actors of an ``Agent`` once each, calls their methods in order, and detects their deaths."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError

from ray_multicluster_scheduler.common.current_item import CurrentItem
from ray_multicluster_scheduler.common.frames import Blob, Message
from ray_multicluster_scheduler.common.model.actor_description import ACTOR_NAMESPACE
from ray_multicluster_scheduler.common.several_returns import STREAM
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import CallRecord
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.calls import CallRunner, cancel_in_ray, store
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.failures import (
    actor_died,
    cause_of,
    describe,
    exited_by_request,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.method_queue import MethodQueue
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.ray_options import STREAMED, actor_options
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.ray_threads import RayThreads
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.value_streams import is_request
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.actor_channel import CANCEL
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.actor_shell import NO_OBJECT, AsyncShell, Shell
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import (
    ActorOrder,
    Envelope,
    Key,
    MethodOrder,
    unpack,
)

_NAME_TIMEOUT_S, _NAME_PAUSE_S = 10.0, 0.2
_CHECK_AGAIN_S = 0.3
_LAST_RESULTS_S = 5.0
_MANY_UNANSWERED = 16  # calls of one actor
_TOO_LATE = (
    "it was not run: it arrived after calls of a later process of the control plane, so its place in their order has "
    "passed"
)

SendToActor = Callable[[Key, Message], None]
"""Sends a message to an actor's process, if that is connected."""


class NoSuchActor(Exception):
    """No actor of this name can be adopted."""

    code = "ACTOR_NOT_FOUND"


class NameTaken(Exception):
    """Another actor has this name."""

    code = "ACTOR_NAME_TAKEN"


@dataclass(slots=True)
class ActorAttempt:
    """The state of one attempt of an actor."""

    record: CallRecord
    spec: dict[str, Any]
    handle: Any = None
    node: str = ""
    queue: MethodQueue = field(default_factory=MethodQueue)
    """Method calls that Ray does not have yet."""
    unanswered: set[Key] = field(default_factory=set)
    """Method calls that Ray has."""
    being_checked: bool = False
    connected: bool = False
    """Its process has a connection to the agent; the end of the connection would reveal its death."""
    left: bool = False
    """It exited by its own request."""
    constructor_failure: tuple[dict[str, Any], bytes] | None = None
    death: BaseException | None = None
    dead: bool = False

    @property
    def is_ending(self) -> bool:
        """True if there is a reason to expect its death."""
        return self.record.cancelled or self.left or self.constructor_failure is not None

    def death_cause(self) -> str:
        """Follows "is dead:" in a message."""
        if self.constructor_failure is not None:
            return f"its constructor failed: {self.constructor_failure[0].get('message', '')}"
        if self.record.cancelled:
            return "it was killed"
        if self.left:
            return "it left by itself"
        return cause_of(self.death)


class ActorMethods:
    """Submits method calls to Ray in the order of their numbers. Runs on the event loop, except where noted. ``check``
    is called when a method died with its actor, and ``answered`` after each result."""

    def __init__(
        self,
        threads: RayThreads,
        calls: CallRunner,
        send: SendToActor,
        check: Callable[[Key], None],
        answered: Callable[[ActorAttempt], None],
    ) -> None:
        self._threads, self._calls, self._send = threads, calls, send
        self._check, self._after_result = check, answered

    def call(self, actor: ActorAttempt | None, record: CallRecord) -> None:
        """Accept the call of a method; it is submitted to Ray after all calls with smaller numbers."""
        method = record.method
        if method is None:
            raise TypeError(f"{record.key} is not the call of a method")
        self._calls.records[record.key] = record
        if actor is None and is_request(record):  # of a task
            self._calls.request_value(record)
            return
        if actor is not None:
            record.progress, record.gang_key = actor.record.progress, actor.record.gang_key
        if record.head is not None:  # cancelled or refused before it was sent
            self._calls.conclude(record, record.head)
        elif actor is None or actor.dead:
            self.fail(record, actor)
            return
        if actor is None or actor.dead:
            return
        if not actor.queue.add(method, record):
            if record.head is None:
                head = {"status": "failed", "failure": "permanent", "error_type": "RuntimeError"}
                self._calls.conclude(record, {**head, "code": "CAME_TOO_LATE", "message": _TOO_LATE})
            return
        if record.head is None and record.must_store:
            record.being_stored = True
            self._threads.run_in_pool(self._store, actor, record)
        self.advance(actor)

    def cancel(self, actor: ActorAttempt | None, record: CallRecord) -> None:
        """Cancel a method that has not begun. Ray can interrupt methods on an event loop only. A call that waits in the
        actor's process runs even though Ray reports it as cancelled, so a message makes the process skip it."""
        record.cancelled = True
        if actor is None:
            return
        if record.ref is None and record.key not in actor.unanswered:
            self._calls.conclude(record, {"status": "cancelled"})
            return
        self._send_cancel(actor, record)
        if record.stream is not None:
            record.stream.discard()
        if actor.spec["asynchronous"] and record.ref is not None:
            cancel_in_ray(record)

    def resend_cancels(self, actor: ActorAttempt) -> None:
        """Its process has connected: send the cancellations again, which may have been lost."""
        for key in actor.unanswered:
            record = self._calls.records.get(key)
            if record is not None and record.cancelled:
                self._send_cancel(actor, record)

    def _send_cancel(self, actor: ActorAttempt, record: CallRecord) -> None:
        self._send(actor.record.key, Message(CANCEL, {"id": record.key[0], "attempt": record.key[1]}))

    def _store(self, actor: ActorAttempt, record: CallRecord) -> None:
        """On a thread: move large arguments and objects to the object store."""
        problem: Exception | None = None
        try:
            record.arguments = store(record.arguments)
            for one in record.objects:
                one.argument(store)
        except Exception as error:  # noqa: BLE001 - any error of Ray is this call's failure
            problem = error
        self._threads.run_on_loop(self._stored, actor, record, problem)

    def _stored(self, actor: ActorAttempt, record: CallRecord, problem: Exception | None) -> None:
        record.being_stored = False
        if problem is not None:
            self._calls.complete(record, None, problem)
        self.advance(actor)

    def advance(self, actor: ActorAttempt) -> None:
        """Submit the next calls that have arrived."""
        while actor.handle is not None and (record := actor.queue.take()) is not None:
            if record.head is not None:
                continue
            if is_request(record):
                self._calls.request_value(record)
                continue
            actor.unanswered.add(record.key)
            self._submit(actor, actor.handle, record)

    def _submit(self, actor: ActorAttempt, handle: Any, record: CallRecord) -> None:
        try:
            name = "" if record.method is None else record.method.name
            (_, arguments), separate = record.split(store)
            record.streams = name.startswith(STREAM)
            order = MethodOrder(record.key, name.removeprefix(STREAM), record.homes, arguments).packed()
            run = handle.stream.options(**STREAMED) if record.streams else handle.run
            record.ref = run.remote(order, *separate)
            record.release_arguments()
        except Exception as error:  # noqa: BLE001 - any error of Ray is this call's failure
            self._threads.run_on_loop(self._answered, actor, record, None, error)
            return
        on_result = partial(self._answered, actor, record)
        if record.streams:
            self._calls.read_stream(record, on_result)
        elif len(actor.unanswered) < _MANY_UNANSWERED:
            self._threads.watch(record.ref, on_result)
        else:
            self._threads.watch_in_batch(record.ref, on_result)

    def _answered(
        self, actor: ActorAttempt, record: CallRecord, value: Envelope | None, error: BaseException | None
    ) -> None:
        actor.unanswered.discard(record.key)
        if isinstance(error, RayActorError):
            self.fail(record, actor, error)
            self._check(actor.record.key)
        elif value is not None and (head := unpack(value)[0])["status"] == NO_OBJECT:
            self.fail(record, actor, why=f"its constructor failed: {head['message']}")
        else:
            self._calls.complete(record, value, error)
        self._after_result(actor)

    def fail(
        self, record: CallRecord, actor: ActorAttempt | None, error: BaseException | None = None, why: str = ""
    ) -> None:
        """Conclude a call that was not run, or died with its actor."""
        if record.head is not None or record.method is None:
            return
        if record.cancelled:
            self._calls.conclude(record, {"status": "cancelled"})
            return
        key = record.method.actor
        if actor is None:
            self._calls.conclude(record, actor_died("", key, "its agent does not have it any more"))
            return
        if actor.is_ending or (error is None and not why):
            why = actor.death_cause()
        elif error is not None:
            why = cause_of(error)
        self._calls.conclude(record, actor_died(actor.record.name, key, why, error))


class ActorRunner:
    """Runs on the event loop, except where noted. ``call_later`` is the loop's; ``on_ready`` is called when an
    actor is ready, with the time and its node."""

    def __init__(
        self,
        threads: RayThreads,
        calls: CallRunner,
        call_later: Callable[[float, Callable[[], object]], object],
        on_ready: Callable[[CallRecord, float, str], None],
        send: SendToActor,
    ) -> None:
        self._threads, self._calls, self._call_later, self._on_ready = threads, calls, call_later, on_ready
        self._methods = ActorMethods(threads, calls, send, self.check, self._answered)
        self._actors: dict[Key, ActorAttempt] = {}
        self._shells = {False: ray.remote(Shell), True: ray.remote(AsyncShell)}

    def __len__(self) -> int:
        return len(self._actors)

    # Start and end ----------------------------------------------------------------------------------------

    def create(self, record: CallRecord, spec: dict[str, Any]) -> None:
        """Accept the call of an actor, which lasts as long as the actor lives."""
        self._calls.records[record.key] = record
        actor = self._actors[record.key] = ActorAttempt(record, spec)
        self._threads.run_in_pool(self._create, actor, time.monotonic() + _NAME_TIMEOUT_S)

    def _create(self, actor: ActorAttempt, deadline: float) -> None:
        """On a thread. ``deadline``: for its name to become free."""
        if actor.record.cancelled:
            self._threads.run_on_loop(self._died, actor, None)
            return
        try:
            handle = self._find(actor) if actor.spec["adopt"] else self._new(actor)
            ref = self._order_to_report(actor, handle)
        except Exception as error:  # noqa: BLE001 - any error of Ray is this actor's failure
            if isinstance(error, NameTaken) and time.monotonic() < deadline:
                # An earlier attempt may have it, if Ray has not processed its end yet.
                again = partial(self._threads.run_in_pool, self._create, actor, deadline)
                self._threads.run_on_loop(self._call_later, _NAME_PAUSE_S, again)
            else:
                self._threads.run_on_loop(self._died, actor, error)
            return
        self._threads.run_on_loop(self._created, actor, handle)
        self._threads.watch(ref, partial(self._checked, actor))

    def _new(self, actor: ActorAttempt) -> Any:
        """On a thread: create the actor. Raises NameTaken, and Ray's exceptions."""
        record, spec = actor.record, actor.spec
        options = actor_options(record, spec, self._calls.own_modules)
        cls = None if record.function is None else record.function.argument(store)
        objects = [one.argument(store) for one in record.objects]
        shell = self._shells[spec["asynchronous"]].options(**options)
        try:
            return shell.remote(self._order(actor), cls, record.arguments, *objects)
        except ValueError as error:
            if "already" in str(error):
                raise NameTaken(f"another actor of this cluster already has the name {spec['ray_name']!r}") from None
            raise

    def _find(self, actor: ActorAttempt) -> Any:
        """On a thread. Raises NoSuchActor."""
        name = actor.spec["ray_name"]
        try:
            return ray.get_actor(name, namespace=ACTOR_NAMESPACE)
        except ValueError:
            raise NoSuchActor(f"no actor {name!r} exists in namespace {ACTOR_NAMESPACE!r} of this cluster") from None

    def _order_to_report(self, actor: ActorAttempt, handle: Any) -> Any:
        """On a thread. Returns a reference to the result of its constructor, or to an error if it is dead."""
        return handle.attend.remote(self._order(actor))

    def _order(self, actor: ActorAttempt) -> bytes:
        record = actor.record
        item = CurrentItem(*(record.gang_key or record.key), record.fence, self._calls.cluster, record.member)
        return ActorOrder(self._calls.agent_endpoint, item, record.homes, actor.spec["detached"]).packed()

    def _created(self, actor: ActorAttempt, handle: Any) -> None:
        actor.handle = handle
        actor.record.release_arguments()
        if actor.record.cancelled:
            self._kill(actor)
        self._methods.advance(actor)

    def cancel(self, record: CallRecord) -> None:
        """Kill an actor."""
        record.cancelled = True
        actor = self._actors.get(record.key)
        if actor is not None and actor.handle is not None and not actor.dead:
            self._kill(actor)

    def recall(self, record: CallRecord) -> None:
        """Take back an actor whose constructor has not begun: its process will ask us, unless it is detached. Ray may
        create it later; it is killed then."""
        actor = self._actors.get(record.key)
        if actor is None or actor.spec["detached"] or record.cancelled or record.may_have_begun:
            return
        self.cancel(record)
        self._calls.conclude(record, {"status": "cancelled", "code": m.RECALLED})

    def leaves(self, key: Key) -> None:
        """Its process reports that it exits by its own request."""
        if key in self._actors:
            self._actors[key].left = True

    def forget(self, keys: Iterable[Key]) -> None:
        """The control plane has acknowledged the ends of these actors."""
        for key in keys:
            self._actors.pop(key, None)

    def _kill(self, actor: ActorAttempt) -> None:
        self._threads.run_in_pool(self._kill_then, actor.handle, self.check, actor.record.key)

    def _kill_then(self, handle: Any, step: Callable[..., object], *args: Any) -> None:
        """On a thread: kill it in Ray, which also frees the name of a dead actor; then run ``step`` on the loop."""
        try:
            if handle is not None:
                ray.kill(handle, no_restart=True)
        except Exception as error:  # noqa: BLE001 - Ray may not know the actor any more
            print(f"rmcs agent: an actor cannot be killed: {error!r}", flush=True)
        self._threads.run_on_loop(step, *args)

    # Detecting deaths -------------------------------------------------------------------------------------

    def nodes_changed(self, nodes: set[str]) -> None:
        """Check the actors on nodes that have left the cluster."""
        for key, actor in list(self._actors.items()):
            if actor.node and actor.node not in nodes:
                self.check(key)

    def connection_changed(self, key: Key, is_open: bool) -> None:
        """Its process has connected, or its connection has ended, so that it may be dead."""
        if key in self._actors:
            self._actors[key].connected = is_open
            if is_open:
                self._methods.resend_cancels(self._actors[key])
            else:
                self.check(key)

    def check(self, key: Key) -> None:
        """Find out whether this actor lives, by a call that Ray answers with an error if it is dead."""
        actor = self._actors.get(key)
        if actor is None or actor.handle is None or actor.being_checked or actor.dead:
            return
        actor.being_checked = True
        self._threads.run_in_pool(self._ask, actor, actor.handle)

    def _ask(self, actor: ActorAttempt, handle: Any) -> None:
        """On a thread."""
        try:
            ref = self._order_to_report(actor, handle)
        except Exception as error:  # noqa: BLE001 - the error is examined in _checked
            self._threads.run_on_loop(self._checked, actor, None, error)
        else:
            self._threads.watch(ref, partial(self._checked, actor))

    def _checked(self, actor: ActorAttempt, value: Envelope | None, error: BaseException | None) -> None:
        actor.being_checked = False
        if actor.dead:
            return
        if error is not None and not isinstance(error, ActorUnavailableError):
            self._died(actor, error)
            return
        if value is not None and not actor.is_ending:
            self._lives(actor, *unpack(value))
        if value is None or actor.is_ending or not actor.connected:
            self._call_later(_CHECK_AGAIN_S, partial(self._check_again, actor))

    def _check_again(self, actor: ActorAttempt) -> None:
        """Repeat until it is dead, or its connection is open, whose end would reveal its death."""
        if actor.is_ending or not actor.connected or not actor.node:
            self.check(actor.record.key)

    def _lives(self, actor: ActorAttempt, head: dict[str, Any], payload: Sequence[Blob]) -> None:
        """Handle the result of the constructor."""
        if head["status"] != "succeeded":
            actor.constructor_failure = {name: head[name] for name in head.keys() - {"at", "node"}}, b"".join(payload)
            self._kill(actor)
            return
        is_first = not actor.node
        actor.node = str(head["node"])
        if is_first:
            self._on_ready(actor.record, float(head["at"]), actor.node)

    def _died(self, actor: ActorAttempt, error: BaseException | None) -> None:
        """Kill it in Ray first: Ray keeps the name of a dead actor as long as handles of it may exist."""
        if actor.dead:
            return
        actor.dead, actor.death = True, error
        actor.left = actor.left or exited_by_request(error)
        handle, actor.handle = actor.handle, None
        self._threads.run_in_pool(self._kill_then, handle, self._name_freed, actor)

    def _name_freed(self, actor: ActorAttempt) -> None:
        for record in actor.queue.clear():
            self._methods.fail(record, actor)
        if actor.unanswered:  # Ray returns their results first
            self._call_later(_LAST_RESULTS_S, partial(self._conclude, actor))
        else:
            self._conclude(actor)

    def _conclude(self, actor: ActorAttempt) -> None:
        record = actor.record
        if record.head is not None:
            return
        if actor.constructor_failure is not None:
            self._calls.conclude(record, *actor.constructor_failure)
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

    def _answered(self, actor: ActorAttempt) -> None:
        if actor.dead and not actor.unanswered and not actor.queue:
            self._conclude(actor)

    # Methods ----------------------------------------------------------------------------------------------

    def call(self, record: CallRecord) -> None:
        """Accept the call of a method."""
        self._methods.call(self._actor_of(record), record)

    def skip_missing(self, record: CallRecord) -> None:
        """The sender of this method call is gone: do not wait for the missing calls before it."""
        actor = self._actor_of(record)
        if actor is not None and record.method is not None:
            actor.queue.skip_to(record.method)
            self._methods.advance(actor)

    def cancel_method(self, record: CallRecord) -> None:
        self._methods.cancel(self._actor_of(record), record)

    def _actor_of(self, record: CallRecord) -> ActorAttempt | None:
        return None if record.method is None else self._actors.get(record.method.actor)
