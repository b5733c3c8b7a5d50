"""One submitted item as the program that submitted it sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from ray_multicluster_scheduler.common.model import TaskDescription, TaskState
from ray_multicluster_scheduler.scheduler.connection.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, Transition


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended: the brain's word, and for a task the answer of its last attempt."""

    completion: Complete
    result: CallResult | None


@dataclass(eq=False)
class Item:
    """Written on the loop, read from any thread. The future is resolved exactly once."""

    task: TaskDescription
    future: Future[Outcome] = field(default_factory=Future)
    accepted: threading.Event = field(default_factory=threading.Event)
    transition: Transition | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)
    _watchers: set[Callable[[], object]] = field(default_factory=set)

    @property
    def id(self) -> str:
        return self.task.id

    @property
    def state(self) -> TaskState:
        if self.future.done():
            return self.future.result().completion.state
        return TaskState.PENDING if self.transition is None else self.transition.state

    @property
    def cluster(self) -> str | None:
        """Where it is or last was."""
        if self.future.done():
            return self.future.result().completion.cluster
        return None if self.transition is None else self.transition.cluster

    @property
    def attempt(self) -> int:
        return 0 if self.transition is None else self.transition.attempt

    def moved(self, transition: Transition) -> None:
        with self.changed:
            self.transition = transition
            self.changed.notify_all()
        self.accepted.set()

    def ended(self, outcome: Outcome) -> None:
        self.accepted.set()
        with self.changed:
            if not self.future.done():
                self.future.set_result(outcome)
            for tell in self._watchers:
                tell()
            self._watchers.clear()
            self.changed.notify_all()

    def watch(self, tell: Callable[[], object]) -> None:
        """Call it once when the item is over, at once if it is; until :meth:`unwatch`. It must not raise or block."""
        with self.changed:
            if self.future.done():
                tell()
            else:
                self._watchers.add(tell)

    def unwatch(self, tell: Callable[[], object]) -> None:
        """Nobody waits there any more."""
        with self.changed:
            self._watchers.discard(tell)

    def wait_for_change(self, seen: Transition | None) -> None:
        """Wait until it took a step after ``seen``, the last one that the caller knows, or is over."""
        with self.changed:
            self.changed.wait_for(lambda: self.transition is not seen or self.future.done())
