"""Imports are found without running anything."""

from __future__ import annotations

import types

import pytest

from ray_multicluster_scheduler.common.imported_names import names_in_code, names_in_source


def code_of(body: str) -> types.CodeType:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    space: dict[str, types.FunctionType] = {}
    exec(f"def f(name=None):\n{lines}\n", {}, space)
    return space["f"].__code__


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("return 1", set()),
        ("import a", {"a"}),
        ("import a.b as c, d", {"a.b", "d"}),
        ("from a.b import c", {"a.b"}),
        ("try:\n    import a\nexcept ImportError:\n    import b", {"a", "b"}),
        ("def g():\n    import a\n    return lambda: __import__('b.c')\nreturn g", {"a", "b.c"}),
        ("class C:\n    import a\nreturn [C for _ in range(3)]", {"a"}),
        ("import importlib\nreturn importlib.import_module('a.b')", {"importlib", "a.b"}),
        ("from importlib import import_module\nreturn import_module(name)", {"importlib"}),
        ("return 'a.b'", set()),
    ],
)
def test_imports_of_a_function(body: str, names: set[str]) -> None:
    assert names_in_code(code_of(body), None) == names


def test_relative_imports_start_at_the_package() -> None:
    code = code_of("from . import a\nfrom ..b import c")
    assert names_in_code(code, "pkg.sub") == {"pkg.sub"}
    assert names_in_code(code, None) == set(), "in a notebook they cannot work anyway"
    assert names_in_code(code_of("import a"), "pkg") == {"a"}


def test_a_function_with_more_names_than_a_byte_can_count() -> None:
    body = "\n".join(f"x{n} = y{n}.z{n}" for n in range(200)) + "\nimport far.away\nfrom .near import it"
    assert names_in_code(code_of(body), "pkg") == {"far.away", "pkg"}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("", set()),
        ("import a.b, c as d", {"a.b", "c"}),
        ("from a import b\nfrom . import x\nfrom .y import z", {"a"}),
        ("def f():\n    async def g():\n        import a\n", {"a"}),
        ("import typing\nif typing.TYPE_CHECKING:\n    import a\nelse:\n    import b\n", {"typing", "b"}),
        ("if TYPE_CHECKING:\n    from a import A\n", set()),
        ("x = importlib.import_module('a.b')\ny = import_module(name)\nz = __import__('c')", {"a.b", "c"}),
        ("import_module()\nimport_module('./a')\nimport_module(3)", set()),
        ("# -*- coding: latin-1 -*-\nimport a\nname = '\xe4'", {"a"}),
        ("import a\npattern = '\\d'", {"a"}),
    ],
)
def test_imports_of_a_file(source: str, names: set[str]) -> None:
    assert names_in_source(source.encode("latin-1")) == names


@pytest.mark.parametrize("source", [b"def f(:", b"\0", b"\xff = 1"])
def test_invalid_python_raises(source: bytes) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        names_in_source(source)
