from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ray_multicluster_scheduler.local_fleet.layout import base_dir

FAKE_RAY = Path(__file__).with_name("fake_ray.py")


@pytest.fixture
def fake_python(tmp_path: Path) -> Path:
    """A program that replaces the interpreter with Ray."""
    program = tmp_path / "fake-venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE_RAY}" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return program


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temp dir for this test, which can then check that nothing is left in it. Its path is short enough for Ray's
    sockets; otherwise fleets would use another folder."""
    folder = _short_folder()
    try:
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr(tempfile, "tempdir", None)
        assert base_dir() == folder
        yield folder
        monkeypatch.setattr(tempfile, "tempdir", None)
    finally:
        shutil.rmtree(folder)


def _short_folder() -> Path:
    while True:
        folder = Path("/tmp") / f"t{secrets.token_hex(2)}"
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
