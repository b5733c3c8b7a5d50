"""On a terminal sentences are folded at words; in a pipe each is one line."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Done, Rmcs
from tests.unit.cli.terminal import ROOT, shown
from tests.unit.client_api.control_plane import CLOSED_PORT, until
from tests.unit.service.http_service import HttpService

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMCS_HOME", str(tmp_path / "home"))


def check_same_words(reported: list[str], one_line_each: str, columns: int) -> None:
    """A terminal shows what a pipe gets, with no word broken."""
    assert max(map(len, reported)) <= columns
    assert " ".join(reported).split() == one_line_each.split()
    assert len(reported) > len(one_line_each.splitlines()), "there was something to fold"


@pytest.mark.parametrize("columns", [40, 60])
def test_an_error(rmcs: Rmcs, columns: int) -> None:
    words = ("status", "--address", CLOSED_PORT)
    done = rmcs(*words)
    assert len(done.err.splitlines()) == 3
    check_same_words(shown(*words, columns=columns), done.err, columns)


def test_usage_errors_fit_the_width(rmcs: Rmcs) -> None:
    words = ("task", "list", "--state", "nonsense", "--address", CLOSED_PORT)
    check_same_words(shown(*words, columns=60), rmcs(*words).err, 60)


def test_a_plain_word(service: HttpService, rmcs: Rmcs) -> None:
    words = ("events", "--id", "t", "--cluster", "nowhere-at-all")
    service.submit("t1")
    done = rmcs(*words)
    assert all(line.startswith("rmcs: ") for line in done.err.splitlines())
    check_same_words(shown(*words, columns=60), done.err, 60)


def test_stderr_has_a_width_of_its_own() -> None:
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 40, 0, 0))
        command = [sys.executable, "-m", "ray_multicluster_scheduler", "status", "--address", CLOSED_PORT]
        environ = {name: one for name, one in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
        subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs, env=environ, timeout=60, check=False)
        reported = os.read(ours, 65536).decode().splitlines()
    finally:
        os.close(ours)
        os.close(theirs)
    assert max(map(len, reported)) <= 40
    assert "does not answer:" in " ".join(map(str.strip, reported))


def test_events(service: HttpService, rmcs: Rmcs) -> None:
    service.submit("t1")
    service.submit("a-task-that-waits", 8)
    until(lambda: service.get("/api/v1/items/a-task-that-waits")["code"] == "NO_CAPACITY")
    words = ("events", "--id", "a-task-that-waits", "--state", "QUEUED")
    done = rmcs(*words)
    assert len(done.out.splitlines()) == done.out.count("a-task-that-waits QUEUED")
    check_same_words(shown(*words, columns=60), done.out, 60)


def test_a_plan_has_its_cells_below_their_titles(rmcs: Rmcs, tmp_path: Path) -> None:
    path = tmp_path / "clusters.yaml"
    path.write_text(f"clusters:\n  - {{name: mac, dashboard: '{CLOSED_PORT}'}}\n")
    words = ("plan", "--config", str(path), "--require-tag", "gpu")
    reported = [_STYLE.sub("", line).rstrip() for line in shown(*words, columns=60)]
    check_same_words(reported, rmcs(*words).out, 60)
    titles = next(line for line in reported if line.startswith("CLUSTER"))
    why = titles.index("WHY")
    rows = reported[reported.index(titles) + 1 :]
    assert len(rows) > 2
    assert all(row[why - 1] == " " != row[why] for row in rows)
    assert all(not row[:why].strip() for row in rows[1:])


@pytest.mark.parametrize("columns", [60, 80])
def test_a_code(rmcs: Rmcs, columns: int) -> None:
    reported = shown("explain", "NO_CAPACITY", columns=columns)
    output = rmcs("explain", "NO_CAPACITY").out
    check_same_words(reported, output, columns)
    assert output.count("\n") == 1
    assert min(map(len, reported[:-1])) > columns - 15, "the lines of the file are not seen"
    assert not [line for line in reported if line.startswith(" ")]


def test_sentences_that_are_the_answer(service: HttpService, rmcs: Rmcs, tmp_path: Path) -> None:
    """What a command was asked for may be a sentence, too."""
    file = tmp_path / "clusters.yaml"
    file.write_text("clusters:\n" + "".join(f"  - {{name: {n}, dashboard: 'http://mac:8265'}}\n" for n in "ab"))
    check_same_words(shown("config", "check", str(file), columns=110), _all(rmcs("config", "check", str(file))), 110)
    name = service.get("/api/v1/clusters")["clusters"][0]["name"]
    rmcs("clusters", "cordon", name)
    for order in ("cordon", "check"):
        words = ("clusters", order, name)
        check_same_words(shown(*words, columns=20), _all(rmcs(*words)), 20)


def _all(done: Done) -> str:
    """Both, as a terminal shows them."""
    return f"{done.err}{done.out}"
