"""Functions and methods that return several values (``num_returns``), each with its own handle. Workers load this
module too."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from ray_multicluster_scheduler.common.exception import ConfigurationError

STREAMING, DYNAMIC = -1, -2
"""Numbers of values that stand for ``"streaming"`` and ``"dynamic"``."""
VALUES_AHEAD = 16
"""A generator is held back while so many of its values wait in its cluster, and so many in the program."""
NEXT, DISCARD, STREAM = "rmcs-next:", "rmcs-discard:", "rmcs-stream:"
"""Prefixes of names of methods, in calls of the link: the next value of a generator, the end of its reading, and a call
of a method that is a generator."""
NO_VALUE = "NO_VALUE"
"""The code of a request for a value that this attempt of the generator did not yield."""
_WORDS = {"streaming": STREAMING, "dynamic": DYNAMIC}


def check_num_returns(number: object, function: object = None) -> int:
    """The number of values, STREAMING or DYNAMIC. None means 1, and STREAMING of a generator ``function``. Raises
    ConfigurationError."""
    if isinstance(number, str) and number in _WORDS:
        return _WORDS[number]
    if number is None:
        return STREAMING if is_generator(function) else 1
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ConfigurationError(
            f"num_returns is {number!r}.", next_step='give a whole number, 0 or more, "streaming" or "dynamic"'
        )
    return number


def check_can_wait(number: int, name: str) -> None:
    """Raises ConfigurationError for a verb that waits for the value of a generator."""
    if number == STREAMING:
        raise ConfigurationError(
            f"{name} is a generator: nothing would read its values while submit_task waits for it.",
            next_step=f"iterate over {name}.remote(…) or submit_task_async({name}, …)",
        )


def is_generator(function: object) -> bool:
    """Whether it is a generator function, plain or asynchronous."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def rays_num_returns(number: int) -> int | str:
    """The number as Ray takes it."""
    return next((word for word, meant in _WORDS.items() if meant == number), number)


class SeveralReturns:
    """Wraps a function so that it returns exactly this number of values."""

    def __init__(self, function: Callable[..., Any], number: int) -> None:
        self.function, self.number = function, number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = getattr(self.function, "__qualname__", repr(self.function))
        return as_many(self.function(*args, **kwargs), self.number, name)


def next_value(stream_id: str, index: int, lacking: int) -> str:
    """The name of the method that returns a value of a generator. The reader has all values before ``lacking``, and
    will request all after it that it lacks."""
    return f"{NEXT}{index}:{lacking}:{stream_id}"


def iterated(value: Any, name: str) -> Iterator[Any]:
    """Check that what ``name`` returned is a generator, or another iterator. Raises TypeError."""
    if not isinstance(value, Iterator):
        raise TypeError(f"{name} returned a {type(value).__qualname__}, but num_returns requires a generator")
    return value


def part_of(values: Any, part: int) -> Any:
    """One of the values of a call with several; all values of a dynamic generator are in ``_rmcs_values``."""
    return tuple(getattr(values, "_rmcs_values", values))[part]


def as_many(value: Any, number: int, name: str) -> Any:
    """Convert what ``name`` returned to a tuple of ``number`` values, the value itself (1) or None (0). A generator is
    run to its end. Raises ValueError."""
    if number == 1:
        return value
    if inspect.isgenerator(value):
        value = tuple(value)
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
