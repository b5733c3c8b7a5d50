"""Small tables for notebooks. Whatever stands in them may come from users: all of it is escaped here, and only here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_CELL = ' style="text-align: left; vertical-align: top; white-space: pre-wrap"'


def facts(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """What is known of one thing, a line for each; what is None or empty is left out."""
    told = [(name, value) for name, value in rows if value is not None and value != ""]
    lines = "".join(f"<tr><th{_CELL}>{_text(name)}</th><td{_CELL}>{_text(value)}</td></tr>" for name, value in told)
    return f"<table>{_caption(title)}{lines}</table>"


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A line for each of many; None is shown as a dash."""
    head = "".join(f"<th{_CELL}>{_text(name)}</th>" for name in columns)
    lines = "".join(f"<tr>{''.join(f'<td{_CELL}>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{_caption(title)}<tr>{head}</tr>{lines}</table>"


def _caption(title: str) -> str:
    return f'<caption style="text-align: left">{_text(title)}</caption>' if title else ""


def _text(value: object) -> str:
    return "–" if value is None else escape(str(value), quote=True)
