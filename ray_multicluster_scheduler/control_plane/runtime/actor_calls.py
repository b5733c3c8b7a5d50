"""ActorCalls: one actor as its program sees it, and the calls of its methods in the order they were made."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.control_plane.runtime.arguments import ArgumentFailure, Arguments, ArgumentWatch, Values
from ray_multicluster_scheduler.control_plane.runtime.call_queue import CallPromise, actor_end, never_sent
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import (
    Call,
    CallResult,
    MethodCall,
    SharedObject,
)
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.arguments import ArgumentWatch, Values
    from ray_multicluster_scheduler.control_plane.runtime.method_calls import MethodCalls
    from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import ClusterLink

MAX_UNANSWERED = 1000
"""So many calls of one actor are with its cluster at most, or twice as many as it runs at once if that is more; the
others wait here, where they cost little."""
_ASYNC_CONCURRENCY = 1000
"""How many calls an asynchronous actor runs at once if it does not say so: Ray's default."""
_PER_TURN = 500


class ActorCalls:
    """The queue of one actor. Calls are made from any thread; everything else happens on the loop.

    Calls leave in the order they were made, each once. They wait while one before them waits for an argument, and
    while the actor is not running: being created, restarted, or out of reach. When it is over they fail.
    """

    def __init__(self, item: Item, calls: MethodCalls) -> None:
        self.item = item
        self.waiting: deque[CallItem] = deque()
        self.unanswered = 0
        self.awake = False
        self._calls = calls
        self.max_unanswered = max(MAX_UNANSWERED, 2 * _concurrency(item))
        self.killed = False
        """Its end was asked for, even if it is not over yet."""
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
        """On the loop: a call that the process before ours may have sent. Its cluster is asked what became of it."""
        self._adopted.append(call)
        self._calls.note(call)
        self._calls.wake(self)

    def no_more(self) -> None:
        """Its end was asked for: calls that have not left yet wait for it and fail."""
        self.killed = True

    def advance(self) -> None:
        """On the loop: send what can be sent now, or fail what can never be."""
        if self.item.outcome is not None:
            self._fail_waiting(self.item.outcome)
            return
        target = self._target()
        if target is None or not (self.waiting or self._adopted):
            return
        cluster, attempt = target
        link = self._calls.link(cluster)
        if link is None:  # its end is known, and will be told of the actor, too
            return
        while self._adopted:
            self._ask_for(self._adopted.popleft(), link, cluster, attempt)
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

    def wait_reason(self, call: CallItem) -> tuple[str, int]:
        """On the loop: why a call has no answer yet, and how many of the calls before it have none either."""
        if call.sent_to is not None:
            return f"was sent to {call.sent_to}, and is not answered yet", self._calls.before(call)
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

    def _ask_for(self, call: CallItem, link: ClusterLink, cluster: str, attempt: int) -> None:
        if call.outcome is None:
            self.unanswered += 1
            call.sent_to, call.actor_attempt = cluster, attempt
            link.adopt_method(call.id, (self.item.id, attempt), (self.item.scheduled_id, attempt))

    def _target(self) -> tuple[str, int] | None:
        """Cluster and attempt that take calls now."""
        step = self.item.transition
        if step is None or step.state is not TaskState.RUNNING or step.cluster is None or self.killed:
            return None
        return step.cluster, step.attempt

    def _next(self, cluster: str) -> list[CallItem]:
        """Those that may leave now, in order."""
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
                self._refuse(call, "TaskSubmissionError", *_misplaced(call, cluster))
                continue
            batch.append(call)
        return batch

    def _fail_waiting(self, ended: Outcome) -> None:
        completion, what = ended.completion, actor_end(ended)
        while self._adopted:
            call = self._adopted.popleft()
            message = f"{call.name} ({call.id}) was on its way when the service was started again, and actor "
            message += f"{self.item.id} {what} meanwhile; whether it ran is not known. {completion.message}".strip()
            self._refuse(call, "ActorDiedError", message, "find out what the call had done", ended)
        while self.waiting:
            call = self.waiting.popleft()
            self._refuse(call, "ActorDiedError", never_sent(call, ended), "make a new actor and call that", ended)

    def _refuse(
        self, call: CallItem, error: str, message: str, next_step: str, actor_ended: Outcome | None = None
    ) -> None:
        self._calls.close(call)
        call.ended(call.refused(error, message, next_step, actor_ended=actor_ended))

    def _set_values(self, call: CallItem, values: Values) -> None:
        call.set_values(values)
        self._calls.wake(self)

    def _failed(self, call: CallItem, failure: ArgumentFailure) -> None:
        self._calls.close(call)
        call.ended(call.refused(failure.error, failure.sentence, origin=failure.origin))
        self._calls.wake(self)


def _concurrency(item: Item) -> int:
    """So many calls it runs at once, as far as we know: one that was found may well be asynchronous."""
    actor = item.task.actor
    if actor is None:
        return 1
    return actor.max_concurrency or (_ASYNC_CONCURRENCY if actor.asynchronous or actor.adopt else 1)


def _misplaced(call: CallItem, cluster: str) -> tuple[str, str]:
    message = (
        f"{call.name} ({call.id}) was given an actor that lives on {call.pinned}, but actor {call.actor.item.id} lives "
        f"on {cluster}: actors of different clusters cannot call each other"
    )
    return message, f'make both with preferred_cluster="{cluster}", fallback="wait"'


_NO_RESOURCES: dict[str, float] = {}


class CallItem(CallPromise):
    """Made by the calling thread; from then on written on the loop and read from any thread.

    Until its arguments have values it is not ``complete``.
    """

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
        """DISPATCHING from when it was sent: a link does not tell when a method begins."""
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
        """It leaves now, as the call of this number of this attempt of the actor, in this life of ours."""
        self.sent_to, self.actor_attempt = cluster, attempt
        data, self._data = self._data, b""
        objects, self.objects = self.objects, ()
        paths = self.has_paths and target_home is not None
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
            method=MethodCall(self.actor.item.id, attempt, self.method, number, self._gang_id(), life),
        )

    def _gang_id(self) -> str:
        item = self.actor.item
        return "" if item.scheduled_id == item.id else item.scheduled_id

    def answered(self, result: CallResult) -> Outcome:
        """What an answer from the cluster means."""
        if result.status == "succeeded":
            return Outcome(Complete(self.id, TaskState.SUCCEEDED, 1, self.sent_to), result)
        if result.status == "cancelled" and self.cancel_asked:
            return self.cancelled("the caller asked for it")
        if result.failure is FailureClass.USER:
            return Outcome(Complete(self.id, TaskState.FAILED, 1, self.sent_to, None, result.message), result)
        error, next_step = _error(result.failure)
        why = result.message or "the actor was ended"
        what = "was not answered" if error != "TaskSubmissionError" else "was refused"
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
        """It never left: ``origin`` is how an argument failed, ``actor_ended`` how its actor did, if that is why."""
        cluster = None if actor_ended is None else actor_ended.completion.cluster
        completion = Complete(self.id, TaskState.FAILED, 0, cluster, error, message, next_step)
        cause = origin or actor_ended
        return Outcome(completion, None if cause is None else cause.result, origin)


def _error(failure: FailureClass | None) -> tuple[str, str]:
    """Class of the error tree and next step; a call that may have begun is never repeated by us."""
    if failure is FailureClass.PERMANENT:
        return "TaskSubmissionError", "mend what the message names and call again"
    again = "find out what the call had done by then; a restarted actor (max_restarts) takes new calls"
    return ("ClusterLostError" if failure is FailureClass.CLUSTER else "ActorDiedError"), again
