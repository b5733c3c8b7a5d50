"""FittingTable: a table with one line per row that fits the terminal; ids and states are never cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.control_characters import escaped

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

_GAP = 2
_MIN_WIDTH = 12
"""A column that may be cut keeps this much; else another column is dropped."""
MAX_NAME, MAX_SENTENCE = 80, 240
"""For ``most``, for columns without any bound: a single endless cell would make every row as long."""


class FittingTable:
    """If there is too little room, the columns in ``cut`` are shortened, then those in ``drop`` are left out in this
    order. ``wanted`` is how much of a column is kept as long as other columns can be dropped instead; the columns in
    ``last`` are dropped after that. Other columns are never cut: the terminal folds lines that are too long, so that an
    id can be copied whole. ``most`` limits the characters of a column, however much room there is."""

    def __init__(
        self,
        titles: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        cut: Sequence[str],
        drop: Sequence[str] = (),
        last: Sequence[str] = (),
        wanted: Mapping[str, int] = {},
        most: Mapping[str, int] = {},
    ) -> None:
        self._cut, self._drop, self._last, self._wanted = cut, drop, last, wanted
        self._columns = {title: [_cell(row[at], most.get(title)) for row in rows] for at, title in enumerate(titles)}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept = list(self._columns)
        for titles, wanted in ((self._drop, self._wanted), (self._last, {})):
            for title in titles:
                if self._room(kept, wanted) <= options.max_width:
                    break
                kept.remove(title)
        width = max(options.max_width, self._room(kept, {}))
        yield from console.render(self._table(kept), options.update(width=width))

    def _room(self, kept: Sequence[str], wanted: Mapping[str, int]) -> int:
        """The minimum width of these columns together."""
        return sum(self._min_width(one, wanted.get(one, _MIN_WIDTH)) + _GAP for one in kept) - _GAP

    def _min_width(self, title: str, wanted: int) -> int:
        from rich.cells import cell_len

        full = max(cell_len(str(cell)) for cell in (title, *self._columns[title]))
        return min(full, max(wanted, len(title))) if title in self._cut else full

    def _table(self, kept: Sequence[str]) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for title in kept:
            # Rich narrows columns that may wrap first; their cells do not wrap, so they are cut.
            table.add_column(title, overflow="ellipsis", no_wrap=title not in self._cut, min_width=len(title))
        for row in zip(*(self._columns[title] for title in kept), strict=True):
            table.add_row(*(Text(cell, no_wrap=True) if isinstance(cell, str) else cell for cell in row))
        return table


def _cell(value: object, most: int | None) -> str | Text:
    """Text keeps its style; anything else becomes one line of at most so many characters, escaped."""
    from rich.text import Text

    if isinstance(value, Text):
        return value
    text = escaped(str(value))
    return text if most is None or len(text) <= most else f"{text[: most - 1]}…"
