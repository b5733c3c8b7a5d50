"""Inspects the methods of actor classes, ``@method``, and base classes of actor handles, for programs and clusters.

Standard library only: clusters load it, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, overload

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.several_returns import check_num_returns

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H")
T = TypeVar("T")

_RETURNS = "_rmcs_num_returns"
_RAY_RETURNS = "__ray_num_returns__"  # what @ray.method leaves at a method


@dataclass(frozen=True, slots=True)
class MethodShape:
    """Call information of a method."""

    num_returns: int = 1


def method(*, num_returns: int | str = 1) -> Callable[[F], F]:
    """Decorator for methods of actors: with ``@method(num_returns=2)`` each call returns two handles."""
    check_num_returns(num_returns)

    def mark(function: F) -> F:
        setattr(function, _RETURNS, num_returns)
        return function

    return mark


def methods_of(cls: type) -> dict[str, MethodShape]:
    """Return the methods by name. Dunder methods except ``__call__`` are omitted: Python looks them up on handles."""
    shapes: dict[str, MethodShape] = {}
    for name in dir(cls):
        if name.startswith("__") and name != "__call__":
            continue
        member = inspect.getattr_static(cls, name, None)
        function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if not callable(function) or isinstance(function, type):
            continue
        returns = getattr(function, _RETURNS, getattr(function, _RAY_RETURNS, None))
        shapes[name] = MethodShape(check_num_returns(returns, function))
    return shapes


def is_asynchronous(cls: type) -> bool:
    """Has the class an ``async def`` method? All methods of such an actor run on one event loop, as in Ray."""
    return bool(inspect.getmembers(cls, inspect.iscoroutinefunction)) or bool(
        inspect.getmembers(cls, inspect.isasyncgenfunction)
    )


class HandleAttribute(Generic[H, T]):
    """A read-only attribute of an actor handle, which a method of the user's class with the same name hides."""

    def __init__(self, read: Callable[[H], T]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    @overload
    def __get__(self, handle: None, owner: type) -> Self: ...
    @overload
    def __get__(self, handle: H, owner: type) -> T: ...
    def __get__(self, handle: H | None, owner: type) -> Self | T:
        return self if handle is None else self._read(handle)


class RemoteMethod:
    """Base of a method of an actor handle. ``own`` is the handle's own method of this name, which is called without
    ``.remote``."""

    __slots__ = ("_own",)

    _own: Callable[..., Any] | None

    def options(self, *, num_returns: int | str | None = None, **unknown: Any) -> Self:
        """Return the same method with another number of return values. Raises ConfigurationError."""
        if unknown:
            raise ConfigurationError(
                f"A call of a method has no option {next(iter(unknown))!r}.", next_step="known options: num_returns"
            )
        return self if num_returns is None else self._returning(check_num_returns(num_returns))

    def _returning(self, num_returns: int) -> Self:
        """The same method with this number of return values; each kind of method implements it."""
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._own is not None:
            return self._own(*args, **kwargs)
        raise TypeError(f"{self!r} is a method of an actor, which runs elsewhere: call it with .remote(…)")
