"""ActorPool and the deaths of its actors, over a control plane without clusters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.executor.actor_pool import ActorPool
from ray_multicluster_scheduler.app.client_api.executor.handle_status import on_restart_or_end
from ray_multicluster_scheduler.common.exception import ActorDiedError
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from tests.unit.client_api.actor_plane import ActorPlane
from tests.unit.client_api.control_plane import until


class Stateful:
    """Has a method that hides what the handle tells of itself."""

    def state(self) -> str:
        return "my own"

    def add(self, amount: int = 1) -> int:
        return amount


def add(actor: ActorHandle, value: int) -> Any:
    return actor.add.remote(value)


def actors_of(plane: ActorPlane) -> list[str]:
    """Whom the calls that left were for."""
    plane.settle()
    return [call.method.actor_id for call in plane.link.calls if call.method is not None]


class TestDeathsOfOurActors:
    def test_a_method_called_state_hides_nothing(self) -> None:
        with ActorPlane() as plane:
            dead, alive = plane.actor(Stateful), plane.actor(Stateful)
            pool = ActorPool([dead, alive])
            plane.die(dead)
            until(dead._item.done)
            assert pool.pop_idle() is alive
            assert pool.pop_idle() is None

    def test_the_death_is_known_from_the_call(self) -> None:
        """Before the control plane hears of the actor's end, its call says it."""
        with ActorPlane() as plane:
            first, second = plane.actor(), plane.actor()
            pool = ActorPool([first, second])
            for value in range(4):
                pool.submit(add, value)
            calls = plane.sent(2)
            plane.fail_call(calls[0].task_id, FailureClass.CRASH, code="ACTOR_DIED", message="is dead")
            with pytest.raises(ActorDiedError):
                pool.get_next(10)
            for number in (1, 2, 3):
                plane.answer(plane.sent(number + 1)[number].task_id, number)
                assert pool.get_next(10) == number
            assert first._item.state is TaskState.RUNNING
            assert actors_of(plane) == [first._item.id, *[second._item.id] * 3]

    def test_the_last_one_leaves_nobody(self) -> None:
        with ActorPlane() as plane:
            pool = ActorPool([plane.actor()])
            results = pool.map(add, [1, 2])
            plane.fail_call(plane.sent(1)[0].task_id, FailureClass.CRASH, code="ACTOR_DIED")
            with pytest.raises(ActorDiedError):
                next(results)
            with pytest.raises(ActorDiedError, match="push"):
                next(results)

    def test_one_that_is_restarted_gets_no_call_before_that(self) -> None:
        with ActorPlane() as plane:
            actor = plane.actor(max_restarts=1)
            pool = ActorPool([actor])
            results = pool.map(add, [1, 2])
            plane.fail_call(plane.sent(1)[0].task_id, FailureClass.CRASH, code="ACTOR_DIED")
            with pytest.raises(ActorDiedError):
                next(results)
            plane.settle()
            assert len(plane.link.calls) == 1, "nothing goes to the dead"
            plane.die(actor)
            second = plane.sent(2)[1]
            assert second.method is not None
            assert second.method.actor_attempt == 2
            plane.answer(second.task_id, 5)
            assert next(results) == 5

    def test_one_that_is_restarted_for_the_last_time(self) -> None:
        with ActorPlane() as plane:
            actor = plane.actor(max_restarts=1)
            pool = ActorPool([actor])
            results = pool.map(add, [1, 2, 3])
            for attempt in (1, 2):
                call = plane.sent(attempt)[attempt - 1]
                plane.fail_call(call.task_id, FailureClass.CRASH, code="ACTOR_DIED")
                plane.die(actor, attempt)
                with pytest.raises(ActorDiedError):
                    next(results)
            with pytest.raises(ActorDiedError, match="push"):
                next(results)

    def test_while_one_is_restarted_the_others_do_its_work(self) -> None:
        with ActorPlane() as plane:
            first, second = plane.actor(max_restarts=1), plane.actor()
            pool = ActorPool([first, second])
            results = pool.map(add, range(4))
            calls = list(plane.sent(2))
            plane.slow = True
            plane.fail_call(calls[0].task_id, FailureClass.CRASH, code="ACTOR_DIED")
            plane.die(first)
            until(lambda: first._item.state is TaskState.DISPATCHING)
            with pytest.raises(ActorDiedError):
                next(results)
            for number in (1, 2, 3):
                until(lambda number=number: len(plane.link.calls) > number)
                plane.answer(plane.link.calls[number].task_id, number)
                assert next(results) == number
            assert actors_of(plane) == [first._item.id, *[second._item.id] * 3]
            plane.start(first, 2)
            until(lambda: first in pool._idle)
            assert {pool.pop_idle(), pool.pop_idle()} == {first, second}

    def test_one_that_is_back_comes_back_once(self) -> None:
        """Reported on two threads at the same time, it must not be free while it works."""
        with ActorPlane() as plane:
            actor = plane.actor(max_restarts=1)
            plane.die(actor)
            until(lambda: (actor._item.state, actor._item.attempt) == (TaskState.RUNNING, 2))
            reported, item = [], actor._item
            watch_transitions = item.watch_transitions

            class Quick:
                """It takes a step just as a watcher is added."""

                def __getattr__(self, name: str) -> Any:
                    return getattr(item, name)

                def watch(self) -> None: ...

                def watch_transitions(self, tell: Callable[[Any], object]) -> None:
                    watch_transitions(tell)
                    tell(item)

            on_restart_or_end(SimpleNamespace(_item=Quick()), 1, lambda: reported.append(1))
            assert reported == [1]

    @pytest.mark.parametrize("code", ["RESULT_LOST", "ACTOR_UNAVAILABLE"])
    def test_other_failures_are_no_death(self, code: str) -> None:
        with ActorPlane() as plane:
            pool = ActorPool([plane.actor()])
            results = pool.map(add, [1, 2])
            plane.fail_call(plane.sent(1)[0].task_id, FailureClass.CRASH, code=code)
            with pytest.raises(ActorDiedError):
                next(results)
            plane.answer(plane.sent(2)[1].task_id, 7)
            assert next(results) == 7

    def test_slow_callbacks_of_users_stop_no_pool(self) -> None:
        let_go, begun = threading.Event(), threading.Semaphore(0)

        def block(_: object) -> None:
            begun.release()
            let_go.wait(20)

        with ActorPlane() as plane:
            actor = plane.actor()
            for number in range(2):
                actor.add.remote(number).add_done_callback(block)
            plane.sent(2)
            plane.answer_all()
            for _ in range(2):
                assert begun.acquire(timeout=60)
            pool = ActorPool([actor])
            pool.submit(add, 1)
            pool.submit(add, 2)
            for number in (0, 1):
                plane.answer(plane.sent(3 + number)[2 + number].task_id, number)
                assert pool.get_next(60) == number
            let_go.set()
