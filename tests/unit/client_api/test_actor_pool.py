"""ActorPool: what users of ray.util.ActorPool expect, and what happens when an actor dies."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.actor_pool import ActorPool
from ray_multicluster_scheduler.common.exception import ActorDiedError, ConfigurationError, TaskTimeoutError
from ray_multicluster_scheduler.common.model import TaskState
from tests.unit.client_api.control_plane import until


class Call:
    """A handle as an actor's method returns it: told on another thread."""

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


def test_nothing_to_get(make: Callable[[], Actor]) -> None:
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
def test_timeout(make: Callable[[], Actor], unordered: bool) -> None:
    pool, slow = ActorPool([make()]), threading.Event()
    get = pool.get_next_unordered if unordered else pool.get_next
    pool.submit(double, slow)
    with pytest.raises(TaskTimeoutError, match="goes on"):
        get(timeout=0.02)
    assert pool.has_next()
    slow.set()
    assert get(timeout=10) == 42


@pytest.mark.parametrize("unordered", [False, True])
def test_what_is_ignored_after_a_timeout(make: Callable[[], Actor], unordered: bool) -> None:
    pool, slow = ActorPool([make()]), threading.Event()
    get = pool.get_next_unordered if unordered else pool.get_next
    pool.submit(double, slow)
    pool.submit(double, 1)
    with pytest.raises(TimeoutError, match="forgotten"):
        get(timeout=0.02, ignore_if_timedout=True)
    slow.set()
    assert get(timeout=10) == 2
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


def test_an_actor_that_died_is_not_used_again(make: Callable[[], Actor]) -> None:
    first, second = make(), make()
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


def test_an_idle_actor_that_ended_is_not_used(make: Callable[[], Actor]) -> None:
    first, second = make(), make()
    pool = ActorPool([first, second])
    first.end()
    assert list(pool.map(double, range(4))) == [0, 2, 4, 6]
    assert first.seen == []


def test_when_no_actor_is_left_the_error_says_so(make: Callable[[], Actor]) -> None:
    pool = ActorPool([make(), make()])
    results = pool.map(double, ["die", "die", 1, 2])
    errors = []
    for _ in range(4):
        with pytest.raises(ActorDiedError) as caught:
            next(results)
        errors.append(str(caught.value))
    assert all("died" in error for error in errors[:2])
    assert all("No actor is left in the pool" in error and "<Actor a" in error for error in errors[2:])
    pool.submit(double, 3)
    with pytest.raises(ActorDiedError, match="No actor is left"):
        pool.get_next(10)
    pool.push(make())
    pool.submit(double, 3)
    assert pool.get_next(10) == 6


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
