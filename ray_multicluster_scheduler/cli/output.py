"""How commands print: rich on a terminal, plain and uncut where nobody watches."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import typer

from ray_multicluster_scheduler.common.line_text import escaped, escaped_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 200
"""Columns when the output is a pipe or a file: wide enough that a table's cells are not cut."""


def console(*, stderr: bool = False) -> Console:
    """A console for one command. Without a terminal, or with NO_COLOR, it writes no control characters."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    width = shutil.get_terminal_size().columns if terminal else PIPE_WIDTH
    return Console(file=stream, force_terminal=terminal, width=width, highlight=False, emoji=False, soft_wrap=False)


def say(text: str, *, err: bool = False) -> None:
    """Text that may have words of others in it: none of them moves the cursor, or worse."""
    typer.echo(escaped_lines(text), err=err)


def plain_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Columns without lines, one row per line: good to read and to grep. Cells are text, never markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(Text(escaped(str(cell))) for cell in row))
    return table
