"""Everything that is drawn for people has a picture, and each picture is of something that is still drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli import test_golden_clusters, test_golden_items, test_golden_sessions
from tests.unit.cli.commands import all_commands
from tests.unit.cli.golden import GOLDEN, SHOWN_IN_README, Picture, frames

DRAWN: dict[str, Picture] = {
    **test_golden_items.PICTURES,
    **test_golden_clusters.PICTURES,
    **test_golden_sessions.PICTURES,
}
SCREENS = ("top", "top-clusters", "top-queue", "top-running", "top-filter", "top-nodes")
"""Of `rmcs top`: tests/unit/cli/test_top.py."""
WITHOUT = {
    "task logs": "what an item printed, as it is",
    "job logs": "what a job printed, as it is",
    "job submit": "what a job prints, between two lines of words",
    "pool delete": "a name, and a line of words",
    "pool apply": "the names of pools, by what was done to them",
    "token create": "a secret, and a line of words",
    "trace": "the name of a file",
    "debug-dump": "the name of a file",
    "serving deploy": "a name, and a line of words",
    "serving scale": "a name, and a line of words",
    "serving delete": "a name, and a line of words",
    "serving up": "a log, until it is stopped",
    "up": "a log, until it is stopped",
    "down": "a line of words",
    "fleet up": "words while it starts, then what `rmcs fleet status` shows",
    "fleet down": "a line of words",
    "demo": "a story that takes minutes on real clusters",
}
"""What has no picture, and what it prints instead."""


def test_every_command_has_a_picture() -> None:
    """Each needs a picture, or a reason above why it has none."""
    seen = {command for one in DRAWN.values() for command in one.commands}
    seen |= {command for some in test_golden_sessions.SESSIONS.values() for command in some}
    assert sorted(seen & set(WITHOUT)) == []
    assert sorted({*seen, *WITHOUT, "top"}) == sorted(all_commands())


def test_no_picture_is_left_over() -> None:
    files = {name if width == DRAWN[name].widths[0] else f"{name}-{width}" for name, width in frames(DRAWN)}
    texts = {f"{one}.txt" for one in (*files, *SCREENS, *test_golden_sessions.SESSIONS)}
    assert texts | {f"{one}.svg" for one in SHOWN_IN_README} == {one.name for one in GOLDEN.iterdir()}


@pytest.mark.parametrize("file", sorted(GOLDEN.iterdir()), ids=lambda one: str(one.name))
def test_golden_files_contain_no_machine_names(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert "/tmp/" not in text
    assert "pytest" not in text
