"""ActorMethod (``actor.method.remote(x)``), in the program outside clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.app.client_api.actors.class_methods import MethodShape, RemoteMethod
from ray_multicluster_scheduler.app.client_api.arguments.arguments import prepare_arguments
from ray_multicluster_scheduler.app.client_api.handles.call_handle import ActorCallHandle, CallPartHandle
from ray_multicluster_scheduler.app.client_api.handles.object_ref_generator import ObjectRefGenerator
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.home_paths import find_in_arguments
from ray_multicluster_scheduler.common.several_returns import DYNAMIC, STREAM, STREAMING

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
    from ray_multicluster_scheduler.control_plane.runtime.item import CallQueue


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
        """Call it; returns a handle at once, several for ``num_returns`` above 1, None for 0, for a
        generator an ObjectRefGenerator.

        Raises TaskSubmissionError for arguments that cannot be sent, SchedulerError after the scheduler's end.
        """
        shape = self._shape
        if shape.num_returns == DYNAMIC:
            raise ConfigurationError(
                f'{self!r} cannot be called with num_returns="dynamic".', next_step='use num_returns="streaming"'
            )
        name = f"{self._calls.item.task.name}.{self._name}"
        streams = shape.num_returns == STREAMING
        arguments = prepare_arguments(args, kwargs, name, num_returns=1 if streams else shape.num_returns)
        has_paths = bool(find_in_arguments(args, kwargs, self._runtime.homes, 1))
        method = f"{STREAM}{self._name}" if streams else self._name
        handle = ActorCallHandle(self._calls.call(method, arguments, has_paths=has_paths), self._runtime)
        if streams:
            return ObjectRefGenerator(handle, self._calls, handle.id)
        if shape.num_returns == 1:
            return handle
        return CallPartHandle.split(handle, shape.num_returns) if shape.num_returns else None

    def _returning(self, num_returns: int) -> ActorMethod:
        return ActorMethod(self._calls, self._runtime, self._name, MethodShape(num_returns), self._own)

    def __repr__(self) -> str:
        return f"<ActorMethod {self._calls.item.task.name}.{self._name} of {self._calls.item.id}>"
