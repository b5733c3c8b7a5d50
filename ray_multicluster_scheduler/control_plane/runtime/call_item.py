"""One call of an actor's method, and what its answer means to whoever made it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.control_plane.runtime.call_queue import CallPromise
from ray_multicluster_scheduler.control_plane.runtime.item import Outcome
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import (
    Call,
    CallResult,
    MethodCall,
    SharedObject,
)
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.actor_calls import ActorCalls
    from ray_multicluster_scheduler.control_plane.runtime.arguments import ArgumentWatch, Values

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

    def filled_in(self, values: Values) -> None:
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
        return "" if item.whole == item.id else item.whole

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
