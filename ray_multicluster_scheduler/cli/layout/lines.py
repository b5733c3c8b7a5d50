"""FoldedText: text in lines that fit the terminal, in which words and ids stay whole; and tables within such text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.control_characters import escaped, escaped_lines

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from ray_multicluster_scheduler.common.tables import DrawTable

INDENT = 4
_JOINER = "\u200d"
_ENDS, _BEGINS = "，。、；：！？）］｝」』】》〉…”’", "（［｛「『【《〈“‘"
"""Characters that must not begin a line, and characters that must not end one."""
_GAP = 2
_MIN_LAST_COLUMN = 24
"""With less room than this, the last column of a table is printed below its row instead of folded within its column."""


class FoldedText:
    """Renders text for Rich. A line that is too long continues on the next one, indented. It breaks between words only,
    but anywhere in scripts without spaces, such as Chinese. A text with tables in it is a function of the width."""

    def __init__(self, text: str | Callable[[int], str], *, indent: int = INDENT) -> None:
        self._text, self._indent = text, indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        width = options.max_width
        text = self._text if isinstance(self._text, str) else self._text(width)
        for line in fold_text(escaped_lines(text), width, indent=self._indent).split("\n"):
            yield Text(line, no_wrap=True, overflow="ignore")


def fold_text(text: str, width: int, *, indent: int = INDENT) -> str:
    """The text in lines that are no wider."""
    lines = (line.expandtabs() for line in text.split("\n"))
    return "\n".join(one for line in lines for one in fold_line(line, width, len(line) - len(line.lstrip()) + indent))


def fold_line(line: str, width: int, margin: int) -> Iterator[str]:
    """One line as several; all but the first one are indented by this margin."""
    from rich.cells import cell_len

    if cell_len(line) <= width:
        yield line
        return
    current, used = "", 0
    for piece in _pieces(line):
        room = cell_len(piece)
        if used + room > width and current.strip() and not piece.isspace():
            yield current.rstrip()
            current, used = " " * margin, margin
        current += piece
        used += room
    yield current.rstrip()


def _pieces(line: str) -> Iterator[str]:
    """Words and the space between them."""
    piece = ""
    for char in line:
        if piece and _may_break(piece[-1], char):
            yield piece
            piece = ""
        piece += char
    if piece:
        yield piece


def _may_break(before: str, after: str) -> bool:
    from rich.cells import cell_len

    if before.isspace() or after.isspace():
        return before.isspace() != after.isspace()
    if after in _ENDS or before in _BEGINS or before == _JOINER:
        return False
    return cell_len(after) > 0 and max(cell_len(before), cell_len(after)) > 1


def text_table(width: int) -> DrawTable:
    """Draws a table as text of this width; cuts nothing. If it is too wide, its last column is folded within itself; if
    there is no room for that, the columns that do not fit are printed below each row, with their titles."""

    def draw(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
        from rich.cells import cell_len

        texts = [[escaped(str(cell)) for cell in row] for row in (titles, *rows)]
        widths = [max(cell_len(row[at]) for row in texts) for at in range(len(titles))]
        before = sum(widths[:-1]) + _GAP * (len(widths) - 1)
        if before + widths[-1] <= width:
            return "\n".join(_padded_row(row, widths) for row in texts)
        if width - before >= _MIN_LAST_COLUMN:
            return "\n".join(line for row in texts for line in fold_line(_padded_row(row, widths), width, before))
        kept = len(widths) - 1
        while kept > 1 and sum(widths[:kept]) + _GAP * (kept - 1) > width:
            kept -= 1
        lines = [_padded_row(texts[0][:kept], widths)]
        for row in texts[1:]:
            lines += [_padded_row(row[:kept], widths), *_cells_below(titles[kept:], row[kept:], width)]
        return "\n".join(lines)

    return draw


def _padded_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    from rich.cells import cell_len

    filled = (cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=False))
    return (" " * _GAP).join(filled).rstrip()


def _cells_below(titles: Sequence[str], cells: Sequence[str], width: int) -> Iterator[str]:
    for title, cell in zip(titles, cells, strict=True):
        if cell:
            yield from fold_line(f"{' ' * INDENT}{title}: {cell}", width, 2 * INDENT)
