"""Output of commands: data on stdout, messages and spinners on stderr; styled on a terminal, plain in a pipe."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, Self, TextIO

import typer

from ray_multicluster_scheduler.common.control_characters import escaped, escaped_lines

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

PIPE_WIDTH = 10_000
"""Columns when the output is a pipe or a file: wide enough that nothing is folded or left out. Only columns without any
bound are cut there (``most`` of a FittingTable)."""
_DEFAULT_WIDTH = 80
"""Columns of a terminal that does not report its size."""
_NUMBERS = re.compile(r"[\d.]+")
_STYLES = {
    "SUCCEEDED": "green",
    "RUNNING": "cyan",
    "PREEMPTING": "yellow",
    "FAILED": "red",
    "LOST": "red",
    "RETRYING": "yellow",
}


class Format(StrEnum):
    table = "table"
    json = "json"
    yaml = "yaml"


Output = Annotated[Format, typer.Option("-o", "--output", help="A table for people; json or yaml for programs.")]


def notify(text: str) -> None:
    """Print a message for the user on stderr; stdout is for data."""
    to_stderr(escaped_lines(f"rmcs: {text}"))


def to_stderr(text: str) -> None:
    """Print a line, folded on a terminal."""
    write_stderr(f"{folded_for(sys.stderr, text)}\n")


def write_stderr(text: str) -> None:
    """Write and flush. A failure is ignored: the work is done, there is no other way to report it, and the exit code
    still tells how it went."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end of the process


def to_stdout(text: str) -> None:
    """Write and flush, for output that is followed live."""
    sys.stdout.write(text)
    sys.stdout.flush()


def folded_for(stream: TextIO, text: str) -> str:
    """The text in lines that fit, if the stream is a terminal."""
    if not is_interactive(stream):
        return text
    from ray_multicluster_scheduler.cli.layout.lines import fold_text

    return fold_text(text, terminal_width(stream))


def is_interactive(stream: TextIO) -> bool:
    """Is it a terminal?"""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def is_terminal(*, stderr: bool = False) -> bool:
    """Is stdout, or stderr, a terminal?"""
    return is_interactive(sys.stderr if stderr else sys.stdout)


def terminal_width(stream: TextIO) -> int:
    """Columns of the terminal behind this stream; the other streams may be pipes."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _DEFAULT_WIDTH
    except (OSError, ValueError):
        return _DEFAULT_WIDTH


def print_folded(text: str) -> None:
    """Print lines of data, folded on a terminal; control characters are escaped."""
    typer.echo(folded_for(sys.stdout, escaped_lines(text)))


def emit(data: Any, output: Format, render: Callable[[], RenderableType | str]) -> None:
    """Print data in the requested format; ``render`` draws it for people."""
    if output is not Format.table:
        typer.echo(as_text(data, output))
        return
    drawn = render()
    if isinstance(drawn, str):
        typer.echo(escaped_lines(drawn))
    else:
        console().print(drawn, crop=False)  # a line that is too long is folded by the terminal, and stays whole


def emit_folded(data: Any, output: Format, text: Callable[[], str]) -> None:
    """The same for data that people get as sentences."""
    if output is Format.table:
        print_folded(text())
    else:
        typer.echo(as_text(data, output))


def emit_list(
    rows: Sequence[Any],
    output: Format,
    table: Callable[[Sequence[Any]], RenderableType | str],
    none: str,
    limit: int | None = None,
) -> None:
    """The same for rows. A message with the reason ``none`` is printed if there are none, another one if there may be
    more than ``limit``."""
    emit(rows, output, lambda: table(rows))
    if not rows and output is Format.table:
        notify(f"nothing to list: {none}")
    if len(rows) == limit:
        notify(f"there may be more than these {limit}: --limit")


def as_text(data: Any, output: Format, *, compact: bool = False) -> str:
    """JSON or YAML, with times in ISO 8601; ``compact`` is one line of JSON, or one document of YAML."""
    from ray_multicluster_scheduler.cli.layout.times import with_iso_times

    data = with_iso_times(data)
    if output is Format.yaml:
        import yaml

        text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, explicit_start=compact)
        return text.rstrip("\n")
    import json

    return json.dumps(data, indent=None if compact else 2, ensure_ascii=False, default=str)


def console(*, stderr: bool = False) -> Console:
    """A Rich console. Without a terminal, or with NO_COLOR, it writes no styles."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    terminal = is_terminal(stderr=stderr)
    width = terminal_width(stream) if terminal else PIPE_WIDTH
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"

    class PipeSafeConsole(Console):
        def on_broken_pipe(self) -> None:  # Rich would end the program itself, with its own exit code
            raise BrokenPipeError(errno.EPIPE, "the reader of the output has gone")

    return PipeSafeConsole(
        file=stream, force_terminal=terminal, color_system=colours, width=width, highlight=False, emoji=False
    )


def plain_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Columns without rules, one row per line. Cells are text, never markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(Text(escaped(str(cell))) for cell in row))
    return table


def facts_table(facts: Mapping[str, object]) -> Table:
    """Name and value of each fact that is known."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for name, value in facts.items():
        if value not in (None, ""):
            cell = value if isinstance(value, Text) else Text(escaped_lines(str(value)))
            table.add_row(Text(name, style="bold"), cell)
    return table


def state_cell(state: str) -> Text:
    """The state of an item, coloured."""
    from rich.text import Text

    return Text(state, style=_STYLES.get(state, ""))


class ProgressLine:
    """Shows what a command is waiting for: a spinner on a terminal; elsewhere a message whenever the text changes by
    more than its numbers, which may count down."""

    def __init__(self) -> None:
        self._text, self._spinner = "", None if not is_terminal(stderr=True) else console(stderr=True).status("")
        self._spins = False

    def __enter__(self) -> Self:
        return self

    def show(self, text: str) -> None:
        if text == self._text:
            return
        before, self._text = self._text, text
        if self._spinner is None:
            if _NUMBERS.sub("0", text) != _NUMBERS.sub("0", before):
                notify(text)
            return
        from rich.text import Text

        self._spinner.update(Text(text))
        if not self._spins:
            self._spinner.start()
            self._spins = True

    def __exit__(self, *_: object) -> None:
        if self._spinner is not None and self._spins:
            self._spinner.stop()


class Spinner(ProgressLine):
    """The same, but silent without a terminal. No data may be printed while it spins."""

    def show(self, text: str) -> None:
        if self._spinner is not None:
            super().show(text)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that a full-screen command restores the terminal."""

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    signals = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(one, end) for one in signals]
    try:
        yield
    except EOFError:  # the terminal is gone
        raise SystemExit(128 + signal.SIGHUP) from None
    finally:
        for one, handler in zip(signals, before, strict=True):
            signal.signal(one, handler)
