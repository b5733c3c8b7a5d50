"""Arguments whose values are sent separately from the call: results of other items, and values of ``put``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

from ray_multicluster_scheduler.common.frames import Blob
from ray_multicluster_scheduler.common.several_returns import part_of

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

    It is replaced only as an argument itself, positional or named. A handle inside of a list, an object or a function
    is pickled as a reference instead, see :class:`WithReferences`.
    """

    index: int
    part: int | None = None


class WithReferences(NamedTuple):
    """Pickled arguments of a call that has references to its objects, in them or in its function: ``names[i]`` is how
    those name object number i."""

    names: tuple[str, ...]
    pickled: bytes


class ReferencedValues:
    """The pickled objects of one call by name, and what :meth:`get` made of them."""

    def __init__(self, pickled: Mapping[str, Blob]) -> None:
        self._pickled = pickled
        self._made: dict[tuple[str, int | None], Any] = {}

    def get(self, name: str, part: int | None, make: Callable[[Blob], Any]) -> Any:
        """The result of ``make`` for the pickled object, computed once for all references to it."""
        if (name, part) not in self._made:
            self._made[name, part] = make(self._pickled[name])
        return self._made[name, part]


_referenced: ContextVar[ReferencedValues | None] = ContextVar("referenced", default=None)


@contextmanager
def references_to(values: ReferencedValues) -> Iterator[None]:
    """Inside, unpickled references are references to these values."""
    before = _referenced.set(values)
    try:
        yield
    finally:
        _referenced.reset(before)


def referenced_values() -> ReferencedValues | None:
    """The values of the call that is being unpickled."""
    return _referenced.get()


def fill_in(
    args: Sequence[Any], kwargs: Mapping[str, Any], load: Callable[[int], Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Replace each ObjectArgument by its value. Each is loaded separately: values are not shared."""

    def value(argument: Any) -> Any:
        if not isinstance(argument, ObjectArgument):
            return argument
        whole = load(argument.index)
        return whole if argument.part is None else part_of(whole, argument.part)

    return [value(one) for one in args], {name: value(one) for name, one in kwargs.items()}
