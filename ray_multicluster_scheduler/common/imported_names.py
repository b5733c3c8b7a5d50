"""Which modules a piece of code imports, found without running it.

Names that are computed at run time (``import_module(f"plugins.{name}")``) cannot be found; those that are written
out (``import_module("plugins.a")``) are.
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
    """What a function's code imports, inner functions included; ``package`` is where its relative imports start."""
    absolute, relative = _names_in_code(code)
    return absolute | {package} if relative and package else absolute


@functools.lru_cache(maxsize=4096)
def _names_in_code(code: types.CodeType) -> tuple[frozenset[str], bool]:
    names: set[str] = set()
    relative = False
    # Most functions import nothing: one look at the bytes spares taking them apart.
    if _IMPORT in code.co_code[::2]:
        # Each import is preceded by its level (the number of dots) and the names that are taken from the module.
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
    """What a file imports by absolute names, anywhere in it. Raises SyntaxError or ValueError if it is no Python.

    Not safe from several threads at once: the warnings of the compiler are silenced while it looks.
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
        elif isinstance(node, ast.Call) and (name := _written_out(node)):
            names.add(name)
    return frozenset(names)


def _nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """All nodes, but for what only type checkers read."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING":
            pending.extend(node.orelse)
        else:
            pending.extend(ast.iter_child_nodes(node))


def _written_out(call: ast.Call) -> str | None:
    """The module of ``import_module("name")``."""
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
