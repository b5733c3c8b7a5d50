"""FittingLines: text in lines that fit the terminal; words and ids stay whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.control_characters import escaped_lines

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

INWARDS = 4
_JOINER = "\u200d"
_ENDS, _BEGINS = "，。、；：！？）］｝」』】》〉…”’", "（［｛「『【《〈“‘"
"""What begins no line, and what ends none."""


class FittingLines:
    """Lines of text; what is too long for the terminal goes on below, further in. Words stay whole, as do ids; what is
    written without spaces, as Chinese is, goes on anywhere. A text that has tables in it is told how much room there
    is."""

    def __init__(self, text: str | Callable[[int], str], *, inwards: int = INWARDS) -> None:
        self._text, self._inwards = text, inwards

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        width = options.max_width
        text = self._text if isinstance(self._text, str) else self._text(width)
        for line in folded(escaped_lines(text), width, inwards=self._inwards).split("\n"):
            yield Text(line, no_wrap=True, overflow="ignore")


def folded(text: str, width: int, *, inwards: int = INWARDS) -> str:
    """A text in lines that are no wider."""
    lines = (line.expandtabs() for line in text.split("\n"))
    return "\n".join(one for line in lines for one in fold(line, width, _margin(line) + inwards))


def _margin(line: str) -> int:
    return len(line) - len(line.lstrip())


def fold(line: str, width: int, margin: int) -> Iterator[str]:
    """One line; what goes on below it begins after this margin."""
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
    """What stays whole, and the space between."""
    piece = ""
    for char in line:
        if piece and _may_part(piece[-1], char):
            yield piece
            piece = ""
        piece += char
    if piece:
        yield piece


def _may_part(before: str, after: str) -> bool:
    from rich.cells import cell_len

    if before.isspace() or after.isspace():
        return before.isspace() != after.isspace()
    if after in _ENDS or before in _BEGINS or before == _JOINER:
        return False
    return cell_len(after) > 0 and max(cell_len(before), cell_len(after)) > 1
