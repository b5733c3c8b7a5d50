"""The wheel is complete: installed into an empty venv, away from the source tree, it runs a task."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ray_multicluster_scheduler

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
from ray_multicluster_scheduler import initialize_scheduler_environment, submit_task

def double(number):
    return 2 * number

if __name__ == "__main__":
    initialize_scheduler_environment()
    print("answer:", submit_task(double, args=(21,)))
"""


def run(command: list[object], cwd: Path, **environment: str) -> str:
    """Run it without the paths of this process; an error shows its output."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**clean, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command} -> {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT], cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bin_dir(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a venv with only the wheel and its dependencies."""
    venv = tmp_path_factory.mktemp("empty") / "venv"
    run([sys.executable, "-m", "venv", venv], cwd=venv.parent)
    run([venv / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", wheel], cwd=venv.parent)
    return venv / "bin"


def test_the_command_starts(bin_dir: Path, tmp_path: Path) -> None:
    assert "clusters" in run([bin_dir / "rmcs", "--help"], cwd=tmp_path)
    assert run([bin_dir / "rmcs", "version"], cwd=tmp_path).strip() == ray_multicluster_scheduler.__version__
    assert "demo" in run([bin_dir / "python", "-m", "ray_multicluster_scheduler", "--help"], cwd=tmp_path)


def test_the_installed_wheel_is_used(bin_dir: Path, tmp_path: Path) -> None:
    where = run([bin_dir / "python", "-c", "import ray_multicluster_scheduler as r; print(r.__file__)"], cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(bin_dir.parent)


def test_the_wheel_has_type_information(bin_dir: Path) -> None:
    assert list(bin_dir.parent.glob("lib/*/site-packages/ray_multicluster_scheduler/py.typed"))


def test_a_task_runs_from_outside_the_source_tree(bin_dir: Path, config_path: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    assert "answer: 42" in run([bin_dir / "python", program], cwd=tmp_path, RMCS_CONFIG=str(config_path))
