"""Arguments of items and calls while some of their values do not exist yet.

:class:`Arguments` is the pickled arguments with references to values and actors, :class:`ArgumentWatch` waits until
every value exists and every actor is ready, and :class:`IncompleteItems` (used by ``Runtime.submit``) holds the items
that were accepted before that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Protocol

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.notices import shorten
from ray_multicluster_scheduler.common.object_argument import RESULT
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome, Promise
from ray_multicluster_scheduler.control_plane.runtime.outcome import FetchValue, is_in_cluster, payload_of
from ray_multicluster_scheduler.scheduler.lifecycle.events import ArgumentsFailed, ArgumentsReady, Event
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import PayloadCache

_MAX_NAMED = 3


class ValueSource(Protocol):
    """A value among arguments that is sent apart from the call: the result of an item, or an object of ``put``."""

    @property
    def _item(self) -> Promise:
        """The promise of the value."""

    @property
    def id(self) -> str: ...

    def done(self) -> bool: ...

    def _blob(self, outcome: Outcome) -> tuple[str, bytes]:
        """A name, and the pickled value. Raises ResultLostError."""


class ActorSource(Protocol):
    """An actor among arguments: the item or call must run on its cluster."""

    @property
    def _item(self) -> Item: ...


class ItemValue:
    """The result of an item, as a :class:`ValueSource`."""

    __slots__ = ("_item",)

    def __init__(self, item: Promise) -> None:
        self._item = item

    @property
    def id(self) -> str:
        return self._item.id

    def done(self) -> bool:
        return self._item.outcome is not None

    def _blob(self, outcome: Outcome) -> tuple[str, bytes]:
        return f"{RESULT}{self._item.id}", payload_of(outcome)


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments that are ready to be sent, except the values of ``sources``.

    ``data`` is the pickled ``(args, kwargs)``, where ``ObjectArgument(i)`` stands for the value of ``sources[i]``,
    followed by the number of values that a method returns, if not one. ``modules`` are the user's modules that it
    needs, ``actors`` the actors that it contains.
    """

    data: bytes
    modules: Set[str] = frozenset()
    sources: tuple[ValueSource, ...] = ()
    actors: tuple[ActorSource, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether they contain no references."""
        return not self.sources and not self.actors


@dataclass(frozen=True, slots=True)
class Values:
    """``objects[i]`` is the name and pickled value of ``ObjectArgument(i)``. ``pinned``: the only cluster where it can
    run: that of the actors among the arguments."""

    objects: tuple[tuple[str, bytes], ...]
    pinned: str | None = None


@dataclass(frozen=True, slots=True)
class ArgumentFailure:
    """An argument that will never have a value. ``error`` as in Complete; ``origin`` is its outcome."""

    sentence: str
    error: str | None
    origin: Outcome | None = None


class ArgumentWatch:
    """Calls ``ready`` or ``failed`` once, on the thread that provided or failed the last value."""

    def __init__(
        self,
        arguments: Arguments,
        ready: Callable[[Values], object],
        failed: Callable[[ArgumentFailure], object],
        fetch_value: FetchValue | None = None,
    ) -> None:
        """``fetch_value`` fetches values that are kept in clusters. Without it they count as present: the service
        resolves them by name."""
        self._arguments = arguments
        self._ready, self._failed, self._fetch = ready, failed, fetch_value
        self._lock = threading.Lock()
        self._over = False
        self._left = len(arguments.sources) + 1  # one for begin() itself
        self._places: dict[str, str | None] = {}
        """The clusters of the actors that take calls, or did before their cluster became unreachable."""
        self.waits_for = _waits_for(arguments)

    def begin(self) -> None:
        """Start watching; calls back at once if every value exists."""
        for source in self._arguments.sources:
            source._item.watch(self._source_over)
        for actor in self._arguments.actors:
            actor._item.watch_transitions(self._actor_moved)
            self._actor_moved(actor._item)
        self._source_ready()
        if self._over:  # it may have been stopped before all of these were watched
            self._unwatch_all()

    def stop(self) -> None:
        """Cancel the watch."""
        if self._finish():
            self._unwatch_all()

    def _source_over(self, promise: Promise) -> None:
        outcome = promise.outcome
        if outcome is not None and outcome.succeeded and is_in_cluster(outcome) and self._fetch is not None:
            self._fetch(promise, lambda problem: self._fetched(promise, problem))
        elif outcome is not None and outcome.succeeded:
            self._source_ready()
        elif outcome is not None:
            origin = outcome.origin or outcome
            ended = "was cancelled" if outcome.completion.state is TaskState.CANCELLED else "failed"
            why = f": {outcome.completion.message}" if outcome.completion.message else ""
            self._fail(ArgumentFailure(f"its argument {promise.id} {ended}{why}", origin.completion.error, origin))

    def _fetched(self, promise: Promise, problem: SchedulerError | None) -> None:
        if problem is None:
            self._source_ready()
        else:
            sentence = f"its argument, the value of {promise.id}, cannot be fetched: {problem.message}"
            self._fail(ArgumentFailure(sentence, type(problem).__name__))

    def _actor_moved(self, actor: Item) -> None:
        if actor.outcome is not None:
            why = actor.outcome.completion.message or f"it ended as {actor.state}"
            sentence = f"its argument, the actor {actor.task.name} ({actor.id}), has ended: {why}"
            self._fail(ArgumentFailure(sentence, "ActorDiedError"))
            return
        with self._lock:
            # Read under the lock, so that of two threads the later one records the newest state.
            state, cluster = actor.state, actor.cluster
            if state is TaskState.RUNNING:
                self._places[actor.id] = cluster
            elif state is not TaskState.LOST:  # it is being restarted, on an unknown cluster
                self._places.pop(actor.id, None)
        if state is TaskState.RUNNING:
            self._check()

    def _source_ready(self) -> None:
        with self._lock:
            self._left -= 1
        self._check()

    def _check(self) -> None:
        with self._lock:
            if self._left > 0 or len(self._places) < len(self._arguments.actors):
                return
            clusters = {cluster: actor for actor, cluster in self._places.items()}
        if len(clusters) > 1:
            where = ", ".join(f"{actor} on {cluster}" for cluster, actor in sorted(clusters.items(), key=str))
            sentence = f"its arguments are actors on different clusters ({where}), and it can run on one only"
            self._fail(ArgumentFailure(sentence, "TaskSubmissionError"))
        elif self._finish():
            self._unwatch_all()
            try:
                values = Values(values_of(self._arguments), next(iter(clusters), None))
            except SchedulerError as error:  # a value was forgotten
                self._failed(ArgumentFailure(error.message, type(error).__name__))
                return
            self._ready(values)

    def _fail(self, failure: ArgumentFailure) -> None:
        if self._finish():
            self._unwatch_all()
            self._failed(failure)

    def _finish(self) -> bool:
        with self._lock:
            first, self._over = not self._over, True
            return first

    def _unwatch_all(self) -> None:
        self.waits_for = ""
        for source in self._arguments.sources:
            if not source.done():
                source._item.unwatch(self._source_over)
        for actor in self._arguments.actors:
            actor._item.unwatch_transitions(self._actor_moved)


def values_of(arguments: Arguments) -> tuple[tuple[str, bytes], ...]:
    """The values of its sources, all of which succeeded; empty for a value that is kept in a cluster."""
    outcomes = [(source, source._item.outcome) for source in arguments.sources]
    return tuple(
        (source.id, b"") if is_in_cluster(outcome) else source._blob(outcome)
        for source, outcome in outcomes
        if outcome is not None
    )


def values_available(arguments: Arguments) -> bool:
    """Whether no value has to be waited for or fetched."""
    return not arguments.actors and all(
        (outcome := source._item.outcome) is not None and outcome.succeeded and not is_in_cluster(outcome)
        for source in arguments.sources
    )


def _waits_for(arguments: Arguments) -> str:
    names = [source.id for source in arguments.sources if not source.done()]
    names += [f"actor {actor._item.id}" for actor in arguments.actors]
    away = [source.id for source in arguments.sources if is_in_cluster(source._item.outcome)]
    if not names and away:
        return f"fetches the value of {shorten(away, _MAX_NAMED)} from its cluster"
    if not names:
        return "checks its arguments"
    return f"waits for its argument{'s' if len(names) > 1 else ''} {shorten(names, _MAX_NAMED)}"


class IncompleteItems:
    """Attaches the values of accepted items in the payload cache and posts the event, on the loop, unless the item is
    over by then."""

    def __init__(
        self,
        payload_cache: PayloadCache,
        post: Callable[[Event], None],
        call_soon: Callable[..., None],
        fetch_value: FetchValue | None = None,
    ) -> None:
        self._payload_cache, self._post, self._call_soon, self._fetch = payload_cache, post, call_soon, fetch_value
        self._watches: dict[str, ArgumentWatch] = {}
        self._origins: dict[str, Outcome | None] = {}

    def expect(self, task_id: str, arguments: Arguments) -> ArgumentWatch | None:
        """From any thread, for a new item: the watch to begin once it was submitted, or None if no value is missing."""
        if values_available(arguments):
            self._payload_cache.attach(task_id, values_of(arguments))
            return None
        watch = self._watches[task_id] = ArgumentWatch(
            arguments,
            ready=lambda values: self._call_soon(self._ready, task_id, values),
            failed=lambda failure: self._call_soon(self._failed, task_id, failure),
            fetch_value=self._fetch,
        )
        return watch

    def attached_bytes(self, task_id: str) -> int:
        """Size of the values that are sent for this item only; objects of ``put`` are shared by many items."""
        return sum(len(data) for name, data in self._payload_cache.objects_of(task_id) if name.startswith(RESULT))

    def over(self, task_id: str) -> Outcome | None:
        """On the loop: drop its values when it has ended. Returns the outcome of the argument that made it fail."""
        watch = self._watches.pop(task_id, None)
        if watch is not None:
            watch.stop()
        self._payload_cache.detach(task_id)
        return self._origins.pop(task_id, None)

    def _ready(self, task_id: str, values: Values) -> None:
        if self._watches.pop(task_id, None) is not None:
            self._payload_cache.attach(task_id, values.objects)
            self._post(ArgumentsReady(task_id, values.pinned, self.attached_bytes(task_id)))

    def _failed(self, task_id: str, failure: ArgumentFailure) -> None:
        if self._watches.pop(task_id, None) is not None:
            self._origins[task_id] = failure.origin
            self._post(ArgumentsFailed(task_id, failure.sentence, failure.error))
