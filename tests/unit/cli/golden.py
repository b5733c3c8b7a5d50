"""Compares the output of commands with tests/golden; `pytest --refresh-golden` rewrites the files: review the diff."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.cells import chop_cells
from rich.console import Console

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
NOW = 1794700800.0
WIDE, USUAL = 110, 80
SHOWN_IN_README = ("status", "explain")
"""These are kept as SVG pictures, too."""


class Picture(NamedTuple):
    """What these ``commands`` print, in terminals of these widths."""

    draw: Callable[[], Any]
    commands: tuple[str, ...]
    widths: tuple[int, ...] = (USUAL,)


def frames(pictures: dict[str, Picture]) -> list[tuple[str, int]]:
    """Each picture in each of its widths."""
    return [(name, width) for name, one in pictures.items() for width in one.widths]


def rendered(what: Any, width: int) -> Console:
    """A console that recorded this output. Plain text, such as a file, is folded by the terminal at any letter."""
    screen = Console(
        file=io.StringIO(),
        record=True,
        width=width,
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
        emoji=False,
    )
    if isinstance(what, str):
        what = "\n".join("\n".join(chop_cells(line, width)) if line else "" for line in what.split("\n"))
    screen.print(what, markup=False, crop=False)
    return screen


def compare(name: str, screen: Console, request: pytest.FixtureRequest) -> None:
    """Is it the text of the file with this name?"""
    text = "".join(f"{line.rstrip()}\n" for line in screen.export_text(clear=False).splitlines())
    _compare_file(GOLDEN / f"{name}.txt", text, request)


def check(pictures: dict[str, Picture], name: str, width: int, request: pytest.FixtureRequest) -> None:
    """Compare one picture in one width. The file of its first width has the name of the picture alone."""
    one = pictures[name]
    first = width == one.widths[0]
    screen = rendered(one.draw(), width)
    compare(name if first else f"{name}-{width}", screen, request)
    if first and name in SHOWN_IN_README:
        drawn = screen.export_svg(title=f"rmcs {one.commands[0]}", unique_id=name)
        _compare_file(GOLDEN / f"{name}.svg", drawn, request)


def _compare_file(path: Path, output: str, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--refresh-golden"):
        path.write_text(output, encoding="utf-8")
    assert path.exists(), "write it with: pytest tests/unit/cli --refresh-golden"
    assert output == path.read_text(encoding="utf-8"), "if the new output is right: pytest --refresh-golden"
