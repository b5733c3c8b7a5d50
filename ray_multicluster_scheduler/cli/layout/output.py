"""How commands print: data on stdout, words on stderr; rich on a terminal, plain where nobody watches."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ray_multicluster_scheduler.cli.terminal.stderr_messages import fitted, to_stderr, watched, width_of
from ray_multicluster_scheduler.common.control_characters import escaped, escaped_lines

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

PIPE_WIDTH = 10_000
"""Columns when the output is a pipe or a file: there is room for all, so nothing is folded or left out there. Only
names and sentences that have no bounds end somewhere (``most`` of a FittingTable)."""


class Format(StrEnum):
    table = "table"
    json = "json"
    yaml = "yaml"


Output = Annotated[Format, typer.Option("-o", "--output", help="A table for people; json or yaml for programs.")]


def say(text: str) -> None:
    """A word to the person at the terminal; never on stdout, which is for data."""
    to_stderr(escaped_lines(f"rmcs: {text}"))


def show(text: str) -> None:
    """Lines of data that may have words of others in them: none of them moves the cursor, or worse."""
    typer.echo(escaped_lines(text))


def show_fitting(text: str) -> None:
    """The same, in lines that fit the terminal."""
    typer.echo(fitted(escaped_lines(text), sys.stdout))


def emit(data: Any, output: Format, picture: Callable[[], RenderableType | str]) -> None:
    """Data as it was asked for; ``picture`` draws it for people."""
    if output is not Format.table:
        typer.echo(as_text(data, output))
        return
    drawn = picture()
    if isinstance(drawn, str):
        show(drawn)
    else:
        console().print(drawn, crop=False)  # a line that is too long is folded by the terminal, and stays whole


def emit_words(data: Any, output: Format, words: Callable[[], str]) -> None:
    """The same where people are told in sentences, which go on below where the terminal ends."""
    if output is Format.table:
        show_fitting(words())
    else:
        typer.echo(as_text(data, output))


def emit_list(
    rows: Sequence[Any], output: Format, picture: Callable[[Sequence[Any]], RenderableType | str], none: str
) -> None:
    """The same for rows. Where there are none, this is said: titles alone would leave people wondering."""
    emit(rows, output, lambda: picture(rows))
    if not rows and output is Format.table:
        say(f"nothing to list: {none}")


def as_text(data: Any, output: Format, *, compact: bool = False) -> str:
    """JSON or YAML, with times in ISO 8601; ``compact`` is one line of JSON, or one document of YAML."""
    from ray_multicluster_scheduler.cli.layout.times import with_iso_times

    told = with_iso_times(data)
    if output is Format.yaml:
        import yaml

        text: str = yaml.safe_dump(told, sort_keys=False, allow_unicode=True, explicit_start=compact)
        return text.rstrip("\n")
    import json

    return json.dumps(told, indent=None if compact else 2, ensure_ascii=False, default=str)


def console(*, stderr: bool = False) -> Console:
    """A console for one command. Without a terminal, or with NO_COLOR, it writes no colours, and no other styles."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    terminal = is_terminal(stderr=stderr)
    width = width_of(stream) if terminal else PIPE_WIDTH
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"

    class Told(Console):
        def on_broken_pipe(self) -> None:  # Rich would end the program itself, with a code of its own
            raise BrokenPipeError(errno.EPIPE, "whoever read it stopped reading")

    return Told(file=stream, force_terminal=terminal, color_system=colours, width=width, highlight=False, emoji=False)


def is_terminal(*, stderr: bool = False) -> bool:
    """Does somebody watch?"""
    return watched(sys.stderr if stderr else sys.stdout)


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


def facts_table(facts: Mapping[str, object]) -> Table:
    """A line for each thing that is known; more than one where what is known has more."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for name, value in facts.items():
        if value not in (None, ""):
            said = value if isinstance(value, Text) else Text(escaped_lines(str(value)))
            table.add_row(Text(name, style="bold"), said)
    return table


_STYLES = {"SUCCEEDED": "green", "RUNNING": "cyan", "FAILED": "red", "LOST": "red", "RETRYING": "yellow"}


def state_cell(state: str) -> Text:
    """A state in its colour."""
    from rich.text import Text

    return Text(state, style=_STYLES.get(state, ""))


def cluster_state(row: Mapping[str, Any]) -> str:
    """Of a cluster, with what keeps work away from it although it answers."""
    words = [str(row["state"]), *(["cordoned"] if row.get("cordoned") else [])]
    return ", ".join([*words, *(["paused"] if row.get("paused") is not None else [])])


def cluster_state_cell(row: Mapping[str, Any]) -> Text:
    """The same in its colour."""
    from rich.text import Text

    said = cluster_state(row)
    return Text(said, style="red" if row["state"] != "UP" else "green" if said == "UP" else "yellow")
