"""Arguments whose value travels apart from the call: results of other items, and what was ``put``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RESULT = "result-"
"""What the name of a value begins with that is the value of an item; what was put goes by its digest."""
ACTOR = "actor:"
"""Where such names are listed: an actor whose handle is among the arguments, with its id behind it."""


def is_put(name: str) -> bool:
    """Is this the digest of a value that was put?"""
    return not name.startswith((RESULT, ACTOR))


@dataclass(frozen=True, slots=True)
class ObjectArgument:
    """Stands for the value of the call's object number ``index``, or for one part of it.

    Only as an argument itself, positional or named; inside of a list it means nothing.
    """

    index: int
    part: int | None = None


def fill_in(
    args: Sequence[Any], kwargs: Mapping[str, Any], load: Callable[[int], Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Put the values in their places. Each object is loaded anew for each place: they are not shared."""

    def value(argument: Any) -> Any:
        if not isinstance(argument, ObjectArgument):
            return argument
        whole = load(argument.index)
        return whole if argument.part is None else tuple(whole)[argument.part]

    return [value(one) for one in args], {name: value(one) for name, one in kwargs.items()}
