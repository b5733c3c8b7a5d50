"""ActorMethod (``actor.method.remote(x)``) and the handles that it returns, in the program outside clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.app.client_api.actors.class_methods import MethodShape, RemoteMethod
from ray_multicluster_scheduler.app.client_api.arguments.arguments import prepare_arguments
from ray_multicluster_scheduler.app.client_api.handles.handle import Handle, PartHandle, handle_html
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.home_paths import find_in_arguments
from ray_multicluster_scheduler.common.notices import unread_failures
from ray_multicluster_scheduler.control_plane.runtime.item import CallPromise, Outcome

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
    from ray_multicluster_scheduler.control_plane.runtime.item import CallQueue


class _CallHandle(Handle):
    """Base of the handles of calls, which are not scheduled items."""

    __slots__ = ()
    _item: CallPromise

    def cancel(self, *, force: bool = False) -> bool:
        """Cancel it. A running method continues unless it is a coroutine. False: it had ended already."""
        return not self.done() and self._runtime.cancel_call(self._item.id, force=force)

    def _wait(self, timeout: float | None) -> Outcome:
        outcome = super()._wait(timeout)
        if outcome.completion.error == "ActorDiedError":
            unread_failures.expect(self._item.actor.item.id)
        elif not outcome.succeeded:
            unread_failures.read(self._item.actor.item.id)  # if it failed, the error of the call names that
        return outcome

    def explain(self) -> dict[str, Any]:
        """Return its actor, the actor's cluster, the number of calls before it, and why it waits."""
        return self._runtime.explain_call(self._item)

    def logs(self, *, stream: str | None = None) -> str:
        """Return the output of the actor; it is not separated by calls."""
        actor = self._item.actor.item
        return self._runtime.output.text(actor.id, actor.attempt, stream)


class ActorCallHandle(_CallHandle):
    """One call of a method."""

    __module__ = "ray_multicluster_scheduler"  # as the other handles: inside a cluster, the native one

    __slots__ = ()

    def __repr__(self) -> str:
        where = f" on {self.cluster!r}" if self.cluster else ""
        return f"<ActorCallHandle {self.id} {self._item.name} {self.state}{where}>"

    def _repr_html_(self) -> str:
        return handle_html("ActorCallHandle", self.id, self._item, self._item.name)


class CallPartHandle(_CallHandle, PartHandle):
    """One of the values of a call with ``num_returns``."""

    __slots__ = ()


class ActorMethod(RemoteMethod):
    """Thread-safe. Calls of one thread are run in the order it made them."""

    __slots__ = ("_calls", "_name", "_runtime", "_shape")

    def __init__(
        self,
        calls: CallQueue,
        runtime: ControlPlane,
        name: str,
        shape: MethodShape,
        own: Callable[..., Any] | None = None,
    ) -> None:
        self._calls, self._runtime, self._name, self._shape, self._own = calls, runtime, name, shape, own

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call it; returns a handle at once, several for ``num_returns`` above 1, None for 0.

        Raises TaskSubmissionError for arguments that cannot be sent, SchedulerError after the scheduler's end.
        """
        shape = self._shape
        if shape.streams:
            raise ConfigurationError(
                f"{self!r} is a generator; its values cannot be streamed across clusters.",
                next_step="return a list, or give the actor a method that returns the next value",
            )
        name = f"{self._calls.item.task.name}.{self._name}"
        arguments = prepare_arguments(args, kwargs, name, num_returns=shape.num_returns)
        has_paths = bool(find_in_arguments(args, kwargs, self._runtime.homes, 1))
        handle = ActorCallHandle(self._calls.call(self._name, arguments, has_paths=has_paths), self._runtime)
        if shape.num_returns == 1:
            return handle
        return CallPartHandle.split(handle, shape.num_returns) if shape.num_returns else None

    def _returning(self, num_returns: int) -> ActorMethod:
        shape = MethodShape(num_returns, self._shape.streams)
        return ActorMethod(self._calls, self._runtime, self._name, shape, self._own)

    def __repr__(self) -> str:
        return f"<ActorMethod {self._calls.item.task.name}.{self._name} of {self._calls.item.id}>"
