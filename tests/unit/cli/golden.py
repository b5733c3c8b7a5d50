"""Pictures of a terminal, as SVG in tests/golden; `pytest --refresh-golden` writes them anew. Look at them then."""

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


class Picture(NamedTuple):
    """What these ``commands`` print, in terminals of these widths."""

    draw: Callable[[], Any]
    commands: tuple[str, ...]
    widths: tuple[int, ...] = (USUAL,)


def frames(pictures: dict[str, Picture]) -> list[tuple[str, int]]:
    """Each picture in each of its widths."""
    return [(name, width) for name, one in pictures.items() for width in one.widths]


def svg(name: str, what: Any, width: int, title: str) -> str:
    """What a command prints there. What is given as text, such as a file, is folded by the terminal, at any letter."""
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
    return screen.export_svg(title=title, unique_id=name)


def compare(name: str, drawn: str, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / f"{name}.svg"
    if request.config.getoption("--refresh-golden"):
        path.write_text(drawn, encoding="utf-8")
    assert path.exists(), "write it with: pytest tests/unit/cli --refresh-golden"
    assert drawn == path.read_text(encoding="utf-8"), "if it is better now: pytest --refresh-golden, and look at it"


def check(pictures: dict[str, Picture], name: str, width: int, request: pytest.FixtureRequest) -> None:
    """Does it look as it did? The first width has the name of the picture alone."""
    one = pictures[name]
    file = name if width == one.widths[0] else f"{name}-{width}"
    compare(file, svg(file, one.draw(), width, f"rmcs {one.commands[0]}"), request)
