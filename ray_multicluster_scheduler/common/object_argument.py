"""Arguments whose values are sent separately from the call: results of other items, and values of ``put``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RESULT = "result-"
"""Prefix of the name of a value that is the result of an item. The name of a put value is its digest."""
ACTOR = "actor:"
"""Prefix, in lists of such names, for the id of an actor whose handle is among the arguments."""


def is_put(name: str) -> bool:
    """Whether this is the digest of a value that was put."""
    return not name.startswith((RESULT, ACTOR))


@dataclass(frozen=True, slots=True)
class ObjectArgument:
    """Stands for the value of the call's object number ``index``, or for one part of it.

    It is replaced only as an argument itself, positional or named, not inside of a list.
    """

    index: int
    part: int | None = None


def fill_in(
    args: Sequence[Any], kwargs: Mapping[str, Any], load: Callable[[int], Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Replace each ObjectArgument by its value. Each is loaded separately: values are not shared."""

    def value(argument: Any) -> Any:
        if not isinstance(argument, ObjectArgument):
            return argument
        whole = load(argument.index)
        return whole if argument.part is None else tuple(whole)[argument.part]

    return [value(one) for one in args], {name: value(one) for name, one in kwargs.items()}
