"""scripts/setup_env.py: creates an environment once, rebuilds it when needed, and may be interrupted or run twice."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.support.scripts import load_script

PROJECT = """
[build-system]
requires = ["hatchling"]
[project]
name = "x"
[project.optional-dependencies]
full = ["ray[default]"]
dev = ["pytest"]
"""


class Workshop:
    """The script in a project folder of its own, with a stand-in for venv and pip."""

    def __init__(self, root: Path) -> None:
        self.script = load_script("setup_env")
        self.root = self.script.ROOT = root
        self.pip_runs: list[list[str]] = []
        self.break_pip: BaseException | None = None
        self.pip_takes = 0.0
        self.script.execute = self._execute
        (root / "pyproject.toml").write_text(PROJECT)

    def _execute(self, command: list[str], failure: str, hint: str) -> None:
        if "venv" in command:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.touch()
            return
        time.sleep(self.pip_takes)
        self.pip_runs.append(command)
        if self.break_pip is not None:
            raise self.break_pip

    def run(self, kind: str = "dev") -> int:
        result: int = self.script.main([kind])
        return result


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def test_a_second_run_does_nothing(workshop: Workshop) -> None:
    assert [workshop.run(), workshop.run()] == [0, 0]
    assert len(workshop.pip_runs) == 1


def test_each_environment_gets_its_own_requirements(workshop: Workshop) -> None:
    workshop.run("dev")
    workshop.run("ray")
    workshop.run("ray-old")
    dev, ray, old = workshop.pip_runs
    assert dev[-1] == f"{workshop.root}[dev]"
    assert ray[-1] == "ray[default]"
    assert old[-1].startswith("ray[default]>=2.5"), "a range of its own, whatever [full] names"
    assert (workshop.root / ".venv-ray").is_dir()
    assert (workshop.root / ".venv-ray-old").is_dir()


def test_the_older_ray_is_created_only_on_request(workshop: Workshop) -> None:
    assert workshop.script.main([]) == 0
    assert len(workshop.pip_runs) == 2
    assert not (workshop.root / ".venv-ray-old").exists()


def test_a_changed_dependency_rebuilds_it_from_scratch(workshop: Workshop) -> None:
    workshop.run()
    leftover = workshop.root / ".venv" / "leftover"
    leftover.touch()
    (workshop.root / "pyproject.toml").write_text(PROJECT.replace('["pytest"]', '["pytest", "mypy"]'))
    assert workshop.run() == 0
    assert len(workshop.pip_runs) == 2
    assert not leftover.exists()


def test_a_changed_linter_setting_does_not_rebuild(workshop: Workshop) -> None:
    workshop.run()
    (workshop.root / "pyproject.toml").write_text(PROJECT + "[tool.ruff]\nline-length = 100\n")
    workshop.run()
    assert len(workshop.pip_runs) == 1


@pytest.mark.parametrize(("broken_by", "code"), [(KeyboardInterrupt(), 130), ("pip", 1)])
def test_an_interrupted_or_failed_run_is_not_ready(
    workshop: Workshop, broken_by: BaseException | str, code: int
) -> None:
    workshop.break_pip = workshop.script.SetupError("pip failed") if isinstance(broken_by, str) else broken_by
    assert workshop.run() == code
    (workshop.root / ".venv" / "half").touch()
    workshop.break_pip = None
    assert workshop.run() == 0
    assert len(workshop.pip_runs) == 2
    assert not (workshop.root / ".venv" / "half").exists()


def test_an_environment_of_the_user_is_kept(workshop: Workshop) -> None:
    """Also when the requirements change later: it is installed into, not deleted."""
    mine = workshop.root / ".venv" / "bin" / "mine"
    mine.parent.mkdir(parents=True)
    (mine.parent / "python").touch()
    mine.touch()
    assert workshop.run() == 0
    (workshop.root / "pyproject.toml").write_text(PROJECT.replace('["pytest"]', '["mypy"]'))
    assert workshop.run() == 0
    assert len(workshop.pip_runs) == 2
    assert mine.exists()


def test_a_symlinked_environment_is_used_unchanged(
    workshop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may belong to another checkout and have other requirements."""
    other = tmp_path / "other"
    other.mkdir()
    theirs = Workshop(other)
    assert theirs.run() == 0
    (workshop.root / ".venv").symlink_to(other / ".venv")
    capsys.readouterr()
    assert workshop.run() == 0
    output = capsys.readouterr().err
    assert f"used as it is ({other / '.venv'})" in output
    assert workshop.pip_runs == []
    assert theirs.run() == 0
    assert len(theirs.pip_runs) == 1, "it is not changed"


def test_a_dangling_symlink_is_an_error(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    (workshop.root / ".venv").symlink_to(workshop.root / "gone")
    assert workshop.run() == 1
    output = capsys.readouterr().err
    assert "set-up: .venv is a link to" in output
    assert "no environment" in output


def test_concurrent_runs_create_it_once(workshop: Workshop) -> None:
    workshop.pip_takes = 0.2
    threads = [threading.Thread(target=workshop.run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(workshop.pip_runs) == 1


def test_an_unknown_environment_is_an_error(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    assert workshop.run("prod") == 1
    assert "'prod'" in capsys.readouterr().err
