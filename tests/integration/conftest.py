"""Shared by tests on real Ray: one fleet of two small clusters."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from ray_multicluster_scheduler import UnifiedScheduler, initialize_scheduler_environment, shutdown
from ray_multicluster_scheduler.local_fleet import LocalCluster, LocalFleet

ROOT = Path(__file__).resolve().parents[2]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Create missing environments before the first test, outside its timeout and with visible output."""
    chosen = [item for item in session.items if item.get_closest_marker("integration")]
    wanted = ["ray"] if chosen and _named() is None else []
    if any("old_ray_python" in getattr(item, "fixturenames", ()) for item in chosen):
        wanted.append("ray-old")
    if not wanted or session.config.option.collectonly:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        done = subprocess.run([sys.executable, str(ROOT / "scripts" / "setup_env.py"), *wanted])
    if done.returncode != 0:
        pytest.exit("no Ray to test with: the set-up above failed", returncode=done.returncode)


def _named() -> Path | None:
    named = os.environ.get("RMCS_RAY_PYTHON")
    return Path(named) if named and Path(named).exists() else None


@pytest.fixture(scope="session")
def ray_python() -> Path:
    """The interpreter of the local clusters: the one that RMCS_RAY_PYTHON names, or that of .venv-ray."""
    return _named() or ROOT / ".venv-ray" / "bin" / "python"


@pytest.fixture(scope="session")
def old_ray_python() -> Path:
    """An interpreter with a one-year-old Ray."""
    return ROOT / ".venv-ray-old" / "bin" / "python"


@pytest.fixture(scope="session")
def fleet(ray_python: Path) -> Iterator[LocalFleet]:
    """Two clusters with different tags and home directories. A test that breaks one must restore it."""
    with LocalFleet(
        LocalCluster("linux", num_cpus=2, tags=["linux", "x86_64"]),
        LocalCluster("mac", num_cpus=2, tags=["macos", "arm64"]),
        settings={"submission_interval_s": 0, "resource_threshold": 1},
        ray_python=ray_python,
    ) as running:
        yield running


@pytest.fixture
def config_path(fleet: LocalFleet) -> Path:
    """The clusters.yaml of the shared fleet."""
    return Path(fleet.config_path)


@pytest.fixture(scope="session")
def scheduler(fleet: LocalFleet) -> Iterator[UnifiedScheduler]:
    """The shared scheduler that the module's verbs use, on the shared fleet; its agents serve many tests."""
    yield initialize_scheduler_environment(fleet.config_path)
    shutdown()
