"""A control plane whose actors live on a link that a test moves; nothing is contacted."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.actors.actor_submission import ActorSubmission
from ray_multicluster_scheduler.app.client_api.actors.actors import EmbeddedActors
from ray_multicluster_scheduler.app.client_api.submission.submission import Submission
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import Call, CallResult
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Dispatch
from tests.support.fake_link import FakeLink
from tests.unit.client_api.control_plane import ControlPlane, until


class Counter:
    """What most tests make an actor of."""

    def __init__(self, start: int = 0) -> None:
        self.value = start

    def add(self, amount: int = 1) -> int:
        self.value += amount
        return self.value

    def pair(self) -> tuple[int, int]:
        return self.value, self.value + 1


class ActorPlane(ControlPlane):
    """Actors start when they are placed, unless ``slow``; calls of methods wait in ``link`` for a test to answer."""

    def __init__(self, *, slow: bool = False, **settings: Any) -> None:
        self.slow = slow
        super().__init__(**settings)
        runtime = self.runtime
        self.link = FakeLink("mac", runtime.collector)
        runtime.method_calls.link = lambda cluster: self.link if cluster == "mac" else None
        self.submission = Submission(
            runtime.config.settings, runtime.payload_cache, runtime.clock, "cp1", runtime.preparation.homes
        )
        self.actors = EmbeddedActors(
            runtime,
            ActorSubmission(runtime.config.settings, runtime.clock, runtime.preparation.homes, self.submission.new_id),
        )

    def dispatch(self, orders: list[Dispatch]) -> None:
        if not self.slow:
            super().dispatch(orders)
            return
        for order in orders:
            self.placed.append(order)
            self.post(events.DispatchAccepted(order.task_id, order.attempt))

    def start(self, actor: ActorHandle, attempt: int = 1) -> None:
        self.post(events.Started(actor._item.id, attempt, self.runtime.clock.now()))
        until(lambda: actor._item.state is TaskState.RUNNING)

    def actor(self, cls: Any = Counter, *args: Any, **options: Any) -> ActorHandle:
        """One that runs, unless the plane is slow."""
        needs, tags = options.pop("resource_requirements", None), options.pop("tags", None)
        handle = self.actors.submit(cls, args, None, needs, tags, options)
        until(lambda: handle._item.state is (TaskState.DISPATCHING if self.slow else TaskState.RUNNING))
        return handle

    def die(self, actor: ActorHandle, attempt: int = 1, failure: FailureClass = FailureClass.CRASH) -> None:
        sentence = "the worker died"
        self.post(events.AttemptFinished(actor._item.id, attempt, "failed", failure, code="X", sentence=sentence))

    # ---- the calls that left

    def sent(self, number: int) -> list[Call]:
        """The first so many calls that left, as soon as they are there."""
        until(lambda: len(self.link.calls) >= number)
        self.settle()
        return self.link.calls

    def settle(self) -> None:
        """Let the loop do what it has to do."""
        for _ in range(5):
            self.runtime.call_and_wait(lambda: None)

    def answer(self, call_id: str, value: object = None) -> None:
        self.runtime.call_and_wait(lambda: self.link.finish(call_id, pickling.dumps(value)))

    def fail_call(self, call_id: str, failure: FailureClass, **values: Any) -> None:
        self.runtime.call_and_wait(lambda: self.link.fail(call_id, failure, **values))

    def answer_all(self) -> None:
        """Each call that left gives its own number."""

        def each() -> None:
            for call in list(self.link.calls):
                if call.method is not None:
                    self.link.finish(call.task_id, pickling.dumps(call.method.number))

        self.runtime.call_and_wait(each)


def constructor_failed(plane: ActorPlane, actor: ActorHandle, error: Exception) -> None:
    """Its one attempt ends with an exception of user code."""
    actor_id = actor._item.id
    result = CallResult(
        actor_id,
        1,
        "failed",
        pickling.dumps(error),
        FailureClass.USER,
        error_type=type(error).__name__,
        message=f"{type(error).__name__}: {error}",
        traceback="Traceback of the constructor",
    )
    plane.runtime.call_and_wait(lambda: plane.runtime.collector.finished("mac", result))


def numbers(calls: list[Call]) -> list[int]:
    """Their places in the order of the actor's calls."""
    return [call.method.number for call in calls if call.method is not None]
