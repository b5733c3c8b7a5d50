"""ActorPool: what users of ray.util.ActorPool expect, and what happens when an actor dies."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.executor.actor_pool import ActorPool
from ray_multicluster_scheduler.common.exception import (
    ActorDiedError,
    ConfigurationError,
    RemoteTraceback,
    TaskSubmissionError,
    TaskTimeoutError,
)
from ray_multicluster_scheduler.common.model import TaskState
from tests.unit.client_api.control_plane import until


class Call:
    """A handle as an actor's method returns it: completed on another thread."""

    def __init__(self) -> None:
        self.future: Future[Any] = Future()

    def done(self) -> bool:
        return self.future.done()

    def result(self, timeout: float | None = None) -> Any:
        return self.future.result(timeout)

    def add_done_callback(self, callback: Callable[[Call], object]) -> None:
        self.future.add_done_callback(lambda _: threading.Thread(target=callback, args=(self,)).start())


class Method:
    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def remote(self, value: Any) -> Call:
        call = Call()
        self._actor.calls.put((call, value))
        return call


class Actor:
    """Doubles numbers, one after another, on a thread; "die" ends it; an Event is waited for."""

    def __init__(self, name: str) -> None:
        self.name, self.state = name, TaskState.RUNNING
        self.seen: list[Any] = []
        self.calls: queue.SimpleQueue[tuple[Call, Any] | None] = queue.SimpleQueue()
        self.double = Method(self)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while (order := self.calls.get()) is not None:
            call, value = order
            self.seen.append(value)
            if value == "die":
                self.state = TaskState.FAILED
                call.future.set_exception(ActorDiedError(f"{self.name} died"))
                return
            if isinstance(value, threading.Event):
                value.wait(20)
                value = 21
            try:
                call.future.set_result(value * 2 if value is not None else 1 / 0)
            except ZeroDivisionError as error:
                call.future.set_exception(error)

    def end(self) -> None:
        self.state = TaskState.CANCELLED
        self.calls.put(None)
        self._thread.join()

    def __repr__(self) -> str:
        return f"<Actor {self.name}>"


@pytest.fixture
def make() -> Iterator[Callable[[], Actor]]:
    made: list[Actor] = []
    numbers = itertools.count(1)

    def one() -> Actor:
        made.append(Actor(f"a{next(numbers)}"))
        return made[-1]

    yield one
    for actor in made:
        actor.end()


def double(actor: Actor, value: Any) -> Call:
    return actor.double.remote(value)


def test_map_in_order(make: Callable[[], Actor]) -> None:
    first, second = make(), make()
    pool = ActorPool([first, second])
    assert list(pool.map(double, range(50))) == [2 * x for x in range(50)]
    assert sorted(first.seen + second.seen) == list(range(50))
    assert first.seen
    assert second.seen


def test_map_unordered_gives_what_is_there(make: Callable[[], Actor]) -> None:
    pool = ActorPool([make(), make()])
    slow = threading.Event()
    results = pool.map_unordered(double, [slow, 1, 2, 3])
    assert sorted(next(results) for _ in range(3)) == [2, 4, 6]
    slow.set()
    assert list(results) == [42]


def test_an_actor_does_one_thing_at_a_time(make: Callable[[], Actor]) -> None:
    actor, slow = make(), threading.Event()
    pool = ActorPool([actor])
    pool.submit(double, slow)
    pool.submit(double, 1)
    until(lambda: len(actor.seen) == 1)
    assert actor.calls.empty(), "the second call waits here, not there"
    assert not pool.has_free()
    slow.set()
    assert [pool.get_next(), pool.get_next()] == [42, 2]


def test_an_actor_goes_on_though_nobody_reads(make: Callable[[], Actor]) -> None:
    actor = make()
    pool = ActorPool([actor])
    for value in range(5):
        pool.submit(double, value)
    until(lambda: actor.seen == [0, 1, 2, 3, 4])
    assert [pool.get_next() for _ in range(5)] == [0, 2, 4, 6, 8]


def test_get_next_without_pending_results(make: Callable[[], Actor]) -> None:
    pool = ActorPool([make()])
    assert not pool.has_next()
    for get in (pool.get_next, pool.get_next_unordered):
        with pytest.raises(StopIteration, match="No more results"):
            get()
    pool.submit(double, 1)
    assert pool.has_next()
    assert pool.get_next() == 2
    assert not pool.has_next()


def test_an_error_is_raised_at_its_turn_and_the_actor_goes_on(make: Callable[[], Actor]) -> None:
    pool = ActorPool([make()])
    results = pool.map(double, [1, None, 3])
    assert next(results) == 2
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert next(results) == 6
    assert list(results) == []


@pytest.mark.parametrize("unordered", [False, True])
def test_a_stop_iteration_of_a_call_does_not_end_the_map(make: Callable[[], Actor], unordered: bool) -> None:
    pool = ActorPool([make()])

    def stop_at_two(actor: Actor, value: int) -> Call:
        call = actor.double.remote(value)
        if value == 2:
            call = Call()
            call.future.set_exception(StopIteration("mine"))
        return call

    results = (pool.map_unordered if unordered else pool.map)(stop_at_two, [1, 2, 3])
    assert next(results) == 2
    with pytest.raises(RuntimeError, match="a call of the actor pool raised StopIteration") as caught:
        next(results)
    assert isinstance(caught.value.__cause__, StopIteration)
    assert list(results) == [6]


@pytest.mark.parametrize("wrong", [5, None, "actors"])
def test_only_lists_of_actors(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"ActorPool\(\["):
        ActorPool(wrong)


@pytest.mark.parametrize("unordered", [False, True])
def test_timeout(make: Callable[[], Actor], unordered: bool) -> None:
    pool, slow = ActorPool([make()]), threading.Event()
    get = pool.get_next_unordered if unordered else pool.get_next
    pool.submit(double, slow)
    with pytest.raises(TaskTimeoutError, match="0.02 s"):
        get(timeout=0.02)
    assert pool.has_next()
    slow.set()
    assert get(timeout=60) == 42


@pytest.mark.parametrize("unordered", [False, True])
def test_ignored_result_after_timeout(make: Callable[[], Actor], unordered: bool) -> None:
    pool, slow = ActorPool([make()]), threading.Event()
    get = pool.get_next_unordered if unordered else pool.get_next
    pool.submit(double, slow)
    pool.submit(double, 1)
    with pytest.raises(TimeoutError, match="ignore_if_timedout"):
        get(timeout=0.02, ignore_if_timedout=True)
    slow.set()
    assert get(timeout=60) == 2
    assert not pool.has_next()


def test_a_waiting_call_that_is_ignored_is_not_made(make: Callable[[], Actor]) -> None:
    actor, slow = make(), threading.Event()
    pool = ActorPool([actor])
    for value in (slow, 1, 2):
        pool.submit(double, value)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            pool.get_next(timeout=0, ignore_if_timedout=True)
    slow.set()
    assert pool.get_next() == 4
    assert actor.seen == [slow, 2]


def test_map_forgets_what_was_submitted_before(make: Callable[[], Actor]) -> None:
    actor, slow = make(), threading.Event()
    pool = ActorPool([actor])
    for value in (slow, 7):
        pool.submit(double, value)
    until(lambda: actor.seen == [slow])
    results = pool.map(double, [1, 2])
    slow.set()
    assert list(results) == [2, 4]
    assert actor.seen == [slow, 1, 2]


def test_idle_actors_come_and_go(make: Callable[[], Actor]) -> None:
    first, second = make(), make()
    pool = ActorPool([first])
    assert pool.has_free()
    assert pool.pop_idle() is first
    assert not pool.has_free()
    assert pool.pop_idle() is None
    pool.submit(double, 4)
    pool.push(second)
    assert pool.get_next(10) == 8
    with pytest.raises(ValueError, match="belongs to this ActorPool"):
        pool.push(second)


def test_a_pool_without_actors_says_so(make: Callable[[], Actor]) -> None:
    pool: ActorPool[Actor] = ActorPool([])
    pool.submit(double, 1)
    with pytest.raises(ConfigurationError, match="no actor"):
        pool.get_next()
    pool.push(make())
    assert pool.get_next(10) == 2


def check_that_a_dead_actor_is_not_used(first: Actor, second: Actor) -> None:
    """The first one dies in its first call; the second one makes all others."""
    pool, slow = ActorPool([first, second]), threading.Event()
    for value in ("die", slow, 1, 2):
        pool.submit(double, value)
    with pytest.raises(ActorDiedError, match="died"):
        pool.get_next(10)
    slow.set()
    assert [pool.get_next(10) for _ in range(3)] == [42, 2, 4]
    assert first.seen == ["die"]
    assert pool.pop_idle() is second
    assert pool.pop_idle() is None


def test_an_actor_that_died_is_not_used_again(make: Callable[[], Actor]) -> None:
    check_that_a_dead_actor_is_not_used(make(), make())


def test_an_idle_actor_that_ended_is_not_used(make: Callable[[], Actor]) -> None:
    first, second = make(), make()
    pool = ActorPool([first, second])
    first.end()
    assert list(pool.map(double, range(4))) == [0, 2, 4, 6]
    assert first.seen == []


def test_error_when_no_actor_is_left(make: Callable[[], Actor]) -> None:
    pool = ActorPool([make(), make()])
    results = pool.map(double, ["die", "die", 1, 2])
    errors = []
    for _ in range(4):
        with pytest.raises(ActorDiedError) as caught:
            next(results)
        errors.append(str(caught.value))
    assert all("died" in error for error in errors[:2])
    assert all("<Actor a" in error for error in errors[2:])
    pool.submit(double, 3)
    with pytest.raises(ActorDiedError, match="push"):
        pool.get_next(10)
    pool.push(make())
    pool.submit(double, 3)
    assert pool.get_next(10) == 6


class Hesitating(ActorPool[Actor]):
    """Between the end of a call and what follows from it there is time to look."""

    go_on: threading.Event

    def _give_out(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.go_on.wait(20)
        super()._give_out()


def test_who_reads_just_when_the_last_one_died_hears_of_that(make: Callable[[], Actor]) -> None:
    pool = Hesitating([make()])
    pool.go_on = threading.Event()
    pool.submit(double, "die")
    pool.submit(double, 1)
    with pytest.raises(ActorDiedError, match="died"):
        pool.get_next(10)
    until(lambda: not pool._busy)
    threading.Timer(0.1, pool.go_on.set).start()
    with pytest.raises(ActorDiedError, match="push"):
        pool.get_next(10)


class TestInterrupts:
    """Ctrl+C while the caller's function runs on the caller's thread."""

    def test_the_caller_gets_it_and_the_actor_is_free_again(self, make: Callable[[], Actor]) -> None:
        actor = make()
        pool = ActorPool([actor])

        def interrupted(_: Actor, value: object) -> Call:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            pool.submit(interrupted, 1)
        with pytest.raises(TaskSubmissionError, match="KeyboardInterrupt"):
            pool.get_next(10)
        pool.submit(double, 4)
        assert pool.get_next(10) == 8
        until(pool.has_free)
        assert pool.pop_idle() is actor
        assert pool.pop_idle() is None

    def test_a_call_that_was_made_goes_on_and_its_actor_is_freed_once(self, make: Callable[[], Actor]) -> None:
        actor, slow = make(), threading.Event()
        pool = ActorPool([actor])

        class Interrupted(Call):
            times = 0

            def add_done_callback(self, callback: Callable[[Call], object]) -> None:
                super().add_done_callback(callback)
                self.times += 1
                if self.times == 1:
                    raise KeyboardInterrupt

        def call(actor: Actor, value: Any) -> Call:
            made = Interrupted()
            actor.calls.put((made, value))
            return made

        with pytest.raises(KeyboardInterrupt):
            pool.submit(call, slow)
        pool.submit(double, 1)
        assert pool._busy == [actor], "it is not given a second call"
        assert not pool.has_free()
        slow.set()
        assert [pool.get_next(10), pool.get_next(10)] == [42, 2]
        until(pool.has_free)
        assert list(pool._idle) == [actor]

    @pytest.mark.filterwarnings("ignore:Exception in thread rmcs-actor-pool")
    def test_on_the_thread_of_the_pool_others_go_on(self, make: Callable[[], Actor]) -> None:
        """A function that asks for the end of the interpreter ends its own call only."""
        actor, slow = make(), threading.Event()
        pool = ActorPool([actor])

        def leave(_: Actor, value: object) -> Call:
            raise SystemExit(value)

        pool.submit(double, slow)
        pool.submit(leave, 3)
        pool.submit(double, 2)
        slow.set()
        assert pool.get_next(10) == 42
        with pytest.raises(TaskSubmissionError, match="SystemExit"):
            pool.get_next(10)
        assert pool.get_next(10) == 4


def test_many_that_wait_and_fail_need_no_deeper_stack(make: Callable[[], Actor]) -> None:
    pool, slow = ActorPool([make()]), threading.Event()
    pool.submit(double, slow)
    for _ in range(2_000):
        pool.submit(lambda actor, value: 1 / value, 0)
    slow.set()
    assert pool.get_next(10) == 42
    for _ in range(2_000):
        with pytest.raises(ZeroDivisionError):
            pool.get_next(10)


def test_a_function_that_raises_or_returns_no_handle(make: Callable[[], Actor]) -> None:
    pool = ActorPool([make()])
    pool.submit(lambda actor, value: 1 / value, 0)
    pool.submit(lambda actor, value: value, 5)  # type: ignore[arg-type, return-value]
    pool.submit(double, 5)
    with pytest.raises(ZeroDivisionError):
        pool.get_next(10)
    with pytest.raises(ConfigurationError, match=r"returned 5, which is not a handle.*\.remote\(\)"):
        pool.get_next(10)
    assert pool.get_next(10) == 10


def test_from_many_threads(make: Callable[[], Actor]) -> None:
    pool = ActorPool([make() for _ in range(3)])
    got: queue.SimpleQueue[int] = queue.SimpleQueue()

    def work(base: int) -> None:
        for value in range(base, base + 50):
            pool.submit(double, value)
            got.put(pool.get_next_unordered(10))

    threads = [threading.Thread(target=work, args=(base,)) for base in (0, 50, 100, 150)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got.get_nowait() for _ in range(200)) == [2 * value for value in range(200)]
    until(pool.has_free)
    assert {pool.pop_idle() is not None for _ in range(3)} == {True}
    assert pool.pop_idle() is None


class Inside(Actor):
    """As the handle of an actor inside a cluster, where each look at its state is a call of the actor."""

    _rmcs_actor_handle = True
    looked = 0

    @property  # type: ignore[override]
    def state(self) -> TaskState:
        Inside.looked += 1
        return TaskState.RUNNING

    @state.setter
    def state(self, _: TaskState) -> None:
        pass


class TestInsideACluster:
    def test_nobody_is_asked_and_the_dead_get_no_second_call(self) -> None:
        Inside.looked = 0
        first, second = Inside("one"), Inside("two")
        try:
            check_that_a_dead_actor_is_not_used(first, second)
            assert Inside.looked == 0
        finally:
            second.end()

    @pytest.mark.parametrize(
        "cause", [RemoteTraceback("of another actor"), type("ActorUnavailableError", (Exception,), {})()]
    )
    def test_an_error_that_proves_no_death(self, make: Callable[[], Actor], cause: BaseException) -> None:
        actor = make()
        pool = ActorPool([actor])
        error = ActorDiedError("somebody died")
        error.__cause__ = cause

        def fail(_: Actor, value: object) -> Call:
            call = Call()
            call.future.set_exception(error)
            return call

        pool.submit(fail, 1)
        with pytest.raises(ActorDiedError, match="somebody"):
            pool.get_next(10)
        assert pool.pop_idle() is actor
