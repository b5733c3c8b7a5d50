"""scripts/mutants.py: each mutant changes the program in exactly one place; equivalent changes are left out."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there for their module
    spec.loader.exec_module(module)
    return module


script = load("mutants")


def changed(source: str) -> set[str]:
    return {one.applied(source) for one in script.mutants(source)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", {"x = (a <= b)", "x = (a >= b)"}),
        ("x = a is None", {"x = (a is not None)"}),
        ("x = a not in b", {"x = (a in b)"}),
        ("x = a and b", {"x = (a or b)"}),
        ("x = not a", {"x = (a)"}),
        ("x = a + b", {"x = (a - b)"}),
        ("x = 2", {"x = (3)", "x = (1)"}),
        ("x = True", {"x = (False)"}),
        ("x += y", {"x -= y", "pass"}),
        ("f(a)", {"pass"}),
        ("self.x = y", {"pass"}),
        ("x = y", set()),
        ("del x[y]", {"pass"}),
        ("raise ValueError", {"pass"}),
        ("if a: b", {"if (not (a)): b"}),
        ("x = [a for a in b if a]", {"x = [a for a in b if (not (a))]"}),
        ("def f() -> int:\n    return x", {"def f() -> int:\n    return None"}),
        ("def f():\n    return None", set()),
        ("for x in y:\n    continue", {"for x in y:\n    break"}),
        ("'''A text.'''", set()),
        ("x: Literal[1]", set()),
        ("@frozen(x=True)\nclass A: ...", set()),
        ("x = f'{a + 1}'", set()),
    ],
)
def test_each_operator(source: str, expected: set[str]) -> None:
    assert changed(source) == expected


def test_positions_are_right_after_non_ascii_text() -> None:
    source = "µ = '…'; x = 'ß' < y  # ±\nz = 1"
    assert changed(source) == {
        source.replace("'ß' < y", "('ß' <= y)"),
        source.replace("'ß' < y", "('ß' >= y)"),
        source.replace("z = 1", "z = (2)"),
        source.replace("z = 1", "z = (0)"),
    }


def dumped(source: str) -> str:
    try:
        return ast.dump(ast.parse(source))
    except SystemError:  # "recursion depth mismatch": CPython before 3.13 counts that of all threads together
        return ast.dump(ast.parse(source))


def test_every_mutant_of_a_real_file_is_a_different_program_with_the_same_lines() -> None:
    source = Path(script.__file__ or "").read_text()
    found = script.mutants(source)
    assert len(found) > 20
    program = dumped(source)
    for one in found:
        text = one.applied(source)
        assert dumped(text) != program
        kept = source.splitlines()
        assert text.splitlines()[: one.line - 1] == kept[: one.line - 1]
