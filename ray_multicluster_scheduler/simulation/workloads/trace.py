"""Read and write a workload as a CSV trace (see docs/simulation.md). Errors name the file, the line and the column."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.simulation.size_syntax import parse_amounts, parse_priority, parse_time
from ray_multicluster_scheduler.simulation.workloads.workload import KINDS, OUTCOMES, Item, Workload

COLUMNS = ("submit", "shape", "run", "owner", "priority", "tags", "kind", "function", "members", "fails", "outcome")
NEEDED = COLUMNS[:3]
REQUIRED_MARK = "!"
Word = TypeVar("Word", bound=str)


def read_trace(path: Path) -> Workload:
    """Read a trace. Raises ConfigurationError that names the line and column."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return Workload(_items(path, csv.reader(file)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(
            f"The trace {path} cannot be read: {reason}.", next_step="give the path of a CSV file in UTF-8"
        ) from None


def write_trace(path: Path, workload: Iterable[Item]) -> None:
    """Write a file from which read_trace gives the same items. Raises OSError."""
    with path.open("w", encoding="utf-8", newline="") as file:
        _write(file, workload)


def trace_text(workload: Iterable[Item]) -> str:
    """The trace as text."""
    text = io.StringIO(newline="")
    _write(text, workload)
    return text.getvalue()


def _write(file: TextIO, workload: Iterable[Item]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_cells(item) for item in workload)


def _items(path: Path, rows: Any) -> list[Item]:
    header = [name.strip() for name in next(rows, [])]
    _check_header(path, header)
    items = []
    for cells in rows:
        if not any(cell.strip() for cell in cells):
            continue
        row = _Row(path, rows.line_num, header, cells)
        items.append(row.item())
    if not items:
        raise ConfigurationError(f"The trace {path} has no items.", next_step="write one line for each item")
    return items


def _check_header(path: Path, header: list[str]) -> None:
    missing = [name for name in NEEDED if name not in header]
    unknown = [name for name in header if name not in COLUMNS]
    doubled = len(set(header)) < len(header)
    if missing or unknown or doubled:
        what = (
            f"has no column {missing[0]!r}"
            if missing
            else f"has an unknown column {unknown[0]!r}"
            if unknown
            else "names a column twice"
        )
        raise ConfigurationError(
            f"{path}, line 1: the trace {what}.",
            next_step=f"use the columns {','.join(COLUMNS)} (the first three at least)",
        )


class _Row:
    """One line of the file."""

    def __init__(self, path: Path, line: int, header: list[str], cells: list[str]) -> None:
        self._path, self._line = path, line
        if len(cells) != len(header):
            self._invalid(f"has {len(cells)} cells, and the first line names {len(header)} columns")
        self._cells: Mapping[str, str] = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}

    def item(self) -> Item:
        tags = [tag for tag in self._text("tags").split(";") if tag]
        return Item(
            submit_s=self._time("submit"),
            needs=self._shape(),
            run_s=self._time("run"),
            owner=self._text("owner"),
            priority=self._priority(),
            tags=tuple(tag for tag in tags if not tag.startswith(REQUIRED_MARK)),
            require_tags=tuple(tag[1:] for tag in tags if tag.startswith(REQUIRED_MARK)),
            kind=self._one_of("kind", KINDS),
            function=self._text("function"),
            members=self._integer("members", 1),
            fails=self._integer("fails", 0),
            outcome=self._one_of("outcome", OUTCOMES),
        )

    def _text(self, column: str) -> str:
        return self._cells.get(column, "")

    def _one_of(self, column: str, words: tuple[Word, ...]) -> Word:
        """One of these words; the first one if the cell is empty."""
        text = self._text(column) or words[0]
        if text not in words:
            self._invalid(f"column {column}: {text!r} is not one of {', '.join(words)}")
        return text

    def _time(self, column: str) -> float:
        try:
            return parse_time(self._text(column))
        except ConfigurationError as error:
            self._invalid(f"column {column}: {error.message.rstrip('.')}")

    def _shape(self) -> dict[str, float]:
        try:
            return parse_amounts(self._text("shape"))
        except ConfigurationError as error:
            self._invalid(f"column shape: {error.message.rstrip('.')}")

    def _priority(self) -> float:
        text = self._text("priority") or "0"
        try:
            return parse_priority(text)
        except ValueError:
            self._invalid(f"column priority: {text!r} is not a number")

    def _integer(self, column: str, least: int) -> int:
        """A number of at least ``least``, which is the default."""
        text = self._text(column)
        try:
            number = int(text) if text else least
        except ValueError:
            self._invalid(f"column {column}: {text!r} is not a whole number")
        if number < least:
            self._invalid(f"column {column}: {number} is less than {least}")
        return number

    def _invalid(self, what: str) -> NoReturn:
        raise ConfigurationError(
            f"{self._path}, line {self._line}: {what}.",
            next_step="correct the line; docs/simulation.md shows the format",
        )


def _cells(item: Item) -> tuple[object, ...]:
    shape = ";".join(
        f"{name}={amount:g}" if amount < 1e6 else f"{name}={amount!r}" for name, amount in item.needs.items()
    )
    tags = ";".join([*item.tags, *(f"{REQUIRED_MARK}{tag}" for tag in item.require_tags)])
    return (
        repr(item.submit_s),
        shape,
        repr(item.run_s),
        item.owner,
        item.priority,
        tags,
        item.kind,
        item.function,
        item.members,
        item.fails,
        item.outcome,
    )
