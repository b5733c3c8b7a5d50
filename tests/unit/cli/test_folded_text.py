"""Lines that are longer than the terminal is wide go on below, counted as terminals do."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from ray_multicluster_scheduler.cli.layout.lines import FoldedText
from ray_multicluster_scheduler.cli.layout.output import PIPE_WIDTH


def lines(text: str | FoldedText, width: int) -> list[str]:
    screen = Console(file=io.StringIO(), width=width)
    screen.print(FoldedText(text) if isinstance(text, str) else text, crop=False)
    shown: str = screen.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO of above
    return [line.rstrip() for line in shown.splitlines()]


def test_lines_go_on_below() -> None:
    text = "head\n  a table  of  words that-are-many, " + "y" * 30 + " end"
    assert lines(text, 30) == [
        "head",
        "  a table  of  words",
        "      that-are-many,",
        " " * 6 + "y" * 30,
        "      end",
    ]
    assert lines(text, PIPE_WIDTH) == ["head", "  a table  of  words that-are-many, " + "y" * 30 + " end"]


def test_paragraphs_begin_where_they_began() -> None:
    assert lines(FoldedText("one two three\n\nfour", indent=0), 8) == ["one two", "three", "", "four"]


CHINESE = "集群没有空闲的节点，任务正在排队等待；请稍后再试，或者把任务提交到另一个集群。"


@pytest.mark.parametrize("text", [CHINESE, f"  {CHINESE}", f"原因 {CHINESE} {CHINESE}", "ひらがなとカタカナ" * 9])
@pytest.mark.parametrize("width", [20, 40, 41])
def test_wide_characters_are_counted_as_wide(text: str, width: int) -> None:
    shown = lines(text, width)
    assert max(map(cell_len, shown)) <= width
    assert "".join(shown).replace(" ", "") == text.replace(" ", "")
    assert min(map(cell_len, shown[:-1])) > width - 8, "there is no empty room"


def test_ids_and_words_stay_whole_among_wide_characters() -> None:
    name = "task-0123456789abcdef"
    text = f"任务{name}在集群{name}上等待：not-enough-memory，所以{name}。"
    for width in range(10, 60):
        shown = "\n".join(lines(text, width))
        assert (shown.count(name), shown.count("not-enough-memory")) == (3, 1)


def test_no_line_begins_with_what_ends_a_sentence() -> None:
    for width in range(12, 60):
        assert not [line for line in lines(CHINESE, width) if line.strip()[0] in "，。；"]


def test_what_belongs_to_one_picture_stays_together() -> None:
    family, accent = "\U0001f468\u200d\U0001f469", "集\u0301"
    for width in range(6, 30):
        shown = "\n".join(lines(family * 12 + accent * 12, width))
        assert (shown.count(family), shown.count(accent)) == (12, 12)
        assert "\n" in shown.partition(accent)[2]


def test_a_word_that_is_too_long_begins_where_its_line_does() -> None:
    assert lines("  " + "y" * 30 + " end", 20) == ["  " + "y" * 30, "      end"]


def test_tabs_are_as_wide_as_they_are_shown() -> None:
    assert lines("a\tb\tc and more", 20) == ["a       b       c", "    and more"]
