"""Functions and methods that return several values (``num_returns``), each with its own handle. Workers load this
module too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray_multicluster_scheduler.common.exception import ConfigurationError


def check_num_returns(number: object) -> int:
    """The number of values; None means 1. Raises ConfigurationError."""
    if number is None:
        return 1
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        streamed = number in ("dynamic", "streaming")
        raise ConfigurationError(
            f"num_returns is {number!r}{': values cannot be streamed across clusters' if streamed else ''}.",
            next_step="return a list, or make one call per piece" if streamed else "give a whole number, 0 or more",
        )
    return number


class SeveralReturns:
    """Wraps a function so that it returns exactly this number of values."""

    def __init__(self, function: Callable[..., Any], number: int) -> None:
        self.function, self.number = function, number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = getattr(self.function, "__qualname__", repr(self.function))
        return as_many(self.function(*args, **kwargs), self.number, name)


def as_many(value: Any, number: int, name: str) -> Any:
    """Convert what ``name`` returned to a tuple of ``number`` values, the value itself (1) or None (0). Raises
    ValueError."""
    if number == 1:
        return value
    if number == 0:
        return None
    wrong = wrong_number(value, number, name)
    if wrong is not None:
        raise wrong
    return tuple(value)


def wrong_number(value: Any, number: int, name: str) -> ValueError | None:
    """The error for a value that does not have this number of parts; None if it has."""
    try:
        if len(value) == number:
            return None
        held = f"{len(value)} values"
    except TypeError:
        held = f"a {type(value).__qualname__}"
    return ValueError(f"{name} returned {held}, but num_returns is {number}")
