from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

FAKE_RAY = Path(__file__).with_name("fake_ray.py")


@pytest.fixture
def fake_python(tmp_path: Path) -> Path:
    """A program that takes the place of the interpreter with Ray."""
    program = tmp_path / "fake-venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE_RAY}" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return program


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short temp dir of this test alone, so that it can look for what is left in it."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
