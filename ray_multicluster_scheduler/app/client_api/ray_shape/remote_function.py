"""RemoteFunction: the result of ``@remote`` on a function. Made by the decorator, submitted by the active scheduler.

Light to import: decorated functions are also loaded inside clusters, where their calls are plain Ray calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NoReturn

from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api.ray_shape.ray_options import task_options
from ray_multicluster_scheduler.common.exception import ConfigurationError


class RemoteObject:
    """Base of remote functions and classes: has the names of what it wraps, and is pickled by name if importable."""

    def __init__(self, wrapped: Any, options: Mapping[str, Any]) -> None:
        self.given_options = dict(options)
        self._base: Any = None
        self.__module__ = getattr(wrapped, "__module__", None) or "__main__"
        self.__name__ = getattr(wrapped, "__name__", type(wrapped).__name__)
        self.__qualname__ = getattr(wrapped, "__qualname__", self.__name__)
        self.__doc__ = getattr(wrapped, "__doc__", None)
        self.__wrapped__ = wrapped

    @property
    def by_name(self) -> bool:
        """Can this object, without changed options, be imported by name from its module?"""
        base = self._base or self
        if base.__module__ in ("__main__", "__mp_main__"):
            return False
        found: Any = sys.modules.get(base.__module__)
        for name in base.__qualname__.split("."):
            found = getattr(found, name, None)
        return found is base

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.__module__}.{self.__qualname__}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._base is not None:
            return _view, (self._base, self.given_options)
        if self.by_name:
            return self.__qualname__  # by name, like an undecorated function or class
        return super().__reduce_ex__(protocol)


def _view(base: Any, options: dict[str, Any]) -> Any:
    return base.options(**options)


class RemoteFunction(RemoteObject):
    """A function with options; ``f.remote(x)`` runs it on the best cluster and returns a handle.

    With ``num_returns=n`` it returns n handles, with 0 None. The function is pickled once, at its first call. Can
    itself be pickled, and used inside tasks.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        """Raises ConfigurationError if ``function`` is not a function, and for unknown options."""
        if not callable(function) or isinstance(function, type):
            raise ConfigurationError(
                f"remote was given {function!r} ({type(function).__name__}), which is neither a function nor a class.",
                next_step="decorate a function or a class; options are keywords: @remote(num_cpus=2)",
            )
        super().__init__(function, options)
        self.function = function
        self.submit_options = task_options(options)
        self.pickled: dict[int, Any] = {}
        """Cache of the sender: the PickledFunction by number of returns; ``template`` is its TaskTemplate."""
        self.template: tuple[object, Any] | None = None

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Run it; returns a handle. Raises ConfigurationError, TaskSubmissionError."""
        return execution_context.active_scheduler().submit_task_async(self, args, kwargs)

    def options(self, **options: Any) -> RemoteFunction:
        """Return the same function with other options. Raises ConfigurationError."""
        view = RemoteFunction(self.function, **{**self.given_options, **options})
        view._base = self._base or self
        view.pickled = self.pickled
        return view

    @property
    def shipped(self) -> Callable[..., Any]:
        """The object to pickle for a cluster: a reference by name if it can be imported, else the function by value."""
        return _FunctionOf(self._base or self) if self.by_name else self.function

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        name = self.__name__
        raise TypeError(f"{name} is a remote function: call {name}.remote(…), or {name}.function(…) to run it here.")

    def __getstate__(self) -> dict[str, Any]:
        # Includes the names, although the function has them: a function that refers to this object may not be complete
        # yet when this is unpickled.
        return {**self.__dict__, "pickled": {}, "template": None}


class _FunctionOf:
    """Pickled as a reference to a RemoteFunction; unpickled as the function in it."""

    def __init__(self, remote_function: RemoteFunction) -> None:
        self._remote_function = remote_function
        self.__qualname__ = remote_function.__qualname__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._remote_function.function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return attrgetter("function"), (self._remote_function,)


def as_remote_function(fn: Any) -> Any:
    """Convert Ray's RemoteFunction with its options; return anything else unchanged. Does not import Ray."""
    module = sys.modules.get("ray.remote_function")
    theirs = getattr(module, "RemoteFunction", None)
    if theirs is None or not isinstance(fn, theirs):
        return fn
    options = dict(fn._default_options)
    if options.get("num_gpus"):
        options.pop("max_calls", None)  # Ray sets it for every function that needs a GPU
    return RemoteFunction(fn._function, **options)
