"""ActorPool: calls spread over several actors of the fleet, with the interface of ray.util.ActorPool."""

from __future__ import annotations

import functools
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from ray_multicluster_scheduler.app.client_api.executor import actor_deaths
from ray_multicluster_scheduler.app.client_api.executor.background_worker import BackgroundWorker
from ray_multicluster_scheduler.app.client_api.executor.handle_watch import item_of, when_over
from ray_multicluster_scheduler.common.exception import (
    ActorDiedError,
    ConfigurationError,
    TaskSubmissionError,
    TaskTimeoutError,
)

A = TypeVar("A")
V = TypeVar("V")


class CallHandle(Protocol):
    """What the call of an actor's method returns."""

    def result(self, timeout: float | None = None) -> Any: ...

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...


class ActorPool(Generic[A]):
    """Gives each call to an actor that is free: ``pool.map(lambda actor, x: actor.work.remote(x), values)``.

    As soon as an actor's call is over it gets the next one, whether or not anybody reads results. The error of a call
    is raised when its result is asked for, and its actor goes on. An actor that has ended, or died in a call, gets no
    more calls (one with ``max_restarts`` gets them when it is back), and when none is left the calls that wait fail
    with ActorDiedError. Safe from any thread; the function is called on the one that submits or on the pool's own.
    """

    def __init__(self, actors: Iterable[A]) -> None:
        self._changed = threading.Condition()  # over all below
        self._idle: deque[A] = deque()
        self._busy: list[A] = []
        self._worker = BackgroundWorker("rmcs-actor-pool")
        self._ended: A | None = None
        self._waiting: deque[_Call[A]] = deque()
        # Whose result nobody has got yet, in the order of submission. A plain dict is slow to find its first again and
        # again when what was before it is gone.
        self._calls: OrderedDict[_Call[A], None] = OrderedDict()
        if isinstance(actors, (str, bytes)) or not isinstance(actors, Iterable):
            raise ConfigurationError(
                f"ActorPool was given {actors!r}, which is not a list of actors.",
                next_step="make the actors first: ActorPool([Worker.remote() for _ in range(4)])",
            )
        for actor in actors:
            self.push(actor)

    # Calls ------------------------------------------------------------------------------------------------

    def submit(self, fn: Callable[[A, V], CallHandle], value: V) -> None:
        """Call ``fn(actor, value)``, which returns a handle, with the next actor that is free."""
        call: _Call[A] = _Call(lambda actor: fn(actor, value))
        with self._changed:
            self._calls[call] = None
            self._waiting.append(call)
        self._give_out()

    def map(self, fn: Callable[[A, V], CallHandle], values: Iterable[V]) -> Iterator[Any]:
        """Submit all of them; their results in order. Earlier calls whose results nobody got are forgotten: those that
        wait are not made. Whoever goes on reading after an error gets the results after it; a StopIteration of a call
        comes as the cause of a RuntimeError."""
        return self._mapped(fn, values, in_order=True)

    def map_unordered(self, fn: Callable[[A, V], CallHandle], values: Iterable[V]) -> Iterator[Any]:
        """The same; results as they come."""
        return self._mapped(fn, values, in_order=False)

    # Results ----------------------------------------------------------------------------------------------

    def has_next(self) -> bool:
        """Is there a result to get, now or later?"""
        return bool(self._calls)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """The result of the oldest call that nobody got yet; raises what the call raised.

        StopIteration: there is none. TaskTimeoutError, a TimeoutError: it is not there after ``timeout`` seconds; with
        ``ignore_if_timedout`` it is forgotten (it goes on, and its actor is free when it is over).
        """
        return self._take(timeout, ignore_if_timedout, in_order=True).result()

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """The result of whichever call is over first; else as :meth:`get_next`."""
        return self._take(timeout, ignore_if_timedout, in_order=False).result()

    # Actors -----------------------------------------------------------------------------------------------

    def has_free(self) -> bool:
        """Is an actor idle?"""
        with self._changed:
            self._drop_the_ended()
            return bool(self._idle) and not self._waiting

    def pop_idle(self) -> A | None:
        """Take an idle actor out of the pool; None if there is none."""
        with self._changed:
            return self._idle.pop() if self.has_free() else None

    def push(self, actor: A) -> None:
        """Add an actor. Raises ValueError if it is in the pool already."""
        with self._changed:
            if actor in self._idle or actor in self._busy:
                raise ValueError(f"{actor!r} belongs to this ActorPool already")
            self._idle.append(actor)
            self._ended = None
        self._give_out()

    # Inside -----------------------------------------------------------------------------------------------

    def _mapped(self, fn: Callable[[A, V], CallHandle], values: Iterable[V], *, in_order: bool) -> Iterator[Any]:
        with self._changed:
            self._waiting.clear()
            self._calls.clear()
        for value in values:
            self.submit(fn, value)
        return _Results(functools.partial(self._take, None, False, in_order=in_order))

    def _give_out(self) -> None:
        """Give what waits to who is idle. The caller's function is called without the lock."""
        while (pair := self._next_pair()) is not None:
            call, actor = pair
            tell = functools.partial(self._worker.put, functools.partial(self._is_over, call, actor))
            try:
                call.make(actor, tell)
            except Exception as error:  # noqa: BLE001 - of the caller's function: raised when its turn comes
                call.error = error
                if self._end(call):
                    self._put_back(actor)
            except BaseException as error:  # Ctrl+C, for one, is for whoever runs here, not for who reads the result
                call.interrupted(error, tell)
                raise

    def _next_pair(self) -> tuple[_Call[A], A] | None:
        with self._changed:
            self._drop_the_ended()
            if self._waiting and self._idle:
                call, actor = self._waiting.popleft(), self._idle.popleft()
                self._busy.append(actor)
                return call, actor
            self._fail_if_nobody_is_left()
            return None

    def _fail_if_nobody_is_left(self) -> None:
        """Under the lock: all actors have ended, and what waits will never be done."""
        if self._ended is not None and not self._busy and not self._idle and self._waiting:
            for call in self._waiting:
                call.error, call.over = _nobody_left(self._ended), True
            self._waiting.clear()
            self._changed.notify_all()

    def _end(self, call: _Call[A]) -> bool:
        """It is over. False: it was before, and its actor went back then."""
        with self._changed:
            first, call.over = not call.over, True
            self._changed.notify_all()
            return first

    def _is_over(self, call: _Call[A], actor: A) -> None:
        """On the pool's thread. May come twice for a call that was interrupted."""
        dead = call.killed_its_actor()
        if not self._end(call):
            return
        if not dead:
            self._come_back(actor)
        elif actor_deaths.is_restarted(actor):
            come_back = functools.partial(self._come_back, actor)
            actor_deaths.when_settled(actor, call.actor_attempt, functools.partial(self._worker.put, come_back))
        else:
            self._come_back(actor, dead=True)

    def _come_back(self, actor: A, *, dead: bool = False) -> None:
        """Its call is over, and it takes another one unless it is dead."""
        self._put_back(actor, dead=dead)
        self._give_out()

    def _put_back(self, actor: A, *, dead: bool = False) -> None:
        with self._changed:
            if not any(other is actor for other in self._busy):
                return
            self._busy = [other for other in self._busy if other is not actor]
            if not dead:
                self._idle.append(actor)
            elif not self._idle and not self._busy:
                self._ended = actor
            self._changed.notify_all()

    def _drop_the_ended(self) -> None:
        ended = [actor for actor in self._idle if actor_deaths.has_ended(actor)]
        if ended:
            self._idle = deque(actor for actor in self._idle if not any(actor is other for other in ended))
            if not self._idle and not self._busy:
                self._ended = ended[-1]

    def _take(self, timeout: float | None, ignore: bool, *, in_order: bool) -> _Call[A]:
        """The next call that is over. Raises StopIteration if there is none."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while (call := self._ready(in_order)) is None:
                self._check_that_somebody_works()
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise self._too_late(timeout, ignore)
                self._changed.wait(left)
            del self._calls[call]
        return call

    def _ready(self, in_order: bool) -> _Call[A] | None:
        self._fail_if_nobody_is_left()
        if not self._calls:
            raise StopIteration("No more results to get")
        if in_order:
            oldest = next(iter(self._calls))
            return oldest if oldest.over else None
        return next((call for call in self._calls if call.over), None)

    def _check_that_somebody_works(self) -> None:
        if not self._busy and not self._idle:
            raise ConfigurationError(
                f"{len(self._waiting)} calls wait in an ActorPool that has no actor.",
                next_step="give it actors when it is made, or push() one",
            )

    def _too_late(self, timeout: float | None, ignore: bool) -> TaskTimeoutError:
        oldest = next(iter(self._calls))
        text = f"No result of the actor pool within {timeout:g} s"
        if not ignore:
            return TaskTimeoutError(f"{text}; the call goes on.", next_step="ask again, or with a longer timeout")
        del self._calls[oldest]
        if oldest in self._waiting:
            self._waiting.remove(oldest)
        return TaskTimeoutError(f"{text}; the call is forgotten, as ignore_if_timedout says.")


class _Call(Generic[A]):
    """One call: waiting for an actor, with one, or over."""

    def __init__(self, fn: Callable[[A], CallHandle]) -> None:
        self._fn = fn
        self._handle: CallHandle | None = None
        self._value: Any = None
        self.error: BaseException | None = None
        self.over = False
        self.actor_attempt = 0
        """Which life of the actor it was sent to, as far as that is known."""

    def make(self, actor: A, tell: Callable[[], object]) -> None:
        handle = self._fn(actor)
        if not hasattr(handle, "add_done_callback"):
            raise ConfigurationError(
                f"The function of the actor pool returned {handle!r}, which is not a handle.",
                next_step="return what .remote() returns: lambda actor, value: actor.method.remote(value)",
            )
        self._handle = handle
        when_over(handle, tell)

    def interrupted(self, error: BaseException, tell: Callable[[], object]) -> None:
        """Something that is no error came while it was being made: it goes on if it was made, else it is over."""
        if self._handle is not None:
            when_over(self._handle, tell)  # perhaps for the second time
            return
        self.error = TaskSubmissionError(
            f"A call of the actor pool was not made: {type(error).__name__} came while its function ran.",
            next_step="submit it again",
        )
        self.error.__cause__ = error
        tell()

    def killed_its_actor(self) -> bool:
        """It is over: is its actor, too?"""
        if self._handle is None:
            return False
        item = item_of(self._handle)
        if item is not None:
            self.actor_attempt = getattr(item, "actor_attempt", 0)
            return actor_deaths.died_in(item)
        # Inside a cluster Ray has loaded the value already, to tell us that it is there: it is kept, not loaded again.
        try:
            self._value = self._handle.result()
        except BaseException as error:  # noqa: BLE001 - raised when its turn comes
            self.error = error
        self._handle = None
        return actor_deaths.says_so(self.error)

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self._value if self._handle is None else self._handle.result()


class _Results(Iterator[Any]):
    """What is left to get; unlike a generator it outlives an error."""

    def __init__(self, take: Callable[[], _Call[Any]]) -> None:
        self._take = take

    def __next__(self) -> Any:
        call = self._take()
        try:
            return call.result()
        except StopIteration as error:  # as it is, it would end the caller's loop without a word
            raise RuntimeError("a call of the actor pool raised StopIteration") from error


def _nobody_left(actor: object) -> ActorDiedError:
    return ActorDiedError(
        f"No actor is left in the pool: all of them have ended, {actor!r} as the last one.",
        next_step="look at the errors of earlier calls and at the actors' output, then push() new actors",
    )
