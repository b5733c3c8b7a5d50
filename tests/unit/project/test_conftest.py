"""tests/conftest.py: groups by folder, unit tests first, and a leak check that detects leaks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).resolve().parents[2] / "conftest.py"
OPTIONS = ("-p", "no:cacheprovider", "--import-mode=importlib")
LEAKS = """
import socket, subprocess, threading, time, pytest

stop = threading.Event()
kept = []

def test_nothing(leak_check):
    thread = threading.Thread(target=lambda: None)
    thread.start()

def test_slow_to_end(leak_check):
    threading.Timer(0.3, lambda: None).start()

def test_thread(leak_check):
    threading.Thread(target=stop.wait, daemon=True, name="stray").start()

def test_socket(leak_check):
    kept.append(socket.create_server(("127.0.0.1", 0)))

def test_process(leak_check):
    kept.append(subprocess.Popen(["sleep", "120"]))

def test_tidy_up():
    stop.set()
    kept[0].close()
    kept[1].kill()
    kept[1].wait()
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    impatient, found = re.subn(r"SETTLE_S = [\d.]+", "SETTLE_S = 2.0", CONFTEST.read_text())
    assert found == 1
    pytester.makeconftest(impatient)
    pytester.makeini("[pytest]\nmarkers =\n  unit:\n  integration:\n  slow:\n")
    return pytester


def put(project: pytest.Pytester, path: str, text: str) -> None:
    file = project.path / path
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def test_the_leak_check_finds_threads_sockets_and_processes(project: pytest.Pytester) -> None:
    put(project, "unit/test_leaks.py", LEAKS)
    result = project.runpytest_subprocess(*OPTIONS)
    result.assert_outcomes(passed=6, errors=3)
    result.stdout.fnmatch_lines(
        ["*left behind: thread stray*", "*left behind: socket*", "*left behind: process*sleep*"]
    )


def test_the_folder_decides_group_and_order(project: pytest.Pytester) -> None:
    put(project, "integration/test_a.py", "def test_ray(): pass")
    put(project, "unit/test_b.py", "def test_pure(): pass")
    everything = project.runpytest_subprocess("-v", *OPTIONS)
    everything.stdout.fnmatch_lines(["unit*test_pure PASSED*", "integration*test_ray PASSED*"])
    project.runpytest_subprocess("-m", "unit", *OPTIONS).assert_outcomes(passed=1, deselected=1)


def test_a_test_without_a_group_is_refused(project: pytest.Pytester) -> None:
    put(project, "misc/test_c.py", "def test_lost(): pass")
    result = project.runpytest_subprocess(*OPTIONS)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "put tests into one of" in str(result.stderr) + str(result.stdout)
