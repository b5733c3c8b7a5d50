"""The folder of a local fleet and its parent are private."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ray_multicluster_scheduler.control_plane.config.home import make_run_folder
from ray_multicluster_scheduler.local_fleet.fleet_home import FleetHome


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def test_folders_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "new" / "rmcs"
    monkeypatch.setenv("RMCS_HOME", str(home))
    FleetHome().make()
    assert (mode(home), mode(home / "fleet")) == (0o700, 0o700)
    monkeypatch.setenv("RMCS_HOME", str(tmp_path / "other"))
    make_run_folder()
    assert (mode(tmp_path / "other"), mode(tmp_path / "other" / "run")) == (0o700, 0o700)
