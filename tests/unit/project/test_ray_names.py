"""The porting page says of every public name of the pinned Ray whether it is here, and that is so."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import ray_multicluster_scheduler as api

ROOT = Path(__file__).resolve().parents[3]
RAY_PYTHON = ROOT / ".venv-ray" / "bin" / "python"
ROW = re.compile(r"^\| `(\w+)` \| (same|differs|no) \| (.*?) ?\|$", re.MULTILINE)
TABLE = ROW.findall((ROOT / "docs" / "tutorials" / "port-a-ray-script.md").read_text(encoding="utf-8"))


@pytest.mark.skipif(not RAY_PYTHON.exists(), reason="needs the interpreter with Ray")
def test_every_name_of_the_pinned_ray_has_its_row() -> None:
    code = "import ray; print(*[name for name in dir(ray) if name[0] != '_' and name != 'ray'])"
    found = subprocess.run([str(RAY_PYTHON), "-c", code], capture_output=True, text=True, check=True).stdout.split()
    rows = [name for name, _, _ in TABLE]
    assert len(found) > 50
    assert sorted(set(found) - set(rows)) == []
    assert rows == sorted(set(rows)), "one row for each name, sorted"


@pytest.mark.parametrize(("name", "here", "why"), TABLE)
def test_a_row_is_true(name: str, here: str, why: str) -> None:
    assert hasattr(api, name) is (here != "no")
    assert bool(why) is (here != "same")
