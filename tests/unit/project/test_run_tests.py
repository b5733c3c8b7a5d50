"""scripts/run_tests.py: a few failed tests are retried alone, and those that pass only then are listed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.scripts import load_script
from tests.unit.client_api.control_plane import until

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "run_tests.py"
PARTS = (("one", "-q"), ("two", "-q"))
GOOD = "def test_good(): pass\n"
BAD = "def test_bad(): assert False\n"
FIRST_TIME = """
import pathlib
def test_first_time():
    seen = pathlib.Path(__file__).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        assert False
"""


@pytest.fixture
def script() -> ModuleType:
    return load_script("run_tests")


class Project:
    """A folder with tests of two parts."""

    def __init__(self, script: ModuleType, root: Path) -> None:
        self._script, self.root = script, root
        (root / "pytest.ini").write_text("[pytest]\n")
        self.write("one/test_a.py", GOOD)
        self.write("two/test_b.py", GOOD)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def run(self, *options: str) -> int:
        code: int = self._script.main(options, self.root, PARTS)
        return code


@pytest.fixture
def project(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a start takes seconds with all of ours
    return Project(script, tmp_path)


def test_all_tests_pass(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    assert project.run() == 0
    output = capfd.readouterr().out
    assert output.count("1 passed") == 2
    assert "UNSTABLE" not in output


@pytest.mark.parametrize("part", ["one", "two"])
def test_a_test_that_fails_again_has_failed(project: Project, part: str, capfd: pytest.CaptureFixture[str]) -> None:
    project.write(f"{part}/test_c.py", BAD)
    project.write("one/test_d.py", FIRST_TIME)
    assert project.run() == 1
    output = capfd.readouterr().out
    assert output.rstrip().endswith(f"FAILED again, alone: {part}/test_c.py::test_bad")
    assert "UNSTABLE" not in output


def test_a_test_that_passes_only_alone_is_listed(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    project.write("two/test_c.py", FIRST_TIME)
    assert project.run() == 0
    last = "UNSTABLE: 1 test failed in the full run and passed alone:\n  two/test_c.py::test_first_time"
    assert capfd.readouterr().out.rstrip().endswith(last)


def test_four_failures_are_not_retried(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(4):
        project.write(f"one/test_first_{number}.py", FIRST_TIME)
    assert project.run() == 1
    assert "4 tests failed: too many for a coincidence, so none is run again." in capfd.readouterr().out


def test_the_second_part_runs_after_failures_in_the_first(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    project.write("one/test_a.py", BAD)
    assert project.run() == 1
    assert "1 passed" in capfd.readouterr().out


def test_an_import_error_is_not_retried(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    project.write("one/test_c.py", "import nothing_of_that_name\n")
    assert project.run() == 1
    assert "once more" not in capfd.readouterr().out


@pytest.mark.parametrize("code", [1, 3])
def test_an_internal_failure_of_pytest_is_a_failure(project: Project, code: int) -> None:
    """All tests pass, but a session hook sets another exit status."""
    project.write("one/conftest.py", f"def pytest_sessionfinish(session): session.exitstatus = {code}\n")
    assert project.run() == code


def test_a_run_that_ends_early_is_not_retried(project: Project) -> None:
    project.write("one/test_c.py", FIRST_TIME)
    project.write("one/test_d.py", BAD)
    assert project.run("-x") == 1


def test_options_select_tests(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    project.write("two/test_b.py", "def test_other(): pass\n")
    assert project.run("-k", "other") == 0, "the other part has no such test"
    assert capfd.readouterr().out.count("1 passed") == 1
    assert project.run("--no-such-option") == 4


def test_an_empty_selection_is_a_failure(project: Project) -> None:
    (project.root / "one" / "test_a.py").unlink()
    assert project.run() == 5


def test_ctrl_c_lets_tests_clean_up(project: Project) -> None:
    cleaned = "import pathlib, pytest, time\n@pytest.fixture\ndef one():\n    yield\n"
    cleaned += "    time.sleep(1)\n    pathlib.Path('cleaned').touch()\n"
    cleaned += "def test_long(one):\n    pathlib.Path('began').touch()\n    time.sleep(60)\n"
    project.write("one/test_a.py", cleaned)
    program = (
        "import pathlib, sys; sys.path.insert(0, sys.argv[1]); import run_tests; "
        f"sys.exit(run_tests.main([], pathlib.Path.cwd(), {PARTS!r}))"
    )
    command = [sys.executable, "-c", program, str(SCRIPT.parent)]
    process = subprocess.Popen(command, cwd=project.root, stdout=subprocess.DEVNULL, start_new_session=True)
    until(lambda: process.poll() is not None or (project.root / "began").exists(), 60)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait(60) == 130
    assert (project.root / "cleaned").exists()
