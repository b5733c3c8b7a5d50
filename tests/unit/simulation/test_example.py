"""examples/simulate_a_day.py runs and prints its table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_a_short_day(tmp_path: Path) -> None:
    picture = tmp_path / "day.html"
    done = subprocess.run(
        [sys.executable, "examples/simulate_a_day.py", "--hours", "1", "--plot", str(picture)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert "in less than" in lines[0]
    assert [line[:17].strip() for line in lines[1:5]] == [
        "as it is",
        "round robin",
        "threshold 0.7",
        "one cluster more",
    ]
    assert picture.read_text().count("<svg") == 4
