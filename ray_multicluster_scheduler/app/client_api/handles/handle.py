"""TaskHandle and JobHandle: what the async verbs return."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, Self

from ray_multicluster_scheduler.app.client_api.options import item_id_of
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import (
    ResultLostError,
    SchedulerError,
    TaskSubmissionError,
    TaskTimeoutError,
)
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.model.checks import valid_priority
from ray_multicluster_scheduler.common.object_argument import RESULT
from ray_multicluster_scheduler.common.several_returns import wrong_number
from ray_multicluster_scheduler.common.tables import html_facts
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome, Promise
from ray_multicluster_scheduler.control_plane.runtime.outcome import error_of, is_in_cluster, payload_of, value_of
from ray_multicluster_scheduler.control_plane.runtime.submission_checks import checked_reason
from ray_multicluster_scheduler.scheduler.lifecycle.events import HoldRequested, PriorityChanged, ReleaseRequested

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane


class Handle:
    """An item in progress or over. Safe from any thread; awaitable.

    Given as an argument of a task, an actor or a method it stands for its value, which that one waits for. It stays
    with the control plane that took the item: after that one's end it tells what was known, and starts nothing. The
    item does not end with it: one whose handles were all dropped goes on. A copy of a handle is the handle itself.
    """

    __slots__ = ("__weakref__", "_item", "_runtime")

    part: int | None = None
    """Which part of the item's value it stands for, if not for all of it."""

    def __init__(self, item: Promise, runtime: ControlPlane) -> None:
        self._item = item
        self._runtime = runtime

    @property
    def id(self) -> str:
        """One id from submission to the end."""
        return self._item.id

    @property
    def accepted(self) -> bool:
        """Has the control plane recorded it?"""
        return self._item.accepted

    @property
    def state(self) -> TaskState:
        return self._item.state

    @property
    def cluster(self) -> str | None:
        """Where it is, or was last; None before it was placed."""
        return self._item.cluster

    @property
    def attempt(self) -> int:
        """1 for the first; 0 before it was placed."""
        return self._item.attempt

    def done(self) -> bool:
        """Is it over, one way or another?"""
        return self._item.outcome is not None

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the end and return the value. Raises the user's exception, or a SchedulerError;
        TaskTimeoutError when it is not over after ``timeout`` seconds (it goes on)."""
        until = None if timeout is None else time.monotonic() + timeout
        return self._value(self._wait(timeout), until)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end and return what :meth:`result` would raise, but for what it raises if a value that was left
        in its cluster is lost. Raises TaskTimeoutError."""
        return error_of(self._wait(timeout))

    def cancel(self, *, force: bool = False) -> None:
        """Ask for its end, in whatever state it is; an item that is over stays as it is."""
        if not self.done():
            self._runtime.cancel(self._item.id, "cancelled by the caller", force=force)

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call ``callback(handle)`` when it is over, on a thread of its own kind; at once if it is over."""
        self._check_that_it_can_end()
        self._runtime.when_done(self._item, lambda: callback(self))

    def explain(self) -> dict[str, Any]:
        """Why it is where it is: state, reason, decision table, history."""
        return self._runtime.explain(self._item.id)

    def _value(self, outcome: Outcome, until: float | None = None) -> Any:
        return value_of(outcome, lambda away: self._fetched(away, until))

    def _fetched(self, outcome: Outcome, until: float | None) -> bytes:
        """One that was left in its cluster."""
        self._check_process()
        left = None if until is None else max(until - time.monotonic(), 0.0)
        return self._runtime.kept_value(outcome, left)

    def _blob(self, outcome: Outcome) -> tuple[str, bytes]:
        """A name, and the pickled value of the whole item, for whoever takes it as an argument."""
        return f"{RESULT}{self._item.id}", payload_of(outcome)

    def _wait(self, timeout: float | None) -> Outcome:
        outcome = self._item.outcome
        if outcome is None:
            self._check_process()
            outcome = self._item.wait(timeout)
        if outcome is None:
            raise self._still_going(timeout)
        return outcome

    def _check_that_it_can_end(self) -> None:
        if not self.done():
            self._check_process()

    def _check_process(self) -> None:
        if self._runtime.in_forked_child:
            raise SchedulerError(
                f"{self.id} was submitted by the process that this one was forked from.",
                task_id=self.id,
                next_step="wait for it there, or submit it again here",
            )

    def _still_going(self, timeout: float | None) -> TaskTimeoutError:
        try:
            story = self.explain()  # state and reason of one moment
        except SchedulerError as error:  # whoever knows does not answer
            story = {"state": str(self.state), "cluster": self.cluster, "sentence": f"as last heard; {error.message}"}
        return TaskTimeoutError(
            f"{self.id} is not over after {timeout:g} s; it is {story['state']}: {story.get('sentence') or ''}",
            task_id=self.id,
            cluster=story.get("cluster"),
            next_step="wait longer, or cancel it",
        )

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done():
            self._check_process()
            loop = asyncio.get_running_loop()
            over = asyncio.Event()

            def tell(_: Promise) -> None:
                with suppress(RuntimeError):  # whoever awaited it is gone with his loop
                    loop.call_soon_threadsafe(over.set)

            self._item.watch(tell)
            try:
                yield from over.wait().__await__()
            finally:
                self._item.unwatch(tell)
        if is_in_cluster(self._item.outcome):
            return (yield from asyncio.to_thread(self.result).__await__())
        return self.result()

    def __repr__(self) -> str:
        where = f" on {self.cluster!r}" if self.cluster else ""
        repeats = self._item.task.repeats if isinstance(self._item, Item) else None
        again = f", repeats {repeats}" if repeats else ""
        return f"<{type(self).__name__} {self.id} {self.state}{where}{again}>"

    def _repr_html_(self) -> str:
        return handle_html(type(self).__name__, self.id, self._item)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TaskSubmissionError(
            f"The handle of {self.id} is inside of something else (a list, a closure, another object), so it cannot be "
            "replaced by its value; and it means nothing in another process.",
            task_id=self.id,
            next_step="give it as an argument of its own, f(a, b) or f(*handles) instead of f([a, b]), "
            "or wait for its result and pass that",
        )


class QueuedHandle(Handle):
    """An item that waits in a queue of ours until it is placed."""

    __slots__ = ()

    def hold(self, reason: str = "") -> None:
        """Let it not start before :meth:`release`; what was sent to a cluster already goes on."""
        self._runtime.post_user_event(HoldRequested(item_id_of(self, "hold"), checked_reason(reason)))

    def release(self) -> None:
        """The end of :meth:`hold`."""
        self._runtime.post_user_event(ReleaseRequested(item_id_of(self, "release")))

    def set_priority(self, priority: int) -> None:
        """From now on it waits with this priority; higher numbers go first."""
        self._runtime.post_user_event(PriorityChanged(item_id_of(self, "set_priority"), valid_priority(priority)))


class TaskHandle(QueuedHandle):
    """A task."""

    __module__ = "ray_multicluster_scheduler"  # pickled by its public name: inside a cluster, the native handle

    __slots__ = ()

    def logs(self, *, stream: str | None = None) -> str:
        """What the newest attempt printed; ``stream`` is "stdout", "stderr", or None for both in order."""
        return self._runtime.output.text(self._item.id, self.attempt, stream)

    def follow_logs(self) -> Iterator[str]:
        """Its output as it comes, from the newest attempt on, until it is over."""
        self._check_that_it_can_end()
        return self._runtime.output.follow(self._item.id, lambda: (max(self.attempt, 1), self.done()))


class PartHandle(TaskHandle):
    """One of the values of an item with ``num_returns``. All its parts begin, end and are cancelled together."""

    __slots__ = ("_of", "part")

    part: int

    def __init__(self, item: Promise, runtime: ControlPlane, part: int, of: int) -> None:
        super().__init__(item, runtime)
        self.part, self._of = part, of

    @classmethod
    def split(cls, handle: Handle, number: int) -> list[PartHandle]:
        """The parts of an item that returns ``number`` values."""
        return [cls(handle._item, handle._runtime, part, number) for part in range(number)]

    @property
    def id(self) -> str:
        """The item's, and which part of it."""
        return f"{self._item.id}.{self.part}"

    def exception(self, timeout: float | None = None) -> BaseException | None:
        outcome = self._wait(timeout)
        try:
            return error_of(outcome) or wrong_number(super()._value(outcome), self._of, self._item.id)
        except ResultLostError as lost:
            return lost

    def _value(self, outcome: Outcome, until: float | None = None) -> Any:
        values = super()._value(outcome, until)
        wrong = wrong_number(values, self._of, self._item.id)
        if wrong is not None:
            raise wrong
        return list(values)[self.part]


class JobHandle(QueuedHandle):
    """A Ray job; its value is its last status word."""

    __module__ = "ray_multicluster_scheduler"  # pickled by its public name: inside a cluster, the native handle

    __slots__ = ()

    def logs(self) -> str:
        """Output of its newest attempt, as the cluster has it. Raises ClusterConnectionError; SchedulerError after
        the scheduler's end."""
        return self._runtime.job_log(self.id)

    def follow_logs(self) -> Iterator[str]:
        """Its output as it comes, over all attempts, until it is over."""
        self._check_that_it_can_end()
        return self._runtime.follow_job_log(self.id)

    def _value(self, outcome: Outcome, until: float | None = None) -> Any:
        error = error_of(outcome)
        if error is not None:
            raise error
        return str(outcome.completion.state)

    def _blob(self, outcome: Outcome) -> tuple[str, bytes]:
        data = pickle.dumps(str(outcome.completion.state))
        return digest_of(data), data  # not by its id, which may be given again


def handle_html(kind: str, item_id: str, item: Promise, name: str | None = None) -> str:
    """``kind`` is the word for it, ``name`` its name if its item does not have the right one."""
    outcome, transition = item.outcome, item.transition if isinstance(item, Item) else None
    why = outcome.completion.message if outcome is not None else transition.sentence if transition is not None else None
    named = name or (item.task.name if isinstance(item, Item) else None)
    facts = [
        ("id", item_id),
        ("name", named),
        ("state", str(item.state)),
        ("cluster", item.cluster),
        ("attempt", item.attempt or None),
        ("repeats", item.task.repeats if isinstance(item, Item) else None),
        ("why", why),
    ]
    return html_facts(kind, facts)
