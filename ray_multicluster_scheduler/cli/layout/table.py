"""FittingTable: one line per row, however narrow the terminal is; ids and states stay whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.control_characters import escaped

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

_GAP = 2
_LEAST = 12
"""So much of a column that is cut should be seen; else another column goes."""
MOST_OF_A_NAME, MOST_OF_A_SENTENCE = 80, 240
"""For ``most``, of what has no bounds elsewhere: one that is endless would make every row as long."""


class FittingTable:
    """Where there is no room, columns that are named in ``cut`` lose their ends, then those in ``drop`` go, the first
    ones first. ``wanted`` says how much of a column should be seen while others could go instead of it; only those in
    ``last`` stay longer than that. What is left is never cut: rather the lines are too long, and the terminal folds
    them, so that an id can be copied whole. ``most``: no more characters of a column are shown than this, however much
    room there is."""

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
        self._columns = {
            title: [_short(_cell(row[at]), most[title]) if title in most else _cell(row[at]) for row in rows]
            for at, title in enumerate(titles)
        }

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
        """The least that these columns need beside each other."""
        return sum(self._least(one, wanted.get(one, _LEAST)) + _GAP for one in kept) - _GAP

    def _least(self, title: str, worth: int) -> int:
        """How much room it needs to be worth it."""
        from rich.cells import cell_len

        whole = max(cell_len(str(cell)) for cell in (title, *self._columns[title]))
        return min(whole, max(worth, len(title))) if title in self._cut else whole

    def _table(self, kept: Sequence[str]) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for title in kept:
            # A column that may wrap is the first to be made narrow; its cells are cut instead.
            table.add_column(title, overflow="ellipsis", no_wrap=title not in self._cut, min_width=len(title))
        for row in zip(*(self._columns[title] for title in kept), strict=True):
            table.add_row(*(Text(cell, no_wrap=True) if isinstance(cell, str) else cell for cell in row))
        return table


def _cell(value: object) -> str | Text:
    """What has a style keeps it; what others have said is one line."""
    from rich.text import Text

    return value if isinstance(value, Text) else escaped(str(value))


def _short(cell: str | Text, most: int) -> str | Text:
    return f"{cell[: most - 1]}…" if isinstance(cell, str) and len(cell) > most else cell
