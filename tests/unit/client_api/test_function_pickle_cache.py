"""A function is pickled again whenever its pickle could be another one."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.modules.function_pickle_cache import FunctionPickleCache
from ray_multicluster_scheduler.common import pickling


class Pickles:
    """Pickles through the cache, and counts how often it was really done."""

    def __init__(self) -> None:
        self.made = 0
        self._steady: FunctionPickleCache[bytes] = FunctionPickleCache()

    def __call__(self, function: Callable[..., Any]) -> bytes:
        def make() -> bytes:
            self.made += 1
            return pickling.dumps(function)

        return self._steady.get(function, make)


def in_main(source: str, **names: Any) -> Any:
    """A function of a program, with its own globals."""
    space: dict[str, Any] = {"__name__": "__main__", **names}
    exec(source, space)
    return space["f"]


@pytest.mark.parametrize(
    "source",
    [
        "def f(x): return x",
        "def f(x: int = 3, *, y='a') -> str: return x",
        "def f(): return math.sin(k)",
        "f = lambda x: [i for i in x if len(i)]",
        "def f():\n import time\n def g(): return k\n return g",
    ],
)
def test_immutable_function_is_pickled_once(source: str) -> None:
    pickles, f = Pickles(), in_main(source, math=math, k=7)
    assert pickles(f) == pickles(f) == pickling.dumps(f)
    assert pickles.made == 1


def test_also_with_constants_in_its_closure() -> None:
    number = 5

    def f() -> int:
        return number

    pickles = Pickles()
    assert pickling.loads(pickles(f))() == 5
    pickles(f)
    assert pickles.made == 1
    number = 6
    assert pickling.loads(pickles(f))() == 6


CHANGES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "a global": ("def f(): return k", lambda f: f.__globals__.update(k=8)),
    "a global that was not there": ("def f(): return new", lambda f: f.__globals__.update(new=1)),
    "a global of an inner function": ("def f(): return lambda: k", lambda f: f.__globals__.update(k=8)),
    "a list": ("def f(): return l", lambda f: f.__globals__["l"].append(1)),
    "another function": ("def g(): return k\ndef f(): return g()", lambda f: f.__globals__.update(k=8)),
    "a default": ("def f(x=1): return x", lambda f: setattr(f, "__defaults__", (2,))),
    "a list as default": ("def f(x=[]): return x", lambda f: f.__defaults__[0].append(1)),
    "a named default": ("def f(*, x=1): return x", lambda f: f.__kwdefaults__.update(x=2)),
    "its code": ("def f(): return 1", lambda f: setattr(f, "__code__", (lambda: 2).__code__)),
    "an attribute": ("def f(): return f.a\nf.a = 1", lambda f: setattr(f, "a", 2)),
    "an annotation": ("def f(x: 'a'): return 1", lambda f: f.__annotations__.update(x="b")),
    "its name": ("def f(): return 1", lambda f: setattr(f, "__qualname__", "other")),
    "a module": ("def f(): return m.a", lambda f: setattr(f.__globals__["m"], "a", 2)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_changed_function_is_pickled_again(what: str) -> None:
    source, change = CHANGES[what]
    f = in_main(source, k=7, l=[], m=types.ModuleType("not_imported"))
    pickles = Pickles()
    before = pickles(f)
    change(f)
    after = pickles(f)
    assert after == pickling.dumps(f)
    assert after != before


def test_other_callables_are_pickled_each_time() -> None:
    class Adder:
        def __call__(self) -> int:
            return 1

    pickles = Pickles()
    for callable_ in (Adder(), len, in_main, types.SimpleNamespace):
        pickles(callable_)
        pickles(callable_)
    assert pickles.made == 8
