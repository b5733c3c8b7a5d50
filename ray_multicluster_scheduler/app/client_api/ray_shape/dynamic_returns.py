"""``num_returns="dynamic"``: the one value of the call is a generator of references to all that the function yielded.

Light to import: clusters load it, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.common.several_returns import iterated


class DynamicReturns:
    """Wraps a generator function so that it returns a DynamicObjectRefGenerator when it has ended."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> DynamicObjectRefGenerator:
        name = getattr(self.function, "__qualname__", repr(self.function))
        return DynamicObjectRefGenerator(values=iterated(self.function(*args, **kwargs), name))


class DynamicObjectRefGenerator:
    """Iterates once over handles of what a generator yielded, as Ray's class of this name."""

    def __init__(self, refs: Iterable[Any] = (), *, values: Iterable[Any] | None = None) -> None:
        """``values``: those of a generator that has just ended, or that was sent into a cluster."""
        self._refs: deque[Any] = deque(refs)
        self._rmcs_values = None if values is None else tuple(values)
        self._next = 0

    def __iter__(self) -> Iterator[Any]:
        while self._refs:
            yield self._refs.popleft()
        while self._next < len(self._rmcs_values or ()):
            self._next += 1
            yield execution_context.active_scheduler().put((self._rmcs_values or ())[self._next - 1])

    def __len__(self) -> int:
        return len(self._refs) + len(self._rmcs_values or ()) - self._next

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} values>"
