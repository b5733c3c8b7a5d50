"""How `make test` runs the tests: a few that fail get a second look, alone, and what passes only then is named."""

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


def test_all_is_well(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    assert project.run() == 0
    said = capfd.readouterr().out
    assert said.count("1 passed") == 2
    assert "UNSTABLE" not in said


@pytest.mark.parametrize("part", ["one", "two"])
def test_what_fails_again_has_failed(project: Project, part: str, capfd: pytest.CaptureFixture[str]) -> None:
    project.write(f"{part}/test_c.py", BAD)
    project.write("one/test_d.py", FIRST_TIME)
    assert project.run() == 1
    said = capfd.readouterr().out
    assert said.rstrip().endswith(f"FAILED again, alone: {part}/test_c.py::test_bad")
    assert "UNSTABLE" not in said


def test_what_passes_only_alone_is_named(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    project.write("two/test_c.py", FIRST_TIME)
    assert project.run() == 0
    last = "UNSTABLE: 1 test failed in the full run and passed alone:\n  two/test_c.py::test_first_time"
    assert capfd.readouterr().out.rstrip().endswith(last)


def test_four_are_no_chance(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(4):
        project.write(f"one/test_first_{number}.py", FIRST_TIME)
    assert project.run() == 1
    assert "4 tests failed: too many for a coincidence, so none is run again." in capfd.readouterr().out


def test_the_second_part_is_run_though_the_first_has_failed(
    project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    project.write("one/test_a.py", BAD)
    assert project.run() == 1
    assert "1 passed" in capfd.readouterr().out


def test_a_file_that_cannot_be_read_is_no_chance(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    project.write("one/test_c.py", "import nothing_of_that_name\n")
    assert project.run() == 1
    assert "once more" not in capfd.readouterr().out


@pytest.mark.parametrize("code", [1, 3])
def test_a_pytest_that_fails_by_itself_has_failed(project: Project, code: int) -> None:
    """All tests have passed, and what looks at the whole of them is not content."""
    project.write("one/conftest.py", f"def pytest_sessionfinish(session): session.exitstatus = {code}\n")
    assert project.run() == code


def test_a_run_that_is_ended_early_gets_no_second_look(project: Project) -> None:
    project.write("one/test_c.py", FIRST_TIME)
    project.write("one/test_d.py", BAD)
    assert project.run("-x") == 1


def test_options_choose(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    project.write("two/test_b.py", "def test_other(): pass\n")
    assert project.run("-k", "other") == 0, "nothing of that name is in the other part"
    assert capfd.readouterr().out.count("1 passed") == 1
    assert project.run("--no-such-option") == 4


def test_no_test_at_all_is_a_failure(project: Project) -> None:
    (project.root / "one" / "test_a.py").unlink()
    assert project.run() == 5


def test_ctrl_c_lets_tests_tidy_up(project: Project) -> None:
    tidied = "import pathlib, pytest, time\n@pytest.fixture\ndef one():\n    yield\n"
    tidied += "    time.sleep(1)\n    pathlib.Path('tidied').touch()\n"
    tidied += "def test_long(one):\n    pathlib.Path('began').touch()\n    time.sleep(60)\n"
    project.write("one/test_a.py", tidied)
    program = (
        "import pathlib, sys; sys.path.insert(0, sys.argv[1]); import run_tests; "
        f"sys.exit(run_tests.main([], pathlib.Path.cwd(), {PARTS!r}))"
    )
    command = [sys.executable, "-c", program, str(SCRIPT.parent)]
    process = subprocess.Popen(command, cwd=project.root, stdout=subprocess.DEVNULL, start_new_session=True)
    until(lambda: process.poll() is not None or (project.root / "began").exists(), 60)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait(60) == 130
    assert (project.root / "tidied").exists()
