"""also_named: accepts arguments by the names that they had in earlier versions. Standard library only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ray_multicluster_scheduler.common.exception import ConfigurationError

F = TypeVar("F", bound=Callable[..., Any])


def also_named(**names: str) -> Callable[[F], F]:
    """Decorator: accept a keyword argument by an earlier name, too (``func="fn"``). Type checkers see only the current
    names. The function raises ConfigurationError if both are given and differ."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not names.keys().isdisjoint(kwargs):
                _rename(kwargs, names, function.__name__)
            return function(*args, **kwargs)

        return cast("F", call)

    return decorate


def _rename(kwargs: dict[str, Any], names: dict[str, str], verb: str) -> None:
    for earlier in names.keys() & kwargs.keys():
        name, value = names[earlier], kwargs.pop(earlier)
        other = kwargs.get(name)
        if value is not None and other not in (None, value):
            raise ConfigurationError(
                f"{verb} was given {earlier}={value!r} and {name}={other!r}, which mean the same.",
                next_step=f"give {name} only",
            )
        if value is not None or name not in kwargs:
            kwargs[name] = value
