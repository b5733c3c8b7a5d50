"""The methods of a class that an actor's handle offers. Standard library only: a cluster loads it, too."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ray_multicluster_scheduler.common.several_returns import check_num_returns

F = TypeVar("F", bound=Callable[..., Any])

_RETURNS = "_rmcs_num_returns"
_RAY_RETURNS = "__ray_num_returns__"  # what @ray.method leaves at a method


@dataclass(frozen=True, slots=True)
class MethodShape:
    """What its caller must know of a method. ``streams``: it is a generator, which cannot be called from here."""

    num_returns: int = 1
    streams: bool = False


def method(*, num_returns: int = 1) -> Callable[[F], F]:
    """Decorator for methods of actors: ``@method(num_returns=2)`` makes each call give two handles."""
    number = check_num_returns(num_returns)

    def mark(function: F) -> F:
        setattr(function, _RETURNS, number)
        return function

    return mark


def methods_of(cls: type) -> dict[str, MethodShape]:
    """By name. Dunder methods are left out but ``__call__``: Python looks for them at handles for its own purposes."""
    shapes: dict[str, MethodShape] = {}
    for name in dir(cls):
        if name.startswith("__") and name != "__call__":
            continue
        member = inspect.getattr_static(cls, name, None)
        function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if not callable(function) or isinstance(function, type):
            continue
        returns = getattr(function, _RETURNS, getattr(function, _RAY_RETURNS, 1))
        streams = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        shapes[name] = MethodShape(returns if isinstance(returns, int) else 1, streams)
    return shapes


def is_asynchronous(cls: type) -> bool:
    """Whether it has an ``async def`` method. All methods of such an actor run on one event loop, as in Ray."""
    return bool(inspect.getmembers(cls, inspect.iscoroutinefunction)) or bool(
        inspect.getmembers(cls, inspect.isasyncgenfunction)
    )
