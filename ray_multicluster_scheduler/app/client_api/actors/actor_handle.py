"""ActorHandle: the handle of an actor in the program that created or found it."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from types import FunctionType
from typing import Any, NoReturn, Self

from ray_multicluster_scheduler.app.client_api.actors.actor_calls import ActorMethod
from ray_multicluster_scheduler.app.client_api.actors.actor_reference import remember, restore
from ray_multicluster_scheduler.app.client_api.actors.class_methods import HandleAttribute, MethodShape
from ray_multicluster_scheduler.app.client_api.handles.handle import handle_html, is_accepted
from ray_multicluster_scheduler.common.exception import (
    ActorDiedError,
    ConfigurationError,
    SchedulerError,
    TaskSubmissionError,
    TaskTimeoutError,
)
from ray_multicluster_scheduler.common.model import ActorDescription, TaskState
from ray_multicluster_scheduler.common.notices import unread_failures
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.control_plane.runtime.item import CallQueue, Item
from ray_multicluster_scheduler.control_plane.runtime.outcome import error_of


class ActorHandle:
    """``actor.method.remote(x)`` calls a method. Safe from any thread; ``await actor`` waits until it is ready.

    A method of the user's class hides an attribute of this class with the same name: then ``actor.kill.remote()`` calls
    the user's method, ``actor.kill()`` still this one, and ``actor.explain()`` returns hidden attributes.
    ``actor.method(name)`` returns any method, also ``__len__``.

    The actor does not end with its handles: unless detached it lives until it is killed, exits or dies, or its program
    ends.
    """

    __module__ = "ray_multicluster_scheduler"  # pickled by its public name: inside a cluster, the native handle

    _rmcs_actor_handle = True
    _item: Item
    _rmcs_calls: CallQueue
    _rmcs_runtime: ControlPlane
    _rmcs_methods: Mapping[str, MethodShape]

    def __init__(self, calls: CallQueue, runtime: ControlPlane, methods: Mapping[str, MethodShape]) -> None:
        """``methods`` is empty for an actor that was found by name: any method name is accepted."""
        for name, shape in methods.items():
            self.__dict__[name] = ActorMethod(calls, runtime, name, shape, own_method(self, name))
        self.__dict__.update(_item=calls.item, _rmcs_calls=calls, _rmcs_runtime=runtime, _rmcs_methods=methods)

    @HandleAttribute
    def id(self) -> str:
        """The id, the same from submission to the end."""
        return self._item.id

    @HandleAttribute
    def name(self) -> str | None:
        """The name for `get_actor`, if it was given one."""
        return _description(self).public_name

    @HandleAttribute
    def state(self) -> TaskState:
        """RUNNING from when it is ready until it ends."""
        state = self._item.state
        if state is TaskState.FAILED:
            unread_failures.read(self._item.id)
        return state

    @HandleAttribute
    def cluster(self) -> str | None:
        """The current or last cluster; None before it was placed."""
        return self._item.cluster

    @HandleAttribute
    def attempt(self) -> int:
        """1 plus the number of restarts; 0 before it was placed."""
        return self._item.attempt

    def ready(self, timeout: float | None = None) -> Self:
        """Wait until it takes calls. Raises the constructor's exception, a SchedulerError if it ended for another
        reason, TaskTimeoutError when it is not ready after ``timeout`` seconds (it continues to start)."""
        item = self._item
        _check_process(self)
        if not item.wait_until(lambda: _serves_or_over(item), timeout):
            reason = self._rmcs_runtime.explain(item.scheduled_id).get("sentence") or ""
            raise TaskTimeoutError(
                f"{item.id} is not ready after {timeout:g} s; it is {item.state}: {reason}",
                task_id=item.id,
                cluster=item.cluster,
                next_step="wait longer, or kill it",
            )
        _raise_if_over(item)
        return self

    def accepted(self, timeout: float | None = None) -> bool:
        """Wait until the control plane has recorded it, at most ``timeout`` seconds; returns whether it has. Raises the
        error if it was refused, for example QueueFullError."""
        return is_accepted(self._item, timeout)

    def kill(self, *, no_restart: bool = True) -> None:
        """End it now, without a restart. Unanswered calls fail, and its name is free at once."""
        if not no_restart:
            raise ConfigurationError(
                "no_restart=False is not supported: a killed actor stays dead.", next_step="kill it and make a new one"
            )
        self._rmcs_end()

    def _rmcs_end(self) -> bool:
        """Kill it. False: it had ended already."""
        if self._item.outcome is not None:
            return False
        self._rmcs_calls.no_more()
        return self._rmcs_runtime.cancel(self._item.scheduled_id, "it was killed", force=True)

    def explain(self) -> dict[str, Any]:
        """Return state, reason, decision table, history, and the numbers of waiting and unanswered calls."""
        explanation = self._rmcs_runtime.explain(self._item.id)
        calls = self._rmcs_calls
        explanation.update(calls_waiting=len(calls.waiting), calls_unanswered=calls.unanswered)
        return explanation

    def logs(self, *, stream: str | None = None) -> str:
        """Return its output since the last (re)start; ``stream`` is "stdout", "stderr", or None for both."""
        return self._rmcs_runtime.output.text(self._item.scheduled_id, self._item.attempt, stream)

    def follow_logs(self) -> Iterator[str]:
        """Iterate over its output, across restarts, until it ends."""
        item = self._item
        if item.outcome is None:
            _refuse_in_another_process(self)
        return self._rmcs_runtime.output.follow(
            item.scheduled_id, lambda: (max(item.attempt, 1), item.outcome is not None)
        )

    def method(self, name: str) -> ActorMethod:
        """Return a method by its name. Raises AttributeError if its class does not have it."""
        known = self.__dict__.get(name)
        if isinstance(known, ActorMethod):
            return known
        methods = self._rmcs_methods
        if methods and not (name.startswith("__") and name.endswith("__")):
            close = difflib.get_close_matches(name, methods, 3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(methods) or 'none'}"
            raise AttributeError(f"{self._item.task.name} has no method {name!r}; {hint}")
        return ActorMethod(self._rmcs_calls, self._rmcs_runtime, name, MethodShape())

    def __getattr__(self, name: str) -> ActorMethod:
        # Called for missing names only. Python and notebooks look up special names on every object.
        if name.startswith("_") or "_rmcs_calls" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return ActorHandle.method(self, name)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(
            f"{name!r} cannot be set on the handle of {self._item.id}: the attributes belong to the actor"
        )

    def __await__(self) -> Generator[Any, None, Self]:
        _check_process(self)
        item, loop, moved = self._item, asyncio.get_running_loop(), asyncio.Event()

        def on_transition(_: Item) -> None:
            with suppress(RuntimeError):  # the awaiting loop was closed
                loop.call_soon_threadsafe(moved.set)

        item.watch_transitions(on_transition)
        try:
            while not _serves_or_over(item):
                moved.clear()
                if not _serves_or_over(item):  # it may have moved in between
                    yield from moved.wait().__await__()
        finally:
            item.unwatch_transitions(on_transition)
        _raise_if_over(item)
        return self

    def __repr__(self) -> str:
        item, name = self._item, _description(self).public_name
        where = f" on {item.cluster!r}" if item.cluster else ""
        return f"<ActorHandle {item.id} {item.task.name}{f' {name!r}' if name else ''} {item.state}{where}>"

    def _repr_html_(self) -> str:
        given = _description(self).public_name
        name = f"{self._item.task.name} {given!r}" if given else None
        return handle_html("ActorHandle", self._item.id, self._item, name)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a reference, restored as a native handle inside its cluster, or as this handle."""
        name, cluster = _description(self).ray_name, self._item.cluster
        remember(name, cluster, self)
        return restore, (name, cluster, {name: shape.num_returns for name, shape in self._rmcs_methods.items()})

    _rmcs_reference = __reduce__


def own_method(handle: ActorHandle, name: str) -> Callable[..., Any] | None:
    """The method of ActorHandle that a user's method of this name hides."""
    own = vars(ActorHandle).get(name)
    return own.__get__(handle) if isinstance(own, FunctionType) else None


def _serves_or_over(item: Item) -> bool:
    return item.outcome is not None or item.state is TaskState.RUNNING


def _raise_if_over(item: Item) -> None:
    """Raise the error of an ended actor; one that is restarting was ready a moment ago."""
    if item.outcome is not None:
        raise error_of(item.outcome) or ActorDiedError(
            f"{item.id} has exited.", task_id=item.id, cluster=item.cluster, next_step="make a new one"
        )


def _check_process(handle: ActorHandle) -> None:
    if not _serves_or_over(handle._item):
        _refuse_in_another_process(handle)


def _refuse_in_another_process(handle: ActorHandle) -> None:
    item = handle._item
    if handle._rmcs_runtime.in_forked_child:
        raise SchedulerError(
            f"{item.id} was submitted by the process that this one was forked from.",
            task_id=item.id,
            next_step="wait for it there, or make another one here",
        )


def _description(handle: ActorHandle) -> ActorDescription:
    actor = handle._item.task.actor
    if actor is None:
        raise TaskSubmissionError(f"{handle._item.id} is not an actor.", task_id=handle._item.id)
    return actor
