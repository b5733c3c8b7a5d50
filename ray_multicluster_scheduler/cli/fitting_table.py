"""FittingTable: one line per row, however narrow the terminal is; ids and states stay whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.line_text import escaped

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

_GAP = 2
_LEAST = 12
"""So much of a column that is cut should be seen; else another column goes."""


class FittingTable:
    """Where there is no room, columns that are named in ``cut`` lose their ends, then those in ``drop`` go, the first
    ones first."""

    def __init__(
        self,
        titles: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        cut: Sequence[str],
        drop: Sequence[str] = (),
    ) -> None:
        self._cut, self._drop = cut, drop
        self._columns = {title: [_cell(row[at]) for row in rows] for at, title in enumerate(titles)}

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        kept = list(self._columns)
        for title in self._drop:
            if sum(self._least(one) + _GAP for one in kept) - _GAP <= options.max_width:
                break
            kept.remove(title)
        yield self._table(kept)

    def _least(self, title: str) -> int:
        """How much room it needs to be worth it."""
        from rich.cells import cell_len

        whole = max(cell_len(str(cell)) for cell in (title, *self._columns[title]))
        return min(whole, max(_LEAST, len(title))) if title in self._cut else whole

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
