"""Finds the modules that code imports, by static analysis of bytecode or source.

Includes literal names in calls (``import_module("plugins.a")``), but not names that are computed at run time
(``import_module(f"plugins.{name}")``).
"""

from __future__ import annotations

import ast
import dis
import functools
import types
import warnings
from collections.abc import Iterator

_IMPORT = dis.opmap["IMPORT_NAME"]
_NO_CODE = frozenset({"CACHE", "EXTENDED_ARG"})
_IMPORTERS = frozenset({"import_module", "__import__"})


def names_in_code(code: types.CodeType, package: str | None) -> frozenset[str]:
    """The modules that a function and its inner functions import. ``package`` is the base of relative imports."""
    absolute, relative = _names_in_code(code)
    return absolute | {package} if relative and package else absolute


@functools.lru_cache(maxsize=4096)
def _names_in_code(code: types.CodeType) -> tuple[frozenset[str], bool]:
    names: set[str] = set()
    relative = False
    # Most functions import nothing; searching the opcodes is cheaper than disassembling.
    if _IMPORT in code.co_code[::2]:
        # Each import is preceded by its level (the number of dots) and the names imported from the module.
        steps = [step for step in dis.get_instructions(code) if step.opname not in _NO_CODE]
        for before, step in zip(steps, steps[2:], strict=False):
            if step.opcode != _IMPORT:
                continue
            if before.argval:
                relative = True
            else:
                names.add(step.argval)
    if not _IMPORTERS.isdisjoint(code.co_names):
        names.update(text for text in code.co_consts if isinstance(text, str) and _is_module_name(text))
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more, also = _names_in_code(inner)
            names |= more
            relative = relative or also
    return frozenset(names), relative


def names_in_source(source: bytes) -> frozenset[str]:
    """The modules that a file imports by absolute name, anywhere in it. Raises SyntaxError or ValueError if it is not
    valid Python. Not thread-safe: it silences the warnings of the compiler.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    names: set[str] = set()
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Call) and (name := _literal_import(node)):
            names.add(name)
    return frozenset(names)


def _nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """All nodes, except those below ``if TYPE_CHECKING``."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING":
            pending.extend(node.orelse)
        else:
            pending.extend(ast.iter_child_nodes(node))


def _literal_import(call: ast.Call) -> str | None:
    """The module name in a call such as ``import_module("name")``; None for other calls."""
    if _last_name(call.func) not in _IMPORTERS or not call.args:
        return None
    first = call.args[0]
    text = first.value if isinstance(first, ast.Constant) else None
    return text if isinstance(text, str) and _is_module_name(text) else None


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _is_module_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))
