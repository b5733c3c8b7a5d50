"""Item: a submitted task, actor or job as its program sees it; CallPromise: one call of an actor's method.

Both are a Promise, which finishes once with an Outcome and can be waited for. Handles read them; the control plane, or
the client of a service, writes them. CallQueue is the interface of an actor's queue of calls.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from ray_multicluster_scheduler.common.current_item import member_id
from ray_multicluster_scheduler.common.model import ActorDescription, MemberDescription, TaskDescription, TaskState
from ray_multicluster_scheduler.common.several_returns import NEXT, STREAM
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, Transition

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.arguments import Arguments

ANSWERED = "ANSWERED"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an item: the scheduler's completion and, for a task, the result of its last attempt.

    ``origin`` is the outcome of the argument whose failure kept the item from running.
    """

    completion: Complete
    result: CallResult | None
    origin: Outcome | None = None

    @property
    def succeeded(self) -> bool:
        return self.completion.state is TaskState.SUCCEEDED


class Promise:
    """Finished once, by one thread; read and waited for by any. Synchronisation objects are created only for a wait.

    Watchers are called on the thread that finished it, outside of any lock, and must not block or raise. Promises
    finished by a watcher are queued, not nested: a chain of any length does not deepen the stack.
    """

    __slots__ = ("__weakref__", "_lock", "_watchers", "id", "outcome")

    def __init__(self, promise_id: str) -> None:
        self.id = promise_id
        self.outcome: Outcome | None = None
        self._lock = threading.Lock()
        self._watchers: list[Callable[[Any], object]] | None = None

    @property
    def state(self) -> TaskState:
        return TaskState.PENDING if self.outcome is None else self.outcome.completion.state

    @property
    def cluster(self) -> str | None:
        """The cluster where it is or last was."""
        return None if self.outcome is None else self.outcome.completion.cluster

    @property
    def attempt(self) -> int:
        return 0 if self.outcome is None else self.outcome.completion.attempt

    @property
    def accepted(self) -> bool:
        """Whether the control plane has accepted it."""
        return self.outcome is not None

    def done(self) -> bool:
        return self.outcome is not None

    def ended(self, outcome: Outcome) -> bool:
        """Set the outcome. Returns False if there was one already: only the first counts."""
        with self._lock:
            if self.outcome is not None:
                return False
            self.outcome = outcome
            watchers, self._watchers = self._watchers, None
        if watchers:
            _notify(self, watchers)
        return True

    def watch(self, callback: Callable[[Any], object]) -> None:
        """Call ``callback(self)`` once when it is finished, immediately if it is; until :meth:`unwatch`."""
        with self._lock:
            if self.outcome is None:
                if self._watchers is None:
                    self._watchers = []
                self._watchers.append(callback)
                return
        _notify(self, (callback,))

    def unwatch(self, callback: Callable[[Any], object]) -> None:
        with self._lock:
            self._watchers = _without(self._watchers, callback)

    def wait(self, timeout: float | None = None) -> Outcome | None:
        """The outcome; None on timeout."""
        if self.outcome is None:
            wait_for((self,), 1, timeout)
        return self.outcome


class Item(Promise):
    """A task, an actor or a job on its way through the control plane. Written on the loop, read from any thread."""

    __slots__ = ("_step_watchers", "cancelling", "task", "transition")

    def __init__(self, task: TaskDescription) -> None:
        super().__init__(task.id)
        self.task = task
        self.transition: Transition | None = None
        self.cancelling = False
        """Whether this program has cancelled it: its exit does not wait for it."""
        self._step_watchers: list[Callable[[Any], object]] | None = None

    @property
    def state(self) -> TaskState:
        if self.outcome is not None:
            return self.outcome.completion.state
        return TaskState.PENDING if self.transition is None else self.transition.state

    @property
    def cluster(self) -> str | None:
        if self.outcome is not None:
            return self.outcome.completion.cluster
        return None if self.transition is None else self.transition.cluster

    @property
    def attempt(self) -> int:
        return 0 if self.transition is None else self.transition.attempt

    @property
    def accepted(self) -> bool:
        return self.transition is not None or self.outcome is not None

    @property
    def scheduled_id(self) -> str:
        """The id that the scheduler uses: its own, or that of its gang."""
        return self.id

    def moved(self, transition: Transition) -> None:
        """Record a transition and call the watchers."""
        self.transition = transition
        self._notify_step()

    def ended(self, outcome: Outcome) -> bool:
        first = super().ended(outcome)
        self._notify_step()
        return first

    def watch_transitions(self, callback: Callable[[Any], object]) -> None:
        """Call ``callback(self)`` after every later transition and at the end, until :meth:`unwatch_transitions`."""
        with self._lock:
            if self._step_watchers is None:
                self._step_watchers = []
            self._step_watchers.append(callback)

    def unwatch_transitions(self, callback: Callable[[Any], object]) -> None:
        with self._lock:
            self._step_watchers = _without(self._step_watchers, callback)

    def wait_accepted(self, timeout: float | None) -> bool:
        """Wait until the control plane has accepted it."""
        return self.wait_until(lambda: self.accepted, timeout)

    def wait_for_change(self, seen: Transition | None) -> None:
        """Wait until there is a transition after ``seen``, the last one that the caller knows, or the item is over."""
        self.wait_until(lambda: self.transition is not seen or self.outcome is not None, None)

    def wait_until(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until a condition holds, which is checked after each transition. Returns False on timeout."""
        if condition():
            return True
        changed = threading.Condition()

        def callback(_: Item) -> None:
            with changed:
                changed.notify_all()

        self.watch_transitions(callback)
        try:
            with changed:
                return changed.wait_for(condition, timeout)
        finally:
            self.unwatch_transitions(callback)

    def _notify_step(self) -> None:
        if self._step_watchers:
            with self._lock:
                watchers = list(self._step_watchers or ())
            _notify(self, watchers)


class MemberItem(Item):
    """One actor of a gang: it has the gang's state, cluster and outcome."""

    __slots__ = ("_following", "_gang")

    def __init__(self, gang: Item, index: int, member: MemberDescription) -> None:
        name = member_id(gang.id, index)
        actor = ActorDescription(ray_name=name, placement=member.requirements, asynchronous=member.asynchronous)
        super().__init__(
            TaskDescription(
                id=name,
                kind="actor",
                name=member.name,
                owner=gang.task.owner,
                requirements=member.requirements,
                actor=actor,
            )
        )
        self._gang = gang
        self._following = threading.Lock()
        gang.watch_transitions(self._follow)
        self._follow(gang)

    @property
    def scheduled_id(self) -> str:
        return self._gang.id

    def _follow(self, gang: Item) -> None:
        with self._following:  # read under the lock, so that of two threads the later one publishes the newest state
            step, outcome = gang.transition, gang.outcome
            if outcome is None and step is not None:
                self.moved(step._replace(task_id=self.id))
        if outcome is not None:
            gang.unwatch_transitions(self._follow)
            self.ended(Outcome(replace(outcome.completion, task_id=self.id), outcome.result, outcome.origin))


class CallPromise(Promise):
    """One call of an actor's method, which is sent at most once."""

    __slots__ = ("actor", "method")

    def __init__(self, call_id: str, actor: CallQueue, method: str) -> None:
        super().__init__(call_id)
        self.actor, self.method = actor, method

    @property
    def name(self) -> str:
        """Class and method, for display; of a value of a generator also its index."""
        if self.method.startswith(NEXT):
            return f"{self.actor.item.task.name}[{self.method.removeprefix(NEXT).partition(':')[0]}]"
        return f"{self.actor.item.task.name}.{self.method.removeprefix(STREAM)}"

    @property
    def accepted(self) -> bool:
        return True

    def unsent_message(self, ended: Outcome) -> str:
        """The message of a call that was not sent before its actor ended."""
        why = f"actor {self.actor.item.id} {actor_end(ended)}. {ended.completion.message}"
        return f"{self.name} ({self.id}) was not sent: {why}".strip()

    def summary(self, code: str, sentence: str, before: int) -> dict[str, Any]:
        """Its explanation as data. ``code`` applies while it is not answered; ``before``: how many calls are ahead."""
        actor = self.actor.item
        return {
            "id": self.id,
            "kind": "call",
            "name": self.name,
            "state": str(self.state),
            "cluster": self.cluster,
            "attempt": self.attempt,
            "code": ANSWERED if self.outcome is not None else code,
            "sentence": sentence,
            "calls_before": before,
            "actor": {"id": actor.id, "state": str(actor.state), "cluster": actor.cluster, "attempt": actor.attempt},
        }


class CallQueue(Protocol):
    """The calls of one actor. Safe from any thread; the calls of one thread run in the order in which it makes them."""

    @property
    def item(self) -> Item:
        """The actor."""

    @property
    def waiting(self) -> Sized:
        """Calls that were not sent yet."""

    @property
    def unanswered(self) -> int:
        """Number of calls that were sent and are not answered."""

    @property
    def killed(self) -> bool:
        """Whether its end was requested, even if it is not over yet."""

    def call(self, method: str, arguments: Arguments, *, has_paths: bool) -> CallPromise:
        """Make a call. ``has_paths``: some of its arguments begin with a home directory. Raises TaskSubmissionError for
        arguments that cannot be sent, SchedulerError after the end."""

    def no_more(self) -> None:
        """Its end was requested: calls that were not sent yet wait for it and fail."""


def actor_end(actor: Outcome) -> str:
    """The end of an actor, as a part of a sentence."""
    if actor.completion.state is TaskState.SUCCEEDED:
        return "exited by itself"
    return "was killed" if actor.completion.state is TaskState.CANCELLED else "has ended"


def wait_for(
    promises: Iterable[Promise], enough: int, timeout: float | None = None, *, or_failure: bool = False
) -> bool:
    """Wait until ``enough`` of them (at most all) are over, or with ``or_failure`` until one of them failed. Returns
    False on timeout. The caller sleeps once, however many they are."""
    missing = []
    for promise in promises:
        outcome = promise.outcome
        if outcome is None:
            missing.append(promise)
            continue
        enough -= 1
        if or_failure and not outcome.succeeded:
            enough = 0
    enough = min(enough, len(missing))
    if enough <= 0:
        return True
    gate = _Gate()
    countdown = Countdown(enough, or_failure, gate.open)
    try:
        for promise in missing:
            promise.watch(countdown)
        return gate.wait(timeout)
    finally:
        for promise in missing:
            if promise.outcome is None:
                promise.unwatch(countdown)


class Countdown:
    """A watcher for any threads; calls ``then`` once: when ``enough`` (at least 1) promises have ended, or with
    ``or_failure`` when one of them failed."""

    def __init__(self, enough: int, or_failure: bool, then: Callable[[], object]) -> None:
        self._left, self._or_failure, self._then = enough, or_failure, then
        self._lock = threading.Lock()

    def __call__(self, promise: Promise) -> None:
        with self._lock:
            if self._left <= 0:
                return
            failed = self._or_failure and promise.outcome is not None and not promise.outcome.succeeded
            self._left = 0 if failed else self._left - 1
            if self._left > 0:
                return
        self._then()


class _Gate:
    """Opened once, for the one thread that waits. Profiles show waiting threads by the name of its method."""

    __slots__ = ("_lock", "open")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.open = self._lock.release

    def wait(self, timeout: float | None) -> bool:
        return self._lock.acquire(timeout=-1 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX))


def _without(
    watchers: list[Callable[[Any], object]] | None, callback: Callable[[Any], object]
) -> list[Callable[[Any], object]] | None:
    return [one for one in watchers if one != callback] if watchers else watchers


_notifying = threading.local()


def _notify(promise: Promise, watchers: Iterable[Callable[[Any], object]]) -> None:
    queue: deque[tuple[Callable[[Any], object], Promise]] | None = getattr(_notifying, "queue", None)
    if queue is not None:  # called from a watcher on this thread: the outer loop runs these afterwards
        queue.extend((callback, promise) for callback in watchers)
        return
    queue = _notifying.queue = deque((callback, promise) for callback in watchers)
    try:
        while queue:
            callback, finished = queue.popleft()
            callback(finished)
    finally:
        _notifying.queue = None
