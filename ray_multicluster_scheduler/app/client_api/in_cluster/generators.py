"""Generators inside a cluster: Ray's own, whose references are wrapped in handles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn, Self

from ray_multicluster_scheduler.app.client_api.in_cluster import runtime_context
from ray_multicluster_scheduler.app.client_api.in_cluster.handle import NativeObjectHandle, NativeTaskHandle
from ray_multicluster_scheduler.app.client_api.ray_shape.dynamic_returns import DynamicObjectRefGenerator
from ray_multicluster_scheduler.common.current_item import CurrentItem
from ray_multicluster_scheduler.common.exception import TaskSubmissionError


class NativeObjectRefGenerator:
    """Iterates over handles of the values that a generator on this cluster yields."""

    def __init__(self, generator: Any, name: str, parent: CurrentItem, kind: type[NativeTaskHandle]) -> None:
        self.ref, self._name, self._parent, self._kind = generator, name, parent, kind

    @property
    def id(self) -> str:
        """Ray's id of the task."""
        return self.completed().id

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> NativeTaskHandle:
        return self._handle(next(self.ref))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> NativeTaskHandle:
        return self._handle(await anext(self.ref))

    def completed(self) -> NativeTaskHandle:
        """The handle of the task or call, which ends with the generator."""
        return self._handle(self.ref.completed())

    def done(self) -> bool:
        """Whether the next value, or the end, is known."""
        return self.next_ready() or self.is_finished()

    def next_ready(self) -> bool:
        """Whether ``next`` would return a handle whose value is there."""
        return bool(self.ref.next_ready())

    def is_finished(self) -> bool:
        """Whether ``next`` would raise StopIteration."""
        return bool(self.ref.is_finished())

    def cancel(self, *, force: bool = False) -> bool:
        """End the generator; see :meth:`NativeTaskHandle.cancel`."""
        return self.completed().cancel(force=force)

    def close(self) -> None:
        """End the generator."""
        self.cancel()

    def _handle(self, ref: Any) -> NativeTaskHandle:
        return self._kind(ref, self._name, self._parent)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self._name} on {self._parent.cluster!r}>"

    def __reduce__(self) -> NoReturn:
        raise TaskSubmissionError(
            f"The generator {self._name} cannot be pickled: its values are read where it was submitted.",
            next_step="pass the handles that it yields",
        )


class NativeDynamicHandle(NativeTaskHandle):
    """A task with ``num_returns="dynamic"``: its value is a generator of handles."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> Any:
        """As :meth:`NativeTaskHandle.result`."""
        return with_handles(super().result(timeout), self.parent)


def with_handles(value: Any, parent: CurrentItem) -> Any:
    """Replace Ray's generator of references by one of handles; any other value is unchanged."""
    if not isinstance(value, runtime_context.connected_ray().DynamicObjectRefGenerator):
        return value
    refs: Iterable[Any] = value
    return DynamicObjectRefGenerator(NativeObjectHandle(ref, "a yielded value", parent) for ref in refs)
