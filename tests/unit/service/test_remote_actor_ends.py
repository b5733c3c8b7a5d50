"""Calls of a service's actors that are cancelled, explained, or left when their program ends."""

from __future__ import annotations

import threading

import pytest

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.remote import remote_runtime
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.exception import (
    ActorDiedError,
    SchedulerError,
    TaskCancelledError,
    UnknownItemError,
)
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.runtime import wire
from tests.unit.client_api.actor_plane import Counter
from tests.unit.client_api.control_plane import until
from tests.unit.service.actor_service import ActorService, ready, runtime_of
from tests.unit.service.request_faults import Gate, RequestFaults

pytestmark = pytest.mark.usefixtures("leak_check")


# ---- cancelled


def test_one_that_waits_for_an_argument_never_leaves(service: ActorService, actor: ActorHandle) -> None:
    first = actor.add.remote(1)
    second, third = actor.add.remote(first), actor.add.remote(3)
    second.cancel()
    with pytest.raises(TaskCancelledError, match="before it was sent"):
        second.result(60)
    assert [call.task_id for call in service.sent(2)] == [first.id, third.id]


def test_one_whose_arguments_are_being_uploaded_never_leaves(
    service: ActorService, actor: ActorHandle, requests: RequestFaults
) -> None:
    gate = Gate()
    requests.once("/api/v1/blobs/", gate)
    first, second = actor.add.remote("x" * (2 * wire.INLINE_BYTES)), actor.add.remote(2)
    assert gate.reached.wait(60)
    first.cancel()
    assert first.state is TaskState.CANCELLED
    gate.open()
    assert [call.task_id for call in service.sent(1)] == [second.id]
    until(lambda: actor._rmcs_calls.unanswered == 1)
    assert all(one["id"] != first.id for batch in requests.posts() for one in batch)


def test_one_that_is_on_its_way_is_cancelled_when_it_is_there(
    service: ActorService, actor: ActorHandle, requests: RequestFaults
) -> None:
    gate = Gate()
    requests.once("/api/v1/calls", gate)
    call = actor.add.remote(1)
    assert gate.reached.wait(60)
    call.cancel(force=True)
    gate.open()
    with pytest.raises(TaskCancelledError):
        call.result(60)
    assert service.link.cancelled == [(call.id, 1, True)]


def test_one_that_the_service_passed_on(service: ActorService, scheduler: UnifiedScheduler, actor: ActorHandle) -> None:
    call = actor.add.remote(1)
    service.sent(1)
    until(lambda: runtime_of(scheduler).calls.open()[0].taken)
    scheduler.cancel(call.id)
    with pytest.raises(TaskCancelledError):
        call.result(60)
    scheduler.cancel(call.id)


# ---- explained, by handle and by id


def test_a_call_is_explained_also_by_its_id(
    service: ActorService, scheduler: UnifiedScheduler, actor: ActorHandle
) -> None:
    call = actor.add.remote(1)
    behind = actor.add.remote(call)
    service.sent(1)
    assert scheduler.explain(call.id)["code"] == call.explain()["code"] == "SENT"
    assert scheduler.explain(behind.id)["code"] == "WAITS"
    service.answer(call.id, 1)
    call.result(60)
    assert call.explain()["code"] == "ANSWERED"
    assert scheduler.explain(call.id)["code"] == "ANSWERED"
    with pytest.raises(UnknownItemError):
        scheduler.explain(f"{call.id}999")


# ---- the end


def test_an_actor_that_is_over_takes_no_calls(
    service: ActorService, scheduler: UnifiedScheduler, actor: ActorHandle, requests: RequestFaults
) -> None:
    actor.kill()
    until(lambda: actor.state is TaskState.CANCELLED)
    with pytest.raises(ActorDiedError, match="was killed"):
        actor.add.remote(1).result(60)


@pytest.mark.parametrize("away", [False, True])
def test_shutdown_answers_every_call(service: ActorService, away: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = UnifiedScheduler(address=service.address)
    actors = [ready(scheduler.submit_actor_async(Counter)) for _ in range(3)]
    sent = actors[0].add.remote(1)
    waits = actors[0].add.remote(sent)
    service.sent(1)
    if away:
        monkeypatch.setattr(remote_runtime, "END_TIMEOUT_S", 0.2)
        service.stop()
    ended = threading.Thread(target=scheduler.shutdown)
    ended.start()
    ended.join(60)
    assert not ended.is_alive()
    for call in (sent, waits):
        with pytest.raises(TaskCancelledError, match="its program has ended"):
            call.result(0)
    with pytest.raises(SchedulerError, match="was shut down"):
        actors[0].add.remote(1)
    if not away:
        until(lambda: {one.task_id for one in service.plane.cancelled} == {actor.id for actor in actors})


def test_drain_waits_for_calls_and_not_for_actors(service: ActorService) -> None:
    scheduler = UnifiedScheduler(address=service.address)
    actor = ready(scheduler.submit_actor_async(Counter))
    call = actor.add.remote(1)
    service.sent(1)
    ended = threading.Thread(target=lambda: scheduler.shutdown(drain=True))
    ended.start()
    assert not call.done()
    service.answer(call.id, 5)
    ended.join(60)
    assert not ended.is_alive()
    assert call.result(0) == 5


def test_in_the_child_of_a_fork_nothing_is_called(
    scheduler: UnifiedScheduler, actor: ActorHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = runtime_of(scheduler)
    monkeypatch.setattr(runtime, "_process", -1)
    with pytest.raises(SchedulerError, match="forked from"):
        actor.add.remote(1)
    assert runtime.calls.open() == []
