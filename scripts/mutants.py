"""Generate mutants: small changes to a source text, each of which some test should detect.

A mutant keeps every other character of the file, so line numbers stay as they are. Not touched: annotations,
decorators, messages, and the inside of f-strings (their inner positions are only known since Python 3.12).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes from ``begin`` to ``end`` of the file are replaced by ``new``."""

    line: int
    kind: str
    begin: int
    end: int
    old: str
    new: str

    def applied(self, source: str) -> str:
        data = source.encode()
        return (data[: self.begin] + self.new.encode() + data[self.end :]).decode()

    def __str__(self) -> str:
        return f"{self.kind}: {_one_line(self.old)}  ->  {_one_line(self.new)}"


def mutants(source: str) -> list[Mutant]:
    """All mutants, in source order."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, kind, new in _changes(ast.parse(source)):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        old = source.encode()[begin:end].decode()
        found.append(Mutant(node.lineno, kind, begin, end, old, new))
    return sorted(found, key=lambda one: (one.begin, one.end, one.new))


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    for node in _walk(tree):
        if isinstance(node, ast.expr):
            yield from ((node, kind, f"({ast.unparse(new)})") for kind, new in _of_expression(node))
        elif isinstance(node, ast.stmt):
            yield from ((node, kind, new) for kind, new in _of_statement(node))
        for test in _tests_of(node):
            yield test, "negated", f"(not ({ast.unparse(test)}))"


def _of_expression(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Compare(left, [operator], [right]):
            for other in _COMPARISONS[type(operator)]:
                yield "comparison", ast.Compare(left, [other()], [right])
        case ast.BoolOp(operator, values):
            swapped = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "and/or", ast.BoolOp(swapped, values)
        case ast.UnaryOp(ast.Not(), operand):
            yield "not removed", operand
        case ast.BinOp(left, operator, right) if type(operator) in _ARITHMETIC:
            yield "arithmetic", ast.BinOp(left, _ARITHMETIC[type(operator)](), right)
        case ast.Constant(bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield "constant", ast.Constant(value + 1)
            yield "constant", ast.Constant(value - 1)


def _of_statement(node: ast.stmt) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Return(value) if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
            yield "returns None", "return None"
        case ast.AugAssign(target, operator, value) if type(operator) in _ARITHMETIC:
            yield "arithmetic", ast.unparse(ast.AugAssign(target, _ARITHMETIC[type(operator)](), value))
            yield "removed", "pass"
        case ast.Expr(ast.Call()) | ast.Delete() | ast.Raise():
            yield "removed", "pass"
        case ast.Assign(targets) if all(isinstance(one, ast.Attribute | ast.Subscript) for one in targets):
            yield "removed", "pass"
        case ast.Continue():
            yield "continue/break", "break"
        case ast.Break():
            yield "continue/break", "continue"


def _tests_of(node: ast.AST) -> Iterator[ast.expr]:
    """Conditions that no other mutant negates already."""
    tests: list[ast.expr] = []
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        tests = [node.test]
    elif isinstance(node, ast.comprehension):
        tests = node.ifs
    return (one for one in tests if not isinstance(one, ast.Compare | ast.UnaryOp | ast.Constant))


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield from _walk(child)


def _one_line(text: str) -> str:
    return " ".join(text.split())
