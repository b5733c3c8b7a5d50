"""FunctionPickleCache: caches the pickles of plain functions that cannot have changed since they were pickled.

A function is pickled by value with everything that it refers to, which may change at any time. But most small functions
refer only to modules and constants: comparing their identities costs a hundredth of pickling.
"""

from __future__ import annotations

import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_CONSTANTS = frozenset({type(None), bool, int, float, complex, str, bytes, types.BuiltinFunctionType})
_MISSING = object()


class FunctionPickleCache(Generic[T]):
    """Caches a value per function while the function lives and is unchanged. Thread-safe."""

    def __init__(self) -> None:
        self._kept: weakref.WeakKeyDictionary[Any, tuple[list[object], T]] = weakref.WeakKeyDictionary()

    def get(self, function: Callable[..., Any], make: Callable[[], T]) -> T:
        """Return the cached value for this function, or the result of ``make``."""
        if not isinstance(function, types.FunctionType):
            return make()
        if function.__module__ != "__main__" and "<locals>" not in function.__qualname__:
            return make()  # pickled by name
        kept = self._kept.get(function)
        now = list(_references(function))
        if kept is not None and len(now) == len(kept[0]) and all(map(operator.is_, now, kept[0])):
            return kept[1]
        made = make()
        if all(map(_is_constant, now)):
            self._kept[function] = (now, made)
        return made


def _references(function: types.FunctionType) -> Iterator[object]:
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
    """Yield every name that may refer to a global, also in nested functions."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _is_constant(value: object) -> bool:
    """Is the object immutable, and always pickled in the same way?"""
    kind = type(value)
    if kind in _CONSTANTS or kind is types.CodeType or value is _MISSING:
        return True
    if kind is types.ModuleType:  # not a package: its pickle includes which submodules are loaded
        name = getattr(value, "__name__", "")
        return sys.modules.get(name) is value and not hasattr(value, "__path__")
    return kind is type and getattr(value, "__module__", "") == "builtins"
