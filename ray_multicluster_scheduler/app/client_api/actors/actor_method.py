"""``actor.method.remote(x)``: one method of one actor, ready to be called."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.app.client_api.actors.call_handle import ActorCallHandle, CallPartHandle
from ray_multicluster_scheduler.app.client_api.actors.class_methods import MethodShape
from ray_multicluster_scheduler.app.client_api.arguments.arguments import prepare_arguments
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.home_paths import find_in_arguments
from ray_multicluster_scheduler.common.several_returns import check_num_returns

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.call_queue import CallQueue
    from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane


class ActorMethod:
    """Safe from any thread. Calls of one thread are run in the order it made them."""

    __slots__ = ("_calls", "_name", "_own", "_runtime", "_shape")

    def __init__(
        self,
        calls: CallQueue,
        runtime: ControlPlane,
        name: str,
        shape: MethodShape,
        own: Callable[..., Any] | None = None,
    ) -> None:
        """``own`` is what the handle itself has under this name: it is still there to be called without ``.remote``."""
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

    def options(self, *, num_returns: int | None = None, **unknown: Any) -> ActorMethod:
        """The same method with another number of values. Raises ConfigurationError."""
        if unknown:
            raise ConfigurationError(
                f"A call of a method has no option {next(iter(unknown))!r}.", next_step="known options: num_returns"
            )
        if num_returns is None:
            return self
        check_num_returns(num_returns)
        shape = MethodShape(num_returns, self._shape.streams)
        return ActorMethod(self._calls, self._runtime, self._name, shape, self._own)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._own is not None:
            return self._own(*args, **kwargs)
        raise TypeError(f"{self!r} is a method of an actor, which runs elsewhere: call it with .remote(…)")

    def __repr__(self) -> str:
        return f"<ActorMethod {self._calls.item.task.name}.{self._name} of {self._calls.item.id}>"
