"""ActorCalls: the queue of one actor's method calls. MethodCalls: all unanswered calls of one control plane.

Calls are not items of the scheduler machine: it decided once where the actor runs, and the calls go straight to the
link of that cluster. :class:`MethodCalls` wakes the event loop, where :meth:`ActorCalls.advance` numbers and sends the
calls of an actor; their results come back to :meth:`MethodCalls.answered`. Embedded programs use it by ``Runtime``, the
clients of a service by ``ServiceCalls``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.control_plane.runtime.arguments import ArgumentFailure, Arguments, ArgumentWatch, Values
from ray_multicluster_scheduler.control_plane.runtime.item import CallPromise, Item, Outcome, actor_end
from ray_multicluster_scheduler.control_plane.runtime.loop_thread import shut_down_error
from ray_multicluster_scheduler.control_plane.runtime.outcome import FetchValue
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import (
    Call,
    CallResult,
    ClusterLink,
    MethodCall,
    SharedObject,
)
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete

_log = get_logger(__name__)
MAX_UNANSWERED = 1000
"""Calls of one actor that are sent and unanswered at most, or twice its concurrency if that is more. The others wait
here, where they cost little."""
_ASYNC_CONCURRENCY = 1000
"""Ray's default for the concurrency of an asynchronous actor."""
_PER_TURN = 500
_NO_RESOURCES: dict[str, float] = {}


class ActorCalls:
    """The queue of one actor. Calls are made from any thread; everything else happens on the loop.

    Each call is sent once, in the order they were made. Calls wait while one before them waits for an argument, and
    while the actor is not running: being created, restarted, or unreachable. When the actor has ended they fail.
    """

    def __init__(self, item: Item, calls: MethodCalls) -> None:
        self.item = item
        self.waiting: deque[CallItem] = deque()
        self.unanswered = 0
        self.awake = False
        self._calls = calls
        self.max_unanswered = max(MAX_UNANSWERED, 2 * _concurrency(item))
        self.killed = False
        self._attempt = self._number = 0
        self._adopted: deque[CallItem] = deque()
        item.watch_transitions(lambda _: calls.wake(self))

    def call(self, method: str, arguments: Arguments, *, has_paths: bool) -> CallItem:
        """As :meth:`CallQueue.call`."""
        call = CallItem(self._calls.new_id(), self, method, arguments.data, complete=arguments.plain)
        call.has_paths = has_paths
        self.take(call, arguments)
        return call

    def take(self, call: CallItem, arguments: Arguments) -> None:
        """Take a new call into the queue; it waits for its arguments. Raises SchedulerError after the end."""
        if arguments.plain:
            self._calls.put(call)
            return
        call.watch_arguments = ArgumentWatch(
            arguments,
            lambda values: self._set_values(call, values),
            lambda failure: self._failed(call, failure),
            self._calls.fetch_value,
        )
        self._calls.put(call)
        call.watch_arguments.begin()

    def adopt(self, call: CallItem) -> None:
        """On the loop: take a call that the previous process may have sent; its cluster is asked for the result."""
        self._adopted.append(call)
        self._calls.note(call)
        self._calls.wake(self)

    def no_more(self) -> None:
        """As :meth:`CallQueue.no_more`."""
        self.killed = True

    def advance(self) -> None:
        """On the loop: send the calls that can be sent now, or fail those that never can be."""
        ended = self.item.outcome
        if ended is not None:
            last = ended.completion
            if last.cluster is not None and self._adopted:  # its agent may still have their results
                self._adopt(self._calls.link(last.cluster), last.cluster, last.attempt)
            self._fail_waiting(ended)
            return
        target = self._target()
        if target is None or not (self.waiting or self._adopted):
            return
        cluster, attempt = target
        link = self._calls.link(cluster)
        if link is None:  # it was closed, and the end of the actor will be reported
            return
        self._adopt(link, cluster, attempt)
        if attempt != self._attempt:
            self._attempt, self._number = attempt, 0
        batch = self._next(cluster)
        if batch:
            self.unanswered += len(batch)
            home = self._calls.home_of(cluster)
            first, self._number = self._number, self._number + len(batch)
            link.submit(
                [
                    call.sent(cluster, attempt, number, self._calls.homes, home, self._calls.life)
                    for number, call in enumerate(batch, start=first)
                ]
            )
            if self.waiting:
                self._calls.wake(self)

    def _adopt(self, link: ClusterLink | None, cluster: str, attempt: int) -> None:
        """Ask the agent for the results of calls that an earlier process sent."""
        while link is not None and self._adopted:
            call = self._adopted.popleft()
            if call.outcome is None:
                self.unanswered += 1
                call.sent_to, call.actor_attempt = cluster, attempt
                link.adopt_method(call.id, (self.item.id, attempt), (self.item.scheduled_id, attempt))

    def wait_reason(self, call: CallItem) -> tuple[str, int]:
        """On the loop: why a call has no result yet, and how many calls before it have none either."""
        if call.sent_to is not None:
            return f"was sent to {call.sent_to}, and has no result yet", self._calls.before(call)
        waiting = self._calls.waiting_for(self)
        before = self.unanswered + next((n for n, one in enumerate(waiting) if one is call), 0)
        if call.watch_arguments is not None and not call.complete:
            return call.watch_arguments.waits_for, before
        if self._target() is None:
            return f"waits for the actor, which is {self.item.state}", before
        first = next(iter(waiting), call)
        if first is not call and first.watch_arguments is not None and not first.complete:
            return f"waits for {first.id} before it, which {first.watch_arguments.waits_for}", before
        return f"waits for its turn; {self.unanswered} calls are with the actor", before

    def _target(self) -> tuple[str, int] | None:
        """The cluster and the attempt that take calls now."""
        step = self.item.transition
        if step is None or step.state is not TaskState.RUNNING or step.cluster is None or self.killed:
            return None
        return step.cluster, step.attempt

    def _next(self, cluster: str) -> list[CallItem]:
        """The calls that may be sent now, in order."""
        batch: list[CallItem] = []
        room = min(_PER_TURN, self.max_unanswered - self.unanswered)
        while self.waiting and len(batch) < room:
            call = self.waiting[0]
            if call.outcome is None and not call.complete:
                break
            self.waiting.popleft()
            if call.outcome is not None:
                continue
            if call.pinned not in (None, cluster):
                message = (
                    f"{call.name} ({call.id}) was given an actor that runs on {call.pinned}, but actor {self.item.id} "
                    f"runs on {cluster}: actors of different clusters cannot call each other"
                )
                step = f'create both with preferred_cluster="{cluster}", fallback="wait"'
                self._refuse(call, "TaskSubmissionError", message, step)
                continue
            batch.append(call)
        return batch

    def _fail_waiting(self, ended: Outcome) -> None:
        completion, what = ended.completion, actor_end(ended)
        while self._adopted:
            call = self._adopted.popleft()
            message = f"{call.name} ({call.id}) may have been sent before the service restarted, and actor "
            message += f"{self.item.id} {what} meanwhile; whether it ran is not known. {completion.message}".strip()
            self._refuse(call, "ActorDiedError", message, "check its effects before repeating it", ended)
        while self.waiting:
            call = self.waiting.popleft()
            self._refuse(call, "ActorDiedError", call.unsent_message(ended), "make a new actor and call that", ended)

    def _refuse(
        self, call: CallItem, error: str, message: str, next_step: str, actor_ended: Outcome | None = None
    ) -> None:
        self._calls.close(call)
        self._calls.ended(call, call.refused(error, message, next_step, actor_ended=actor_ended))

    def _set_values(self, call: CallItem, values: Values) -> None:
        call.set_values(values)
        self._calls.wake(self)

    def _failed(self, call: CallItem, failure: ArgumentFailure) -> None:
        self._calls.close(call)
        self._calls.ended(call, call.refused(failure.error, failure.sentence, origin=failure.origin))
        self._calls.wake(self)


def _concurrency(item: Item) -> int:
    """The number of calls that it runs at once; an adopted actor may be asynchronous."""
    actor = item.task.actor
    if actor is None:
        return 1
    return actor.max_concurrency or (_ASYNC_CONCURRENCY if actor.asynchronous or actor.adopt else 1)


class CallItem(CallPromise):
    """Made by the calling thread, then written on the loop and read from any thread. It is ``complete`` once its
    arguments have values."""

    actor: ActorCalls

    __slots__ = (
        "_data",
        "actor_attempt",
        "cancel_asked",
        "complete",
        "has_paths",
        "objects",
        "pinned",
        "sent_to",
        "watch_arguments",
    )

    def __init__(self, call_id: str, actor: ActorCalls, method: str, data: bytes, *, complete: bool) -> None:
        super().__init__(call_id, actor, method)
        self._data, self.complete = data, complete
        self.has_paths = self.cancel_asked = False
        self.objects: Sequence[SharedObject] = ()
        self.pinned: str | None = None
        self.sent_to: str | None = None
        self.actor_attempt = 0
        self.watch_arguments: ArgumentWatch | None = None

    @property
    def state(self) -> TaskState:
        """DISPATCHING once it was sent: a link does not report when a method begins."""
        if self.outcome is not None:
            return self.outcome.completion.state
        if self.sent_to is not None:
            return TaskState.DISPATCHING
        return TaskState.QUEUED if self.complete else TaskState.PENDING

    @property
    def cluster(self) -> str | None:
        return self.sent_to

    @property
    def attempt(self) -> int:
        return 0 if self.sent_to is None else 1

    def set_values(self, values: Values) -> None:
        """All its arguments have values."""
        self.objects = tuple(SharedObject(*one) for one in values.objects)
        self.pinned = values.pinned
        self.complete = True

    def sent(
        self, cluster: str, attempt: int, number: int, homes: Sequence[str], target_home: str | None, life: int
    ) -> Call:
        """Mark it as sent now, as call ``number`` of this attempt of the actor; returns the message for the link."""
        self.sent_to, self.actor_attempt = cluster, attempt
        data, self._data = self._data, b""
        objects, self.objects = self.objects, ()
        paths = self.has_paths and target_home is not None
        actor = self.actor.item
        gang_id = "" if actor.scheduled_id == actor.id else actor.scheduled_id
        return Call(
            task_id=self.id,
            attempt=1,
            fence=0,
            name=self.name,
            function_digest="",
            function=b"",
            arguments=data,
            resources=_NO_RESOURCES,
            homes=homes if paths else (),
            target_home=target_home if paths else None,
            objects=objects,
            method=MethodCall(actor.id, attempt, self.method, number, gang_id, life),
        )

    def answered(self, result: CallResult) -> Outcome:
        """The outcome for a result from the cluster."""
        if result.status == "succeeded":
            return Outcome(Complete(self.id, TaskState.SUCCEEDED, 1, self.sent_to), result)
        if result.status == "cancelled" and self.cancel_asked:
            return self.cancelled("the caller requested it")
        if result.failure is FailureClass.USER:
            return Outcome(Complete(self.id, TaskState.FAILED, 1, self.sent_to, None, result.message), result)
        error, what = "TaskSubmissionError", "was refused"
        next_step = "fix what the message names and call again"
        if result.failure is not FailureClass.PERMANENT:  # it may have begun, so it is not repeated automatically
            error = "ClusterLostError" if result.failure is FailureClass.CLUSTER else "ActorDiedError"
            what = "was not answered"
            next_step = "check its effects before repeating it; a restarted actor (max_restarts) takes new calls"
        why = result.message or "the actor was ended"
        message = f"{self.name} ({self.id}) {what} by actor {self.actor.item.id} on {self.sent_to}: {why}"
        return Outcome(Complete(self.id, TaskState.FAILED, 1, self.sent_to, error, message, next_step), result)

    def cancelled(self, why: str) -> Outcome:
        message = f"{self.name} ({self.id}) was cancelled: {why}"
        state = TaskState.CANCELLED
        return Outcome(Complete(self.id, state, self.attempt, self.sent_to, "TaskCancelledError", message), None)

    def abandoned(self, error: str, why: str) -> Outcome:
        """The control plane ended before it was answered."""
        state = TaskState.CANCELLED if error == "TaskCancelledError" else TaskState.FAILED
        message = f"{self.name} ({self.id}) was not answered: {why}"
        return Outcome(Complete(self.id, state, self.attempt, self.sent_to, error, message), None)

    def refused(
        self,
        error: str | None,
        message: str,
        next_step: str = "",
        *,
        origin: Outcome | None = None,
        actor_ended: Outcome | None = None,
    ) -> Outcome:
        """It was not sent, because an argument failed (``origin``), its actor ended, or it is invalid."""
        cluster = None if actor_ended is None else actor_ended.completion.cluster
        completion = Complete(self.id, TaskState.FAILED, 0, cluster, error, message, next_step)
        cause = origin or actor_ended
        return Outcome(completion, None if cause is None else cause.result, origin)


class MethodCalls:
    """All unanswered calls of one control plane. Made on its loop; `put` and `wake` may be called from any thread."""

    def __init__(
        self,
        control_plane: str,
        link: Callable[[str], ClusterLink | None],
        homes: Sequence[str],
        home_of: Callable[[str], str | None],
        on_failure: Callable[[BaseException], None],
        life: int = 0,
        fetch_value: FetchValue | None = None,
        on_end: Callable[[CallPromise, Outcome], None] | None = None,
    ) -> None:
        """``on_failure`` is called with a defect in this class, after which it is unknown what was sent. ``life``
        counts the processes of a control plane whose actors outlive them. ``fetch_value`` fetches kept values.
        ``on_end`` is called with each outcome before the program can see it."""
        self.link, self.homes, self.home_of, self._failure = link, homes, home_of, on_failure
        self.life, self.fetch_value, self._on_end = life, fetch_value, on_end
        self._prefix, self._numbers, self._newest = f"call-{control_plane}-", itertools.count(1), 0
        self._loop, self._process = asyncio.get_running_loop(), os.getpid()
        self._lock = Lock()  # guards the refusal and the calls put before it
        self._refusal: str | None = None
        self._open: dict[str, CallItem] = {}
        self._awake: deque[ActorCalls] = deque()
        self._scheduled = False

    def new_id(self) -> str:
        self._newest = number = next(self._numbers)
        return f"{self._prefix}{number}"

    def was_issued(self, call_id: object) -> bool:
        """Whether this is the id of a call, answered or not."""
        if not isinstance(call_id, str) or not call_id.startswith(self._prefix):
            return False
        number = call_id.removeprefix(self._prefix)
        return number.isdecimal() and 0 < int(number) <= self._newest

    def put(self, call: CallItem) -> None:
        """Append it to its actor's queue. Raises SchedulerError after the end, and in the child of a fork."""
        if os.getpid() != self._process:
            raise shut_down_error("belongs to the process that this one was forked from")
        with self._lock:
            if self._refusal is not None:
                raise _too_late(call, self._refusal)
            self._open[call.id] = call
            call.actor.waiting.append(call)
        self.wake(call.actor)

    def note(self, call: CallItem) -> None:
        """Record it as unanswered without queueing it."""
        with self._lock:
            self._open[call.id] = call

    def wake(self, actor: ActorCalls) -> None:
        """Schedule :meth:`ActorCalls.advance`. Many changes cause one wake-up of the loop."""
        if actor.awake:
            return
        actor.awake = True
        self._awake.append(actor)
        if not self._scheduled:
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._turn)
            except RuntimeError:  # the loop has ended, and every call was answered before
                self._scheduled = False

    def unanswered(self) -> list[CallItem]:
        """Oldest first."""
        with self._lock:
            return list(self._open.values())

    def waiting_for(self, actor: ActorCalls) -> list[CallItem]:
        """On the loop: the calls of this actor that were not sent, in order; other threads may add to them."""
        with self._lock:
            return list(actor.waiting)

    def find(self, call_id: str) -> CallItem | None:
        """The call, until it is answered."""
        return self._open.get(call_id)

    def before(self, call: CallItem) -> int:
        """The number of earlier, unanswered calls of the same actor."""
        older = itertools.takewhile(lambda other: other is not call, self.unanswered())
        return sum(1 for other in older if other.actor is call.actor)

    def cancel(self, call: CallItem, *, force: bool) -> None:
        """On the loop: a waiting call is not sent any more; for a sent one the cluster is asked to cancel it."""
        call.cancel_asked = True
        if call.outcome is not None:
            return
        if call.sent_to is None:
            self.close(call)
            self.ended(call, call.cancelled("the caller requested it, before it was sent"))
            self.wake(call.actor)
        elif (link := self.link(call.sent_to)) is not None:
            link.cancel(call.id, 1, force=force)

    def answered(self, result: CallResult) -> None:
        """On the loop: the result of a call that was sent; there is only one."""
        call = self._open.pop(result.task_id, None)
        if call is None:
            return
        actor = call.actor
        actor.unanswered -= 1
        self.ended(call, call.answered(result))
        if actor.waiting:
            self.wake(actor)

    def close(self, call: CallItem) -> None:
        """Remove it from the unanswered calls; the caller sets its outcome."""
        self._open.pop(call.id, None)
        if call.watch_arguments is not None:
            call.watch_arguments.stop()

    def ended(self, call: CallItem, outcome: Outcome) -> None:
        """Set the outcome of a call."""
        if self._on_end is not None:
            self._on_end(call, outcome)
        call.ended(outcome)

    def end(self, why: str, error: str, sentence: str) -> None:
        """Refuse further calls, and end all unanswered ones with this error."""
        with self._lock:
            self._refusal = self._refusal or why
            left = list(self._open.values())
            self._open.clear()
        for call in left:
            self.close(call)
            self.ended(call, call.abandoned(error, sentence))
            call.actor.waiting.clear()

    def _turn(self) -> None:
        self._scheduled = False
        for _ in range(len(self._awake)):
            actor = self._awake.popleft()
            actor.awake = False
            try:
                actor.advance()
            except Exception as error:  # noqa: BLE001 - a defect, which ends the scheduler
                _log.exception("sending calls of actors failed: a defect")
                self._failure(error)
                return


def _too_late(call: CallItem, why: str) -> SchedulerError:
    """The error for a call of an actor of an earlier control plane."""
    item = call.actor.item
    actor = item.task.actor
    if actor is not None and actor.detached:
        fate, step = "is detached and continues", f"find it again with get_actor({actor.public_name!r}) and call that"
    else:
        fate, step = "ended with it", "make a new actor and call that"
    return SchedulerError(
        f"{call.name} was not sent: the scheduler {why}, and actor {item.id} {fate}.",
        task_id=item.id,
        cluster=item.cluster,
        next_step=step,
    )
