"""ActorPool: calls spread over several actors of the fleet, with the interface of ray.util.ActorPool."""

from __future__ import annotations

import functools
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from ray_multicluster_scheduler.app.client_api.executor.background_worker import BackgroundWorker
from ray_multicluster_scheduler.app.client_api.executor.handle_status import (
    actor_died_in,
    has_ended,
    is_actor_death,
    item_of,
    on_done,
    on_restart_or_end,
    will_restart,
)
from ray_multicluster_scheduler.common.exception import (
    ActorDiedError,
    ConfigurationError,
    TaskSubmissionError,
    TaskTimeoutError,
)

A = TypeVar("A")
V = TypeVar("V")


class CallHandle(Protocol):
    """The handle of an actor method call."""

    def result(self, timeout: float | None = None) -> Any: ...

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...


class ActorPool(Generic[A]):
    """Dispatches each call to an idle actor: ``pool.map(lambda actor, x: actor.work.remote(x), values)``.

    An actor gets its next call as soon as the previous one is done, whether or not results are read. The error of a
    call is raised when its result is read, and its actor stays in use. An actor that has ended, or died in a call, gets
    no more calls (one with ``max_restarts`` gets them after its restart), and when no actor is left the waiting calls
    fail with ActorDiedError. Thread-safe; the function is called on the submitting thread or on the pool's own.
    """

    def __init__(self, actors: Iterable[A]) -> None:
        self._changed = threading.Condition()  # guards all attributes below
        self._idle: deque[A] = deque()
        self._busy: list[A] = []
        self._worker = BackgroundWorker("rmcs-actor-pool")
        self._ended: A | None = None
        self._waiting: deque[_Call[A]] = deque()
        # Calls whose result was not read yet, in order of submission. In a plain dict the search for the first key
        # becomes slow after many deletions at the front.
        self._calls: OrderedDict[_Call[A], None] = OrderedDict()
        if isinstance(actors, (str, bytes)) or not isinstance(actors, Iterable):
            raise ConfigurationError(
                f"ActorPool expects a list of actors, not {actors!r}.",
                next_step="create the actors first: ActorPool([Worker.remote() for _ in range(4)])",
            )
        for actor in actors:
            self.push(actor)

    # Calls ------------------------------------------------------------------------------------------------

    def submit(self, fn: Callable[[A, V], CallHandle], value: V) -> None:
        """Call ``fn(actor, value)``, which returns a handle, with the next idle actor."""
        call: _Call[A] = _Call(lambda actor: fn(actor, value))
        with self._changed:
            self._calls[call] = None
            self._waiting.append(call)
        self._dispatch()

    def map(self, fn: Callable[[A, V], CallHandle], values: Iterable[V]) -> Iterator[Any]:
        """Submit a call for each value and iterate over the results in order.

        Earlier calls whose results were not read are dropped; those still waiting are not made. Iteration can continue
        after an error; a StopIteration raised by a call becomes the cause of a RuntimeError.
        """
        return self._map_all(fn, values, in_order=True)

    def map_unordered(self, fn: Callable[[A, V], CallHandle], values: Iterable[V]) -> Iterator[Any]:
        """As :meth:`map`, with results in order of completion."""
        return self._map_all(fn, values, in_order=False)

    # Results ----------------------------------------------------------------------------------------------

    def has_next(self) -> bool:
        """Is any result left to read, now or later?"""
        return bool(self._calls)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Return the result of the oldest call that was not read yet; raises what the call raised.

        Raises StopIteration if no call is left, and TaskTimeoutError (a TimeoutError) after ``timeout`` seconds. With
        ``ignore_if_timedout`` the pool then drops the result; the call continues and frees its actor when it is done.
        """
        return self._take(timeout, ignore_if_timedout, in_order=True).result()

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Return the result of the next call to finish; otherwise as :meth:`get_next`."""
        return self._take(timeout, ignore_if_timedout, in_order=False).result()

    # Actors -----------------------------------------------------------------------------------------------

    def has_free(self) -> bool:
        """Is an actor idle?"""
        with self._changed:
            self._drop_ended_actors()
            return bool(self._idle) and not self._waiting

    def pop_idle(self) -> A | None:
        """Remove an idle actor from the pool and return it; None if there is none."""
        with self._changed:
            return self._idle.pop() if self.has_free() else None

    def push(self, actor: A) -> None:
        """Add an actor. Raises ValueError if the pool already has it."""
        with self._changed:
            if actor in self._idle or actor in self._busy:
                raise ValueError(f"{actor!r} belongs to this ActorPool already")
            self._idle.append(actor)
            self._ended = None
        self._dispatch()

    # Internals --------------------------------------------------------------------------------------------

    def _map_all(self, fn: Callable[[A, V], CallHandle], values: Iterable[V], *, in_order: bool) -> Iterator[Any]:
        with self._changed:
            self._waiting.clear()
            self._calls.clear()
        for value in values:
            self.submit(fn, value)
        return _Results(functools.partial(self._take, None, False, in_order=in_order))

    def _dispatch(self) -> None:
        """Assign waiting calls to idle actors. The caller's function is called without the lock."""
        while (pair := self._next_pair()) is not None:
            call, actor = pair
            done = functools.partial(self._worker.put, functools.partial(self._on_call_done, call, actor))
            try:
                call.make(actor, done)
            except Exception as error:  # noqa: BLE001 - the caller's function: raised when the result is read
                call.error = error
                if self._mark_done(call):
                    self._return_actor(actor)
            except BaseException as error:  # e.g. Ctrl+C: raised in this thread, not to the reader
                call.interrupted(error, done)
                raise

    def _next_pair(self) -> tuple[_Call[A], A] | None:
        with self._changed:
            self._drop_ended_actors()
            if self._waiting and self._idle:
                call, actor = self._waiting.popleft(), self._idle.popleft()
                self._busy.append(actor)
                return call, actor
            self._fail_waiting_if_no_actor()
            return None

    def _fail_waiting_if_no_actor(self) -> None:
        """Fail the waiting calls if all actors have ended. Needs the lock."""
        if self._ended is not None and not self._busy and not self._idle and self._waiting:
            for call in self._waiting:
                call.over = True
                call.error = ActorDiedError(
                    f"All actors of the pool have ended; the last one was {self._ended!r}.",
                    next_step="check the errors of earlier calls and the actors' output, then push() new actors",
                )
            self._waiting.clear()
            self._changed.notify_all()

    def _mark_done(self, call: _Call[A]) -> bool:
        """Mark a call as done. False: it was already, and its actor was returned then."""
        with self._changed:
            first, call.over = not call.over, True
            self._changed.notify_all()
            return first

    def _on_call_done(self, call: _Call[A], actor: A) -> None:
        """Runs on the pool's thread, possibly twice for an interrupted call."""
        dead = call.check_actor_death()
        if not self._mark_done(call):
            return
        if not dead:
            self._return_and_dispatch(actor)
        elif will_restart(actor):
            return_actor = functools.partial(self._return_and_dispatch, actor)
            on_restart_or_end(actor, call.actor_attempt, functools.partial(self._worker.put, return_actor))
        else:
            self._return_and_dispatch(actor, dead=True)

    def _return_and_dispatch(self, actor: A, *, dead: bool = False) -> None:
        """Return an actor after its call and dispatch the next one."""
        self._return_actor(actor, dead=dead)
        self._dispatch()

    def _return_actor(self, actor: A, *, dead: bool = False) -> None:
        with self._changed:
            if not any(other is actor for other in self._busy):
                return
            self._busy = [other for other in self._busy if other is not actor]
            if not dead:
                self._idle.append(actor)
            elif not self._idle and not self._busy:
                self._ended = actor
            self._changed.notify_all()

    def _drop_ended_actors(self) -> None:
        ended = [actor for actor in self._idle if has_ended(actor)]
        if ended:
            self._idle = deque(actor for actor in self._idle if not any(actor is other for other in ended))
            if not self._idle and not self._busy:
                self._ended = ended[-1]

    def _take(self, timeout: float | None, ignore: bool, *, in_order: bool) -> _Call[A]:
        """Wait for the next finished call. Raises StopIteration if no call is left."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while (call := self._next_done(in_order)) is None:
                if not self._busy and not self._idle:
                    raise ConfigurationError(
                        f"The ActorPool has no actor for its {len(self._waiting)} waiting calls.",
                        next_step="pass actors to ActorPool(…), or push() one",
                    )
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise self._timeout_error(timeout, ignore)
                self._changed.wait(left)
            del self._calls[call]
        return call

    def _next_done(self, in_order: bool) -> _Call[A] | None:
        self._fail_waiting_if_no_actor()
        if not self._calls:
            raise StopIteration("No more results to get")
        if in_order:
            oldest = next(iter(self._calls))
            return oldest if oldest.over else None
        return next((call for call in self._calls if call.over), None)

    def _timeout_error(self, timeout: float | None, ignore: bool) -> TaskTimeoutError:
        oldest = next(iter(self._calls))
        text = f"No result of the actor pool within {timeout:g} s"
        if not ignore:
            return TaskTimeoutError(f"{text}; the call continues.", next_step="call it again, or use a longer timeout")
        del self._calls[oldest]
        if oldest in self._waiting:
            self._waiting.remove(oldest)
        return TaskTimeoutError(f"{text}; its result is dropped (ignore_if_timedout).")


class _Call(Generic[A]):
    """One call: waiting for an actor, running, or done (``over``)."""

    def __init__(self, fn: Callable[[A], CallHandle]) -> None:
        self._fn = fn
        self._handle: CallHandle | None = None
        self._value: Any = None
        self.error: BaseException | None = None
        self.over = False
        self.actor_attempt = 0
        """The attempt of the actor that ran the call, if known."""

    def make(self, actor: A, callback: Callable[[], object]) -> None:
        handle = self._fn(actor)
        if not hasattr(handle, "add_done_callback"):
            raise ConfigurationError(
                f"The function of the actor pool returned {handle!r}, which is not a handle.",
                next_step="return what .remote() returns: lambda actor, value: actor.method.remote(value)",
            )
        self._handle = handle
        on_done(handle, callback)

    def interrupted(self, error: BaseException, callback: Callable[[], object]) -> None:
        """Handle Ctrl+C or the like during :meth:`make`: a call that was made continues, any other is done."""
        if self._handle is not None:
            on_done(self._handle, callback)  # possibly a second registration
            return
        self.error = TaskSubmissionError(
            f"A call of the actor pool was not made: {type(error).__name__} interrupted its function.",
            next_step="submit it again",
        )
        self.error.__cause__ = error
        callback()

    def check_actor_death(self) -> bool:
        """Did the actor of this finished call die? Records the actor attempt, or the result if there is no item."""
        if self._handle is None:
            return False
        item = item_of(self._handle)
        if item is not None:
            self.actor_attempt = getattr(item, "actor_attempt", 0)
            return actor_died_in(item)
        # Inside a cluster Ray loaded the value to report its arrival: keep it instead of loading it again.
        try:
            self._value = self._handle.result()
        except BaseException as error:  # noqa: BLE001 - raised when the result is read
            self.error = error
        self._handle = None
        return is_actor_death(self.error)

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self._value if self._handle is None else self._handle.result()


class _Results(Iterator[Any]):
    """Iterator over the remaining results; unlike a generator it can continue after an error."""

    def __init__(self, take: Callable[[], _Call[Any]]) -> None:
        self._take = take

    def __next__(self) -> Any:
        call = self._take()
        try:
            return call.result()
        except StopIteration as error:  # would end the caller's loop silently
            raise RuntimeError("a call of the actor pool raised StopIteration") from error
