"""Plain functions whose pickle cannot have changed since the last time, so that it need not be made again.

A function goes by value with all that it refers to; in general only pickling it again tells whether that is still the
same. But most small functions refer to nothing, or to modules and constants only: then a look at a few identities
tells, which costs a hundredth of the pickling.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_CONSTANTS = frozenset({type(None), bool, int, float, complex, str, bytes, types.BuiltinFunctionType})
_MISSING = object()


class FunctionPickleCache(Generic[T]):
    """What was made of functions, for as long as they are there and surely the same. Safe from any thread."""

    def __init__(self) -> None:
        self._kept: weakref.WeakKeyDictionary[Any, tuple[list[object], T]] = weakref.WeakKeyDictionary()

    def get(self, function: Callable[..., Any], make: Callable[[], T]) -> T:
        """What ``make`` gave for this function before, or gives now."""
        if not isinstance(function, types.FunctionType) or not _goes_by_value(function):
            return make()
        kept = self._kept.get(function)
        now = list(_all_it_refers_to(function))
        if kept is not None and len(now) == len(kept[0]) and all(map(_same, now, kept[0])):
            return kept[1]
        made = make()
        if all(map(_is_constant, now)):
            self._kept[function] = (now, made)
        return made


def _goes_by_value(function: types.FunctionType) -> bool:
    return function.__module__ == "__main__" or "<locals>" in function.__qualname__


def _same(one: object, other: object) -> bool:
    return one is other


def _all_it_refers_to(function: types.FunctionType) -> Iterator[object]:
    yield function.__code__
    yield from (function.__name__, function.__qualname__, function.__module__, function.__doc__)
    yield from function.__defaults__ or ()
    for named in (function.__dict__, function.__kwdefaults__, function.__annotations__):
        if named:
            yield from named
            yield from named.values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            yield _MISSING
    space = function.__globals__
    for name in _names(function.__code__):
        yield space.get(name, _MISSING)


def _names(code: types.CodeType) -> Iterator[str]:
    """Every name that could be one of a global, also in functions inside."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _is_constant(value: object) -> bool:
    """Can it not change while it is the same object, and is it always pickled in the same way?"""
    kind = type(value)
    if kind in _CONSTANTS or kind is types.CodeType or value is _MISSING:
        return True
    if kind is types.ModuleType:  # but not a package: which of its modules are loaded goes along
        name = getattr(value, "__name__", "")
        return sys.modules.get(name) is value and not hasattr(value, "__path__")
    return kind is type and getattr(value, "__module__", "") == "builtins"
