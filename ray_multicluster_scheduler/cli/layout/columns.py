"""Tables within a text that fit the terminal: nothing of them is left out, and no cell leaves its column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ray_multicluster_scheduler.cli.layout.lines import INWARDS, fold
from ray_multicluster_scheduler.common.control_characters import escaped
from ray_multicluster_scheduler.common.tables import DrawTable

_GAP = 2
_LEAST = 24
"""A column of sentences that has less room than this is told below its row: it would be a word per line."""


def fitting_columns(width: int) -> DrawTable:
    """Draws a table with so much room. Where that is too little, its last column goes on below itself; or the columns
    for which there is none are told below each row, by their titles."""

    def draw(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
        from rich.cells import cell_len

        texts = [[escaped(str(cell)) for cell in row] for row in (titles, *rows)]
        widths = [max(cell_len(row[at]) for row in texts) for at in range(len(titles))]
        before = sum(widths[:-1]) + _GAP * (len(widths) - 1)
        if before + widths[-1] <= width:
            return "\n".join(_beside(row, widths) for row in texts)
        if width - before >= _LEAST:
            return "\n".join(line for row in texts for line in fold(_beside(row, widths), width, before))
        kept = len(widths) - 1
        while kept > 1 and sum(widths[:kept]) + _GAP * (kept - 1) > width:
            kept -= 1
        lines = [_beside(row[:kept], widths) for row in texts]
        told = [list(_below(titles[kept:], row[kept:], width)) for row in texts[1:]]
        return "\n".join([lines[0], *(one for row, more in zip(lines[1:], told, strict=True) for one in (row, *more))])

    return draw


def _beside(cells: Sequence[str], widths: Sequence[int]) -> str:
    from rich.cells import cell_len

    filled = (cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=False))
    return (" " * _GAP).join(filled).rstrip()


def _below(titles: Sequence[str], cells: Sequence[str], width: int) -> Iterator[str]:
    for title, cell in zip(titles, cells, strict=True):
        if cell:
            yield from fold(f"{' ' * INWARDS}{title}: {cell}", width, 2 * INWARDS)
