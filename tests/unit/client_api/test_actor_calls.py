"""Calls of an actor's methods: in order, once, and every one of them is answered."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.handles.handle import Handle
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import (
    ActorDiedError,
    ClusterLostError,
    TaskSubmissionError,
    TaskTimeoutError,
)
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.common.object_argument import ObjectArgument
from ray_multicluster_scheduler.control_plane.runtime.actor_calls import MAX_UNANSWERED
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import Call
from tests.unit.client_api.actor_plane import ActorPlane, Counter, numbers


def first_arguments(calls: list[Call]) -> list[Any]:
    return [pickling.loads(call.arguments)[0][0] for call in calls]


class TestOrder:
    def test_calls_leave_in_the_order_they_were_made(self, plane: ActorPlane) -> None:
        actor = plane.actor()
        handles = [actor.add.remote(n) for n in range(1200)]
        plane.sent(1000)
        plane.answer_all()
        calls = plane.sent(1200)
        assert first_arguments(calls) == list(range(1200))
        assert numbers(calls) == list(range(1200))
        assert [call.task_id for call in calls] == [handle.id for handle in handles]
        method = calls[7].method
        assert method is not None
        assert (method.actor_id, method.actor_attempt, method.method) == (actor.id, 1, "add")

    def test_each_thread_keeps_its_own_order(self, plane: ActorPlane) -> None:
        actor = plane.actor()

        def make(worker: int) -> None:
            for n in range(100):
                actor.add.remote((worker, n))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(make, range(4)))
        calls = plane.sent(400)
        assert numbers(calls) == list(range(400))
        for worker in range(4):
            assert [n for who, n in first_arguments(calls) if who == worker] == list(range(100))

    def test_calls_wait_until_it_is_ready(self, slow: ActorPlane) -> None:
        actor = slow.actor()
        handles = [actor.add.remote(n) for n in range(3)]
        slow.settle()
        assert slow.link.calls == []
        assert handles[2].explain()["sentence"] == "waits for the actor, which is DISPATCHING"
        slow.start(actor)
        assert numbers(slow.sent(3)) == [0, 1, 2]

    def test_two_actors_have_numbers_of_their_own(self, plane: ActorPlane) -> None:
        one, other = plane.actor(), plane.actor()
        for _ in range(2):
            one.add.remote()
            other.add.remote()
        calls = plane.sent(4)
        for actor in (one, other):
            mine = [call.method.number for call in calls if call.method and call.method.actor_id == actor.id]
            assert mine == [0, 1]

    def test_so_many_are_unanswered_at_most(self, plane: ActorPlane) -> None:
        actor = plane.actor()
        handles = [actor.add.remote(n) for n in range(MAX_UNANSWERED + 10)]
        assert len(plane.sent(MAX_UNANSWERED)) == MAX_UNANSWERED
        assert handles[-1].state is TaskState.QUEUED
        explanation = handles[-1].explain()
        assert (explanation["calls_before"], explanation["sentence"]) == (
            MAX_UNANSWERED + 9,
            f"waits for its turn; {MAX_UNANSWERED} calls are with the actor",
        )
        for call in plane.link.calls[:4]:
            plane.answer(call.task_id)
        assert len(plane.sent(MAX_UNANSWERED + 4)) == MAX_UNANSWERED + 4

    @pytest.mark.parametrize(
        ("concurrency", "asynchronous", "most"),
        [(None, False, 1000), (400, False, 1000), (700, False, 1400), (None, True, 2000), (5000, True, 10_000)],
    )
    def test_more_for_one_that_runs_more_at_once(
        self, plane: ActorPlane, concurrency: int | None, asynchronous: bool, most: int
    ) -> None:
        """Else calls that wait for others would keep those from ever being sent."""

        class Waiting:
            async def meet(self) -> None: ...

        options = {} if concurrency is None else {"max_concurrency": concurrency}
        assert plane.actor(Waiting if asynchronous else Counter, **options)._rmcs_calls.max_unanswered == most

    def test_also_those_that_are_sent(self, plane: ActorPlane) -> None:
        actor = plane.actor(max_concurrency=600)
        for n in range(1300):
            actor.add.remote(n)
        assert len(plane.sent(1200)) == 1200

    def test_one_that_was_found_may_be_asynchronous(self, plane: ActorPlane) -> None:
        found = plane.actors._adopt("tally", "mac", {})
        assert found._rmcs_calls.max_unanswered == 2000

    def test_wait_reason_can_be_queried_during_other_calls(self, slow: ActorPlane) -> None:
        actor = slow.actor()
        handles = [actor.add.remote(n) for n in range(5000)]
        over = threading.Event()

        def go_on() -> None:
            while not over.is_set():
                actor.add.remote(1)

        thread, before = threading.Thread(target=go_on), sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        thread.start()
        try:
            assert {handles[-1].explain()["calls_before"] for _ in range(50)} == {4999}
        finally:
            sys.setswitchinterval(before)
            over.set()
            thread.join()


class TestArguments:
    def test_one_without_a_value_holds_back_the_later_ones(self, plane: ActorPlane) -> None:
        actor, task = plane.actor(), plane.task("t1")
        first = actor.add.remote(task)
        second = actor.add.remote(2)
        plane.settle()
        assert plane.link.calls == []
        assert (first.state, second.state) == (TaskState.PENDING, TaskState.QUEUED)
        assert first.explain()["sentence"] == "waits for its argument t1"
        assert second.explain()["sentence"] == f"waits for {first.id} before it, which waits for its argument t1"
        plane.finish(task)
        calls = plane.sent(2)
        assert numbers(calls) == [0, 1]
        assert pickling.loads(calls[0].arguments) == ((ObjectArgument(0),), {})
        assert [pickling.loads(one.data) for one in calls[0].objects] == [None]

    def test_one_that_fails_leaves_no_hole(self, plane: ActorPlane) -> None:
        actor, task = plane.actor(), plane.task("t1")
        lost = actor.add.remote(task)
        later = actor.add.remote(2)
        plane.fail(task)
        calls = plane.sent(1)
        assert (calls[0].task_id, numbers(calls)) == (later.id, [0])
        error = lost.exception(5)
        assert isinstance(error, Exception)
        assert lost.state is TaskState.FAILED

    def test_the_answer_of_one_call_is_the_argument_of_the_next(self, plane: ActorPlane) -> None:
        actor = plane.actor()
        first = actor.add.remote(1)
        second = actor.add.remote(first)
        plane.sent(1)
        plane.answer(first.id, 41)
        calls = plane.sent(2)
        assert calls[1].task_id == second.id
        assert [pickling.loads(one.data) for one in calls[1].objects] == [41]

    def test_unpicklable_argument_is_rejected_at_once(self, plane: ActorPlane) -> None:
        actor = plane.actor()
        with pytest.raises(TaskSubmissionError, match=r"argument 0 of Counter\.add, a lock, cannot be pickled"):
            actor.add.remote(threading.Lock())
        actor.add.remote(1)
        assert numbers(plane.sent(1)) == [0]

    def test_paths_under_a_home_follow_the_call(self, plane: ActorPlane) -> None:
        actor = plane.actor()
        plane.runtime.method_calls.home_of = lambda cluster: "/Users/alice"
        actor.add.remote(str(Path.home() / "data.csv"))
        actor.add.remote("no path")
        moved, plain = plane.sent(2)
        assert (moved.target_home, str(Path.home()) in moved.homes) == ("/Users/alice", True)
        assert (plain.target_home, plain.homes) == (None, ())

    def test_an_actor_of_another_cluster_is_refused(self, slow: ActorPlane) -> None:
        actor = slow.actor()
        wrong, right = actor.add.remote(1), actor.add.remote(2)
        wrong._item.pinned = "linux"  # as if it had been given an actor that lives there
        slow.start(actor)
        with pytest.raises(TaskSubmissionError, match=f"on linux, but actor {actor.id} .* on mac"):
            wrong.result(60)
        calls = slow.sent(1)
        assert ([call.task_id for call in calls], numbers(calls)) == ([right.id], [0])

    def test_an_actor_of_the_same_cluster_goes_along(self, slow: ActorPlane) -> None:
        actor, other = slow.actor(), slow.actor()
        slow.start(actor)
        handle = actor.add.remote([other])
        slow.settle()
        assert slow.link.calls == []
        assert handle.explain()["sentence"] == f"waits for its argument actor {other.id}"
        slow.start(other)
        assert slow.sent(1)[0].task_id == handle.id


class TestAnswers:
    def test_value(self, plane: ActorPlane) -> None:
        handle = plane.actor().add.remote(1)
        plane.sent(1)
        assert (handle.state, handle.cluster, handle.attempt, handle.done()) == (
            TaskState.DISPATCHING,
            "mac",
            1,
            False,
        )
        plane.answer(handle.id, [1, 2])
        assert handle.result(60) == [1, 2]
        assert (handle.state, handle.accepted()) == (TaskState.SUCCEEDED, True)

    def test_the_users_exception_comes_back_as_itself(self, plane: ActorPlane) -> None:
        handle = plane.actor().add.remote(1)
        plane.sent(1)
        plane.fail_call(handle.id, FailureClass.USER, payload=pickling.dumps(ValueError("bad")), traceback="there")
        with pytest.raises(ValueError, match="bad") as caught:
            handle.result(60)
        assert "there" in str(caught.value.__cause__)

    @pytest.mark.parametrize(
        ("failure", "kind"),
        [
            (FailureClass.CRASH, ActorDiedError),
            (FailureClass.CLUSTER, ClusterLostError),
            (FailureClass.PERMANENT, TaskSubmissionError),
        ],
    )
    def test_other_failures_say_whose_they_are(self, plane: ActorPlane, failure: Any, kind: type[Exception]) -> None:
        actor = plane.actor()
        handle = actor.add.remote(1)
        plane.sent(1)
        plane.fail_call(handle.id, failure, message="it went wrong")
        with pytest.raises(kind, match=rf"Counter\.add .* by actor {actor.id} on mac: it went wrong"):
            handle.result(60)

    def test_a_call_that_was_ended_with_its_actor_is_not_called_cancelled(self, plane: ActorPlane) -> None:
        handle = plane.actor().add.remote(1)
        plane.sent(1)
        plane.runtime.call_and_wait(lambda: plane.link.cancel(handle.id, 1, force=True))  # nobody asked for it here
        with pytest.raises(ActorDiedError):
            handle.result(60)

    def test_a_time_out_says_why_it_waits(self, slow: ActorPlane) -> None:
        handle = slow.actor().add.remote(1)
        with pytest.raises(TaskTimeoutError, match="QUEUED: waits for the actor, which is DISPATCHING"):
            handle.result(0.01)

    async def test_await_and_callbacks(self, plane: ActorPlane) -> None:
        handle = plane.actor().add.remote(1)
        reported = threading.Event()
        handle.add_done_callback(lambda one: reported.set() if one is handle else None)
        plane.sent(1)
        plane.answer(handle.id, 5)
        assert await handle == 5
        assert reported.wait(60)

    def test_several_values(self, plane: ActorPlane) -> None:
        actor = plane.actor()
        one, two = actor.pair.options(num_returns=2).remote()
        plane.sent(1)
        plane.answer(one.id.removesuffix(".0"), (1, 2))
        assert (one.result(60), two.result(60)) == (1, 2)
        assert isinstance(one, Handle)
        assert one.explain()["kind"] == "call"
        assert actor.add.options(num_returns=0).remote() is None

    def test_the_actor_knows_how_many_values_are_expected(self, plane: ActorPlane) -> None:
        actor = plane.actor()
        for number in (1, 2, 0):
            actor.pair.options(num_returns=number).remote()
        assert [pickling.loads(call.arguments)[2:] for call in plane.sent(3)] == [(), (2,), (0,)]

    def test_output_is_the_actors(self, plane: ActorPlane) -> None:
        actor = plane.actor()
        handle = actor.add.remote(1)
        plane.runtime.output.write(actor.id, 1, "stdout", "hello")
        assert handle.logs() == actor.logs() == "hello"
