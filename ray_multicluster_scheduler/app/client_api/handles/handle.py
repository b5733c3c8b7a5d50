"""TaskHandle, JobHandle and their base Handle: the results of the async verbs, in the program outside clusters."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, Self

from ray_multicluster_scheduler.app.client_api.actors.actor_reference import set_reader
from ray_multicluster_scheduler.app.client_api.arguments.references import reference_to
from ray_multicluster_scheduler.app.client_api.handles.as_completed import WaitableHandle
from ray_multicluster_scheduler.app.client_api.options import item_id_of
from ray_multicluster_scheduler.app.client_api.ray_shape.dynamic_returns import DynamicObjectRefGenerator
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import (
    QueueFullError,
    ResultLostError,
    SchedulerError,
    TaskSubmissionError,
    TaskTimeoutError,
)
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.model.checks import valid_priority
from ray_multicluster_scheduler.common.notices import unread_failures
from ray_multicluster_scheduler.common.object_argument import RESULT
from ray_multicluster_scheduler.common.several_returns import part_of, wrong_number
from ray_multicluster_scheduler.common.tables import html_facts
from ray_multicluster_scheduler.control_plane.runtime.input_checks import checked_reason
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome, Promise
from ray_multicluster_scheduler.control_plane.runtime.outcome import error_of, is_in_cluster, payload_of, value_of
from ray_multicluster_scheduler.scheduler.lifecycle.events import HoldRequested, PriorityChanged, ReleaseRequested

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane


class Handle(WaitableHandle):
    """An item in progress or ended. Thread-safe; awaitable.

    As an argument it is replaced by its value; the receiving task starts when the value exists. Inside an argument (a
    list, an object) or a function it arrives as a handle; that task, too, starts when the value exists. It belongs to
    the control plane that accepted the item, and after its shutdown reports the last known state. The item continues
    when all its handles are dropped. A copy of a handle is the handle itself.
    """

    __slots__ = ("__weakref__", "_item", "_runtime")

    _rmcs_reference = reference_to

    part: int | None = None
    """The index of the part of the item's value that it stands for; None for the whole value."""

    def __init__(self, item: Promise, runtime: ControlPlane) -> None:
        self._item = item
        self._runtime = runtime

    @property
    def id(self) -> str:
        """The id, the same from submission to the end."""
        return self._item.id

    def accepted(self, timeout: float | None = None) -> bool:
        """Wait until the control plane has recorded it, at most ``timeout`` seconds; returns whether it has. Raises the
        error if it was refused, for example QueueFullError."""
        return is_accepted(self._item, timeout)

    @property
    def state(self) -> TaskState:
        state = self._item.state
        if state is TaskState.FAILED:
            unread_failures.read(self._item.id)
        return state

    @property
    def cluster(self) -> str | None:
        """The current or last cluster; None before it was placed."""
        return self._item.cluster

    @property
    def attempt(self) -> int:
        """The number of the attempt, from 1; 0 before it was placed."""
        return self._item.attempt

    def done(self) -> bool:
        """Has it succeeded, failed or been cancelled?"""
        return self._item.outcome is not None

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the end and return the value. Raises the user's exception, or a SchedulerError;
        TaskTimeoutError when it has not ended after ``timeout`` seconds (it continues)."""
        until = None if timeout is None else time.monotonic() + timeout
        return self._value(self._wait(timeout), until)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end and return what :meth:`result` would raise, except for a lost value that was kept in its
        cluster. Raises TaskTimeoutError."""
        return error_of(self._wait(timeout))

    def cancel(self, *, force: bool = False) -> bool:
        """Cancel it, in any state. A running task is interrupted (KeyboardInterrupt), and its worker is killed if it
        has not ended 2 s later, with ``force`` at once. False: it had ended already."""
        return not self.done() and self._runtime.cancel(self._item.id, "cancelled by the caller", force=force)

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call ``callback(handle)`` on a callback thread when it has ended, or now if it has."""
        self._check_can_end()

        def call() -> None:
            unread_failures.read(self._item.id)
            callback(self)

        self._runtime.when_done(self._item, call)

    def explain(self) -> dict[str, Any]:
        """Return state, reason, decision table and history."""
        return self._runtime.explain(self._item.id)

    def _watch_end(self, callback: Callable[[Any], object]) -> None:
        self._check_can_end()
        self._item.watch(callback)

    def _unwatch_end(self, callback: Callable[[Any], object]) -> None:
        self._item.unwatch(callback)

    def _value(self, outcome: Outcome, until: float | None = None) -> Any:
        before = set_reader(self)
        try:
            return value_of(outcome, lambda away: self._fetched(away, until))
        finally:
            set_reader(before)

    def _fetched(self, outcome: Outcome, until: float | None) -> bytes:
        """Fetch a value that was kept in its cluster."""
        self._check_process()
        left = None if until is None else max(until - time.monotonic(), 0.0)
        return self._runtime.kept_value(outcome, left)

    def _blob(self, outcome: Outcome) -> tuple[str, bytes]:
        """Return name and pickled value of the whole item, for its use as an argument."""
        return f"{RESULT}{self._item.id}", payload_of(outcome)

    def _wait(self, timeout: float | None) -> Outcome:
        outcome = self._item.outcome
        if outcome is None:
            self._check_process()
            outcome = self._item.wait(timeout)
        if outcome is None:
            raise self._still_going(timeout)
        return outcome

    def _check_can_end(self) -> None:
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
            explanation = self.explain()  # state and reason of one moment
        except SchedulerError as error:  # the service does not answer
            explanation = {
                "state": str(self.state),
                "cluster": self.cluster,
                "sentence": f"last known; {error.message}",
            }
        return TaskTimeoutError(
            f"{self.id} has not ended after {timeout:g} s; it is {explanation['state']}: "
            f"{explanation.get('sentence') or ''}",
            task_id=self.id,
            cluster=explanation.get("cluster"),
            next_step="wait longer, or cancel it",
        )

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done():
            self._check_process()
            loop = asyncio.get_running_loop()
            over = asyncio.Event()

            def on_done(_: Promise) -> None:
                with suppress(RuntimeError):  # the awaiting loop was closed
                    loop.call_soon_threadsafe(over.set)

            self._item.watch(on_done)
            try:
                yield from over.wait().__await__()
            finally:
                self._item.unwatch(on_done)
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
            f"The handle of {self.id} cannot be pickled: it cannot be used in another process.",
            task_id=self.id,
            next_step="pass it to a task, an actor or a method, or wait for its result and pickle that",
        )


class QueuedHandle(Handle):
    """Base of the handles of items that wait in a queue of the control plane."""

    __slots__ = ()

    def hold(self, reason: str = "") -> None:
        """Keep it from starting until :meth:`release`; an attempt that was already sent continues."""
        self._runtime.post_user_event(HoldRequested(item_id_of(self, "hold"), checked_reason(reason)))

    def release(self) -> None:
        """Undo :meth:`hold`."""
        self._runtime.post_user_event(ReleaseRequested(item_id_of(self, "release")))

    def set_priority(self, priority: float) -> None:
        """Change the priority with which it waits; higher numbers go first."""
        self._runtime.post_user_event(PriorityChanged(item_id_of(self, "set_priority"), valid_priority(priority)))


class TaskHandle(QueuedHandle):
    """The handle of a task."""

    __module__ = "ray_multicluster_scheduler"  # pickled by its public name: inside a cluster, the native handle

    __slots__ = ()

    def logs(self, *, stream: str | None = None) -> str:
        """Return the output of the newest attempt; ``stream`` is "stdout", "stderr", or None for both in order."""
        return self._runtime.output.text(self._item.id, self.attempt, stream)

    def follow_logs(self) -> Iterator[str]:
        """Iterate over its output, from the newest attempt on, until it ends."""
        self._check_can_end()
        return self._runtime.output.follow(self._item.id, lambda: (max(self.attempt, 1), self.done()))


class PartHandle(TaskHandle):
    """One of the values of an item with ``num_returns``. The parts start, end and are cancelled together."""

    __slots__ = ("_of", "part")

    part: int

    def __init__(self, item: Promise, runtime: ControlPlane, part: int, of: int) -> None:
        super().__init__(item, runtime)
        self.part, self._of = part, of

    @classmethod
    def split(cls, handle: Handle, number: int) -> list[PartHandle]:
        """Return the parts of an item that returns ``number`` values."""
        return [cls(handle._item, handle._runtime, part, number) for part in range(number)]

    @property
    def id(self) -> str:
        """The item's id and the index of the part."""
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
        return part_of(values, self.part)


class DynamicHandle(TaskHandle):
    """A task with ``num_returns="dynamic"``: its value is a generator of handles."""

    __slots__ = ()

    def _value(self, outcome: Outcome, until: float | None = None) -> Any:
        number = len(super()._value(outcome, until))
        return DynamicObjectRefGenerator(PartHandle.split(self, number))


class JobHandle(QueuedHandle):
    """The handle of a Ray job; its value is its last status word."""

    __module__ = "ray_multicluster_scheduler"  # pickled by its public name: inside a cluster, the native handle

    __slots__ = ()

    def logs(self) -> str:
        """Return the output of its newest attempt. Raises ClusterConnectionError; SchedulerError after shutdown."""
        return self._runtime.job_log(self.id)

    def follow_logs(self) -> Iterator[str]:
        """Iterate over its output, across attempts, until it ends."""
        self._check_can_end()
        return self._runtime.follow_job_log(self.id)

    def _value(self, outcome: Outcome, until: float | None = None) -> Any:
        error = error_of(outcome)
        if error is not None:
            raise error
        return str(outcome.completion.state)

    def _blob(self, outcome: Outcome) -> tuple[str, bytes]:
        data = pickle.dumps(str(outcome.completion.state))
        return digest_of(data), data  # not by its id, which may be reused


def is_accepted(item: Promise, timeout: float | None) -> bool:
    """As :meth:`Handle.accepted`."""
    accepted = item.wait_accepted(timeout) if isinstance(item, Item) else item.accepted
    outcome = item.outcome
    if outcome is not None and outcome.completion.state is TaskState.FAILED and outcome.completion.attempt == 0:
        never_recorded = isinstance(item, Item) and item.transition is None
        if never_recorded or outcome.completion.error == QueueFullError.__name__:
            raise error_of(outcome) or QueueFullError(outcome.completion.message, task_id=item.id)
    return accepted


def handle_html(kind: str, item_id: str, item: Promise, name: str | None = None) -> str:
    """Render a handle for notebooks; ``name`` replaces the name of its item."""
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
