"""The queue of one actor in a program that uses a service: what may leave, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from ray_multicluster_scheduler.app.client_api.remote.remote_calls import RemoteActorCalls, RemoteCall, RemoteCalls
from ray_multicluster_scheduler.common.model import ActorDescription, TaskDescription, TaskState
from ray_multicluster_scheduler.control_plane.runtime.arguments import Arguments
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, Transition


@dataclass
class RecordedCalls:
    """What a queue needs of all calls of its program."""

    left: list[str] = field(default_factory=list)
    numbers: int = 0

    def new_id(self) -> str:
        self.numbers += 1
        return f"call-{self.numbers}"

    def homes(self) -> Sequence[str]:
        return ()

    def check_own(self, arguments: Arguments, actor_id: str) -> None: ...

    def put(self, call: RemoteCall) -> None:
        call.actor.waiting.append(call)
        self.wake(call.actor)

    def wake(self, actor: RemoteActorCalls) -> None:
        self.left += [call.id for call in actor.ready()]

    def end(self, call: RemoteCall, outcome: Outcome) -> None:
        call.ended(outcome)


def step(number: int, state: TaskState) -> Transition:
    return Transition("actor-1", number, state, 1, 0.0, "", "")


@pytest.fixture
def item() -> Item:
    return Item(TaskDescription(id="actor-1", kind="actor", name="A", actor=ActorDescription(ray_name="actor-1")))


@pytest.fixture
def sent() -> RecordedCalls:
    return RecordedCalls()


@pytest.fixture
def queue(item: Item, sent: RecordedCalls) -> RemoteActorCalls:
    return RemoteActorCalls(item, cast(RemoteCalls, sent))


def test_calls_stay_here_until_their_actor_runs(item: Item, sent: RecordedCalls, queue: RemoteActorCalls) -> None:
    """The service does not write calls down: those that it had would be lost with it."""
    queue.call("f", Arguments(b""), has_paths=False)
    assert sent.left == [], "the service does not know the actor yet"
    item.moved(step(1, TaskState.QUEUED))
    queue.call("f", Arguments(b""), has_paths=False)
    assert sent.left == []
    item.moved(step(2, TaskState.RUNNING))
    assert sent.left == ["call-1", "call-2"]
    item.moved(step(3, TaskState.RETRYING))
    queue.call("f", Arguments(b""), has_paths=False)
    assert sent.left == ["call-1", "call-2"]
    item.moved(step(4, TaskState.RUNNING))
    assert sent.left == ["call-1", "call-2", "call-3"]


def test_calls_of_an_actor_that_is_over_fail_here(item: Item, sent: RecordedCalls, queue: RemoteActorCalls) -> None:
    call = queue.call("f", Arguments(b""), has_paths=False)
    item.moved(step(1, TaskState.QUEUED))
    item.ended(Outcome(Complete("actor-1", TaskState.CANCELLED, 0, None), None))
    assert call.outcome is not None
    assert "was not sent: actor actor-1 was killed" in call.outcome.completion.message
    assert sent.left == []


def test_calls_of_an_actor_that_was_refused_fail_here(item: Item, sent: RecordedCalls, queue: RemoteActorCalls) -> None:
    early = queue.call("f", Arguments(b""), has_paths=False)
    item.ended(Outcome(Complete("actor-1", TaskState.FAILED, 0, None, "QueueFullError", "There is no room."), None))
    late = queue.call("f", Arguments(b""), has_paths=False)
    for call in (early, late):
        assert call.outcome is not None
        assert call.outcome.completion.error == "ActorDiedError"
        assert "was not sent: actor actor-1 has ended. There is no room." in call.outcome.completion.message
    assert sent.left == []
