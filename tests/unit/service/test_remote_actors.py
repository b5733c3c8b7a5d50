"""Actors of a service, as one of its programs has them: calls arrive once, in order, whatever happens on their way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.remote import remote_calls
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.exception import (
    ActorDiedError,
    SchedulerError,
    ServiceUnavailableError,
    StoreFullError,
    UnknownItemError,
)
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.runtime import wire
from tests.unit.client_api.actor_plane import Counter
from tests.unit.client_api.control_plane import until
from tests.unit.service.actor_service import ActorService, runtime_of
from tests.unit.service.request_faults import (
    Gate,
    RequestFaults,
    answer_is_lost,
    it_is_refused,
    nonsense,
    nothing_arrives,
)

pytestmark = pytest.mark.usefixtures("leak_check")


def methods(service: ActorService) -> list[str]:
    return [call.task_id for call in service.link.calls]


# ---- on their way


def test_calls_are_sent_in_order_and_answered(service: ActorService, actor: ActorHandle) -> None:
    calls = [actor.add.remote(number) for number in range(700)]
    assert [call.task_id for call in service.sent(700)] == [call.id for call in calls]
    for number, call in enumerate(calls):
        service.answer(call.id, number)
    assert [call.result(60) for call in calls] == list(range(700))
    assert actor._rmcs_calls.unanswered == 0


def test_no_call_is_sent_before_its_actor_is_accepted(
    service: ActorService, scheduler: UnifiedScheduler, requests: RequestFaults
) -> None:
    gate = Gate()
    requests.once("/api/v1/items/batch", gate)
    actor = scheduler.submit_actor_async(Counter)
    assert gate.reached.wait(60)
    call = actor.add.remote(1)
    runtime_of(scheduler).run(asyncio.sleep(0))
    assert requests.posts() == []
    gate.open()
    service.sent(1)
    service.answer(call.id, 1)
    assert call.result(60) == 1


def test_nor_before_its_constructor_has_its_arguments(
    service: ActorService, scheduler: UnifiedScheduler, actor: ActorHandle
) -> None:
    """The answer to a call is an argument of the other actor: that is submitted when it is there."""
    first = actor.add.remote(1)
    late = scheduler.submit_actor_async(Counter, (first,))
    call = late.add.remote(2)
    service.sent(1)
    service.answer(first.id, 5)
    assert service.sent(2)[1].task_id == call.id
    service.answer(call.id, 7)
    assert call.result(60) == 7


def test_nor_before_an_actor_among_its_arguments(
    service: ActorService, scheduler: UnifiedScheduler, actor: ActorHandle
) -> None:
    first = actor.add.remote(1)
    late = scheduler.submit_actor_async(Counter, (first,))
    call = actor.add.remote(late)
    service.sent(1)
    service.answer(first.id, 5)
    assert service.sent(2)[1].task_id == call.id
    service.answer(call.id, 7)
    assert call.result(60) == 7


def test_calls_of_an_actor_that_was_never_accepted(
    service: ActorService, scheduler: UnifiedScheduler, actor: ActorHandle
) -> None:
    bad = actor.add.remote(1)
    late = scheduler.submit_actor_async(Counter, (bad,))
    call = late.add.remote(2)
    service.sent(1)
    service.on_loop(lambda: service.link.fail(bad.id))
    with pytest.raises(ActorDiedError, match=f"{late.id} has ended"):
        call.result(60)
    with pytest.raises(ActorDiedError, match=f"{late.id} has ended"):
        late.add.remote(2).result(60)


def test_an_answer_that_is_lost_makes_no_second_call(
    service: ActorService, actor: ActorHandle, requests: RequestFaults
) -> None:
    requests.once("/api/v1/calls", answer_is_lost)
    first, second = actor.add.remote(1), actor.add.remote(2)
    until(lambda: len(requests.posts()) >= 2 and second.id in methods(service))
    service.answer(first.id, 1)
    service.answer(second.id, 3)
    assert (first.result(60), second.result(60)) == (1, 3)
    assert methods(service) == [first.id, second.id]
    assert service.link.adopted_methods == []


def test_what_did_not_arrive_is_sent_again_in_its_order(
    service: ActorService, actor: ActorHandle, requests: RequestFaults
) -> None:
    requests.once("/api/v1/calls", nothing_arrives)
    requests.once("/api/v1/calls", it_is_refused)
    calls = [actor.add.remote(number) for number in range(5)]
    assert [call.task_id for call in service.sent(5)] == [call.id for call in calls]
    assert requests.posts()[-1][0]["first"] is False


def test_call_keeps_mailbox_of_its_submission(
    service: ActorService, scheduler: UnifiedScheduler, actor: ActorHandle, requests: RequestFaults
) -> None:
    """The service was started again while it was not known whether a call arrived: it must not run it anew."""
    runtime = runtime_of(scheduler)
    before = runtime.calls._mailbox

    async def another_mailbox_meanwhile(_: Callable[[], Awaitable[Any]]) -> Any:
        runtime.calls.set_mailbox("another")
        raise ServiceUnavailableError("no answer came") from TimeoutError()

    requests.once("/api/v1/calls", another_mailbox_meanwhile)
    actor.add.remote(1)
    until(lambda: len(requests.posts()) == 2)
    ((again,),) = requests.posts()[1:]
    assert before is not None
    assert (again["first"], again["mailbox"]) == (False, before)


def test_after_a_restart_its_calls_are_named_again(service: ActorService, actor: ActorHandle) -> None:
    calls = [actor.add.remote(1), actor.add.remote(2)]
    service.sent(2)
    service.restart()
    until(lambda: [one[0] for one in service.link.adopted_methods] == [call.id for call in calls])
    later = actor.add.remote(3)
    assert [call.task_id for call in service.sent(1)] == [later.id]
    for number, call in enumerate([*calls, later]):
        service.answer(call.id, number)
    assert [call.result(60) for call in [*calls, later]] == [0, 1, 2]


def test_answers_that_make_no_sense_end_the_calls_and_nothing_else(
    service: ActorService, actor: ActorHandle, requests: RequestFaults
) -> None:
    requests.once("/api/v1/calls", nonsense)
    with pytest.raises(SchedulerError, match="colour"):
        actor.add.remote(1).result(60)
    call = actor.add.remote(2)
    service.sent(1)
    service.answer(call.id, 2)
    assert call.result(60) == 2


# ---- what they carry


def test_large_arguments_and_answers(service: ActorService, actor: ActorHandle, requests: RequestFaults) -> None:
    large = "x" * (2 * wire.INLINE_BYTES)
    call = actor.add.remote(large)
    (sent,) = service.sent(1)
    assert len(sent.arguments) > len(large)
    service.answer(call.id, large)
    assert call.result(60) == large


def test_an_upload_that_is_refused_is_the_end_of_that_call_only(
    service: ActorService, actor: ActorHandle, requests: RequestFaults
) -> None:
    async def full(_: Callable[[], Awaitable[Any]]) -> Any:
        raise StoreFullError("there is no room")

    requests.once("/api/v1/blobs/", full)
    large, small = actor.add.remote("x" * (2 * wire.INLINE_BYTES)), actor.add.remote(1)
    assert service.sent(1)[0].task_id == small.id
    with pytest.raises(StoreFullError, match="no room"):
        large.result(60)


def test_what_the_service_forgot_is_sent_again_and_nothing_overtakes_it(
    service: ActorService, actor: ActorHandle, requests: RequestFaults
) -> None:
    large = "x" * (2 * wire.INLINE_BYTES)
    done = actor.add.remote(large)
    service.sent(1)
    service.answer(done.id)
    done.result(60)
    store = service.plane.store
    forgotten = store.blob
    (digest,) = [path.rpartition("/")[2] for method, path, _ in requests.seen if method == "PUT"]

    def blob(name: str) -> bytes | None:
        if name == digest and sum(1 for method, _, _ in requests.seen if method == "PUT") == 1:
            return None
        return forgotten(name)

    store.blob = blob  # type: ignore[method-assign]  # a slower one
    again, behind = actor.add.remote(large), actor.add.remote(1)
    assert [call.task_id for call in service.sent(3)[1:]] == [again.id, behind.id]


def test_a_batch_is_no_larger_than_the_service_takes(
    scheduler: UnifiedScheduler,
    service: ActorService,
    actor: ActorHandle,
    requests: RequestFaults,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_calls, "MAX_BYTES", 100_000)
    values = [scheduler.put(bytes([number]) * 30_000) for number in range(20)]
    for value in values:
        actor.add.remote(value)
    service.sent(20)
    assert max(map(len, requests.posts())) <= 4


def test_the_failure_of_an_argument(service: ActorService, actor: ActorHandle) -> None:
    first = actor.add.remote(1)
    second, third = actor.add.remote(first), actor.add.remote(3)
    service.sent(1)
    service.on_loop(lambda: service.link.fail(first.id, message="it burst"))
    with pytest.raises(SchedulerError, match="it burst"):
        second.result(60)
    assert service.sent(2)[1].task_id == third.id


def test_an_argument_whose_value_was_lost_ends_that_call_only(
    service: ActorService, actor: ActorHandle, scheduler: UnifiedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(path: str, **_: Any) -> bytes:
        raise UnknownItemError(f"{path} is not there")

    monkeypatch.setattr(runtime_of(scheduler)._client, "fetch", gone)
    first = actor.add.remote(1)
    second, third = actor.add.remote(first), actor.add.remote(3)
    service.sent(1)
    service.answer(first.id, "x" * (2 * wire.INLINE_BYTES))
    with pytest.raises(SchedulerError, match="was deleted"):
        second.result(60)
    assert service.sent(2)[1].task_id == third.id


# ---- items that wait for answers to calls


def test_items_that_need_one_which_waits_for_an_answer(
    service: ActorService, scheduler: UnifiedScheduler, actor: ActorHandle
) -> None:
    service.plane.works = True
    call = actor.add.remote(1)
    first = scheduler.submit_task_async(int, (call,))
    second = scheduler.submit_task_async(int, (first,))
    third = scheduler.submit_task_async(int, (5,), after=[second])
    service.sent(1)
    assert not first._item.accepted
    service.answer(call.id, 7)
    assert (first.result(60), second.result(60), third.result(60)) == (7, 7, 5)


def test_and_fail_with_it(service: ActorService, scheduler: UnifiedScheduler, actor: ActorHandle) -> None:
    call = actor.add.remote(1)
    first = scheduler.submit_task_async(int, (call,))
    second = scheduler.submit_task_async(int, (first,))
    service.sent(1)
    service.on_loop(lambda: service.link.fail(call.id, message="it burst"))
    for task in (first, second):
        with pytest.raises(SchedulerError, match="it burst"):
            task.result(60)


def test_one_that_waits_for_an_answer_is_cancelled_at_once(
    service: ActorService, scheduler: UnifiedScheduler, actor: ActorHandle
) -> None:
    call = actor.add.remote(1)
    task = scheduler.submit_task_async(int, (call,))
    task.cancel()
    assert task.state is TaskState.CANCELLED
    service.sent(1)
    service.answer(call.id, 7)
    assert call.result(60) == 7
    assert task.id not in [order.task_id for order in service.plane.placed]
