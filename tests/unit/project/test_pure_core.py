"""The pure core has no coverage exclusions, and no source file exceeds the length limit."""

from __future__ import annotations

from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[3] / "ray_multicluster_scheduler"
CORE = sorted(
    path
    for name in ("queue", "policy", "cluster", "lifecycle", "pools")
    for path in (PACKAGE / "scheduler" / name).rglob("*.py")
)
MAX_LINES = 700


def short(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", CORE, ids=short)
def test_the_core_has_no_coverage_exclusions(path: Path) -> None:
    text = path.read_text()
    assert "no cover" not in text
    assert "no branch" not in text


def test_no_file_is_too_long() -> None:
    lengths = {short(path): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}
