"""Pickles cross between two copies of cloudpickle, and say which modules they need."""

from __future__ import annotations

import collections
import importlib
import json
import math
import pickle
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from ray_multicluster_scheduler.common import pickling

MODULE = """
import enum

class Shape(enum.Enum):
    ROUND = 1

class Thing:
    def __init__(self, x): self.x = x
    def method(self): return self.x
    @staticmethod
    def make(): return Thing(0)

class Child(Thing):
    pass

CONSTANT = 5

def plain(x): return x + 1

def uses_plain(x): return plain(x)

def outer(y):
    def inner(x): return x + y
    return inner

def outer_using_plain():
    def inner(x): return plain(x)
    return inner

square = lambda x: x * x
"""

DECORATED = """
import functools
def decorator(f):
    @functools.wraps(f)
    def wrapper(): return f()
    return wrapper
@decorator
def f():
    import far
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A user's own importable module."""
    (tmp_path / "users_own_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("users_own_module")
    del sys.modules["users_own_module"]


def own(value: object) -> set[str]:
    """The modules it needs, without those that every cluster has."""
    data, modules = pickling.dumps_with_modules(value)
    assert isinstance(data, bytes)
    return {name for name in modules if name.partition(".")[0] not in {*sys.stdlib_module_names, "cloudpickle"}}


@pytest.mark.parametrize(
    "expression",
    [
        "m.plain",
        "m.uses_plain",
        "m.Thing",
        "m.Child",
        "m.Thing(1)",
        "m.Thing(1).method",
        "m.Thing.make",
        "m.Shape.ROUND",
        "m",
        "((1, [{'x': m.Thing(1)}]), {})",
        "((m.plain,), {})",
        "functools.partial(m.plain, 1)",
        "m.outer_using_plain()",
        "lambda: m.plain(1)",
    ],
)
def test_what_is_pickled_by_name_names_its_module(mine: types.ModuleType, expression: str) -> None:
    import functools

    value = eval(expression, {"m": mine, "functools": functools, "__name__": "__main__"})
    assert "users_own_module" in own(value)


@pytest.mark.parametrize("expression", ["m.outer(3)", "m.square", "((1, 'text', [2.5]), {'a': None})", "m.CONSTANT"])
def test_what_is_pickled_by_value_needs_no_module(mine: types.ModuleType, expression: str) -> None:
    assert own(eval(expression, {"m": mine})) == set()


@pytest.mark.parametrize(
    "expression",
    [
        "((3,), {})",
        "((), {})",
        "((1.5, 'text', b'bytes', [True, None]), {'a': {1: (2,)}})",
        "((list(range(39)),), {})",
        "((list(range(10_000)),), {'big': b'x' * 100_000})",
    ],
)
def test_plain_arguments_are_pickled_as_any_others(expression: str) -> None:
    value = eval(expression)
    data, modules = pickling.dumps_with_modules(value)
    assert (data, modules) == (cloudpickle.dumps(value, protocol=5), set())
    assert pickling.loads(data) == value


def test_large_bytes_are_pickled_and_unpickled_without_a_copy_in_between() -> None:
    large, array = b"x" * 2_000_000, bytearray(b"y" * 2_000_000)
    value = {"a": large, "b": array, "c": [b"z" * 100_000] * 3, "d": "text" * 500_000}
    pieces = pickling.dumps_pieces(value)
    assert any(piece is large for piece in pieces)
    assert any(piece is array for piece in pieces)
    assert b"".join(pieces) == pickling.dumps(value)
    assert len(pieces) == 7, "short pieces are joined"
    for kind in (bytes, bytearray, memoryview):
        assert pickling.loads(kind(b"".join(pieces))) == value


@pytest.mark.parametrize("protocol", range(6))
def test_any_pickle_is_read_from_any_buffer(protocol: int) -> None:
    value = [{"n": number, "text": f"{number}" * 20, "f": print} for number in range(5_000)]
    assert pickling.loads(memoryview(pickle.dumps(value, protocol))) == value


def test_arguments_that_contain_themselves() -> None:
    loop: list[object] = []
    loop.append(loop)
    again = pickling.loads(pickling.dumps_with_modules(((loop,), {}))[0])[0][0]
    assert again[0] is again


def test_a_subclass_of_something_plain_is_not_plain(mine: types.ModuleType) -> None:
    kind = type("Text", (str,), {"__module__": "users_own_module"})
    mine.Text = kind  # type: ignore[attr-defined]  # a class that can be found by its name
    assert own(((kind("x"),), {})) == {"users_own_module"}


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("def f():\n import far.away\n from near import it", {"far.away", "near"}),
        ("def f():\n from .sibling import it\n from . import other", {"users_package.deep"}),
        ("def f():\n import importlib\n importlib.import_module('far.away')", {"far.away"}),
        ("def g():\n import far\ndef f():\n return g()", {"far"}),
        ("class C:\n def m(self):\n  import far\ndef f():\n return C()", {"far"}),
        (DECORATED, {"far"}),
        ("import functools\ndef g(x):\n import far\nf = functools.partial(g, 1)", {"far"}),
        ("class C:\n def m(self):\n  import far\nf = C().m", {"far"}),
        ("f = lambda: __import__('far')", {"far"}),
    ],
)
def test_what_is_pickled_by_value_names_what_it_imports_when_it_runs(body: str, names: set[str]) -> None:
    space: dict[str, Any] = {"__name__": "__main__", "__package__": "users_package.deep"}
    exec(body, space)
    assert own(space["f"]) == names


def test_a_thing_that_is_found_by_its_own_name(mine: types.ModuleType) -> None:
    exec("class Only:\n def __reduce__(self): return 'ONLY'\nONLY = Only()", mine.__dict__)
    assert own(mine.ONLY) == {"users_own_module"}


def test_the_standard_library_is_named_too() -> None:
    _, modules = pickling.dumps_with_modules((math, collections.OrderedDict, json.dumps))
    assert {"math", "collections", "json"} <= modules


def test_main_is_pickled_by_value(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import sys
        from ray_multicluster_scheduler.common import pickling
        class Mine: pass
        def f(x): return Mine
        data, modules = pickling.dumps_with_modules((f, Mine, Mine()))
        again, _, thing = pickling.loads(data)
        assert again(1) is Mine and type(thing) is Mine
        print(modules - {"cloudpickle.cloudpickle", *sys.stdlib_module_names})
        """)
    )
    root = Path(pickling.__file__).parents[2]
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env={"PYTHONPATH": str(root)})
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_round_trip_of_a_closure_and_of_data() -> None:
    base = 10
    assert pickling.loads(pickling.dumps(lambda x: x + base))(5) == 15
    assert pickling.loads(memoryview(pickling.dumps({"a": [1, 2]}))) == {"a": [1, 2]}
    data, _ = pickling.dumps_with_modules(lambda x: x * base)
    assert pickling.loads(data)(2) == 20


def test_a_pickle_that_a_cluster_wrote_loads_here() -> None:
    """Ray's copy of cloudpickle has another name, which nobody has here."""
    here = cloudpickle.dumps(lambda x: x + 1, protocol=2)  # text opcodes, so that names can be exchanged
    there = here.replace(b"ccloudpickle", b"cray.cloudpickle")
    assert b"ray.cloudpickle" in there
    with pytest.raises(ModuleNotFoundError):
        pickle.loads(there)
    assert pickling.loads(there)(1) == 2


def test_inside_a_cluster_the_names_are_mapped_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, copy = types.ModuleType("ray"), types.ModuleType("ray.cloudpickle")
    inner = types.ModuleType("ray.cloudpickle.cloudpickle")
    inner.__dict__.update(cloudpickle.cloudpickle.__dict__)
    copy.__dict__.update({"dump": lambda value, file, protocol: file.write(b"by ray's copy"), "cloudpickle": inner})
    for name, module in {"ray": ray, "ray.cloudpickle": copy, "ray.cloudpickle.cloudpickle": inner}.items():
        monkeypatch.setitem(sys.modules, name, module)
    here = cloudpickle.dumps(lambda x: x + 1)
    monkeypatch.setitem(sys.modules, "cloudpickle.cloudpickle", None)  # a cluster does not have it
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert pickling.loads(here)(1) == 2
    assert pickling.dumps(object()) == b"by ray's copy"
    assert pickle.loads(pickling.dumps([1, "x"])) == [1, "x"]  # needs neither


def test_modules_whose_names_only_look_alike_are_left_alone() -> None:
    with pytest.raises(ModuleNotFoundError, match="cloudpickle_of_mine"):
        pickling.loads(b"ccloudpickle_of_mine\nx\n.")
    with pytest.raises(ModuleNotFoundError, match="ray"):
        pickling.loads(b"cray.cloudpickler\nx\n.")
