"""`rmcs top`: what keys do, how it looks, and a whole run in a terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ray_multicluster_scheduler.cli.top import look
from ray_multicluster_scheduler.cli.top_picture import TopPicture
from ray_multicluster_scheduler.cli.top_state import View, chosen, keys_of, press, within
from tests.unit.cli.conftest import Rmcs
from tests.unit.cli.test_golden import GIB, GOLDEN, HELD, NOW, STATUS, row, waiting
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService

ROOT = Path(__file__).resolve().parents[3]
SEEN: dict[str, Any] = {
    "address": STATUS["address"],
    "version": STATUS["version"],
    "clusters": STATUS["clusters"],
    "nodes": [
        {
            "NodeID": f"{number}f" * 14,
            "Alive": True,
            "Cluster": name,
            "Resources": {"CPU": 20.0, "memory": 64 * GIB, **more},
        }
        for number, (name, more) in enumerate([("centos", {"GPU": 2.0}), ("centos", {"H100": 1.0}), ("mac", {})])
    ],
    "queue": [
        HELD,
        waiting("task-9f3c", 12, "centos: 16 CPU are not free on any one node; mac is cordoned", 2),
        *(
            waiting(f"task-{number:04}", 60 - number, "mac is cordoned", number + 1, owner="bob", code="CORDONED")
            for number in range(20)
        ),
    ],
    "running": [row("task-2a11", "RUNNING", 30, cluster="centos"), row("old-1", "DISPATCHING", 7200, owner="bob")],
    "counts": {"queue": 5022},
}


def pressed(keys: str, view: View | None = None) -> View:
    for key in keys_of(keys):
        view = press(view or View(), key)
    return view or View()


class TestKeys:
    @pytest.mark.parametrize(
        ("sent", "keys"),
        [
            ("q", ["q"]),
            ("\t\x1b[Z\x1b[C\x1bOD", ["next", "previous", "next", "previous"]),
            ("\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["up", "down", "page up", "page down", "home", "end"]),
            ("/é\r\x7f\x15", ["/", "é", "enter", "backspace", "clear"]),
            ("\x1b", ["escape"]),
            ("\x1b[1;5Cx", ["x"]),
            ("\x1b[15~\x02", []),
        ],
    )
    def test_what_a_terminal_sends(self, sent: str, keys: list[str]) -> None:
        assert keys_of(sent) == keys

    def test_panes(self) -> None:
        assert [pressed("\t" * times).pane for times in range(5)] == [
            "clusters",
            "nodes",
            "queue",
            "running",
            "clusters",
        ]
        assert pressed("\x1b[D").pane == "running"
        assert pressed("3").pane == "queue"

    def test_order(self) -> None:
        assert (pressed("s").sort, pressed("a").sort, pressed("sc").sort) == ("state", "age", "cluster")
        assert (pressed("a").backwards, pressed("aa").backwards, pressed("aaa").backwards) == (False, True, False)

    def test_filter(self) -> None:
        typed = pressed("/qpa")
        assert (typed.filter, typed.typing, typed.over) == ("qpa", True, False), "letters are no commands meanwhile"
        assert pressed("/ab\x7f").filter == "a"
        assert pressed("/ab\x15").filter == ""
        kept = pressed("/ab\r")
        assert (kept.filter, kept.typing) == ("ab", False)
        assert pressed("\x1b", kept).filter == ""
        assert pressed("/ab\x1b") == View()
        assert pressed("/a\t").pane == "clusters"

    def test_pause_and_quit(self) -> None:
        assert (pressed("p").paused, pressed("pp").paused) == (True, False)
        assert pressed("q").over
        assert pressed("xyz") == View()

    def test_scrolling_ends_at_both_ends(self) -> None:
        assert pressed("\x1b[A").first == 0
        assert pressed("\x1b[B\x1b[6~").first == 11
        assert within(pressed("\x1b[F"), 22, 10).first == 12
        assert within(pressed("\x1b[B"), 3, 10).first == 0
        assert pressed("\x1b[B\t").first == 0


class TestRows:
    def ids(self, keys: str) -> list[str]:
        found = chosen(pressed(keys), SEEN)
        return [str(one.get("id") or one.get("name") or one["NodeID"]) for one in found]

    def test_by_cluster_state_and_age(self) -> None:
        assert self.ids("") == ["attic", "centos", "lab", "mac"]
        assert self.ids("c") == ["mac", "lab", "centos", "attic"]
        assert self.ids("s") == ["attic", "lab", "centos", "mac"]
        assert self.ids("4a") == ["old-1", "task-2a11"]
        assert self.ids("4aa") == ["task-2a11", "old-1"]
        assert self.ids("3a")[0] == "nightly-2026-11-15"
        assert self.ids("a") == ["centos", "mac", "lab", "attic"], "what has no age stays as it comes"

    def test_filtered(self) -> None:
        assert self.ids("3/MONDAY") == ["nightly-2026-11-15"]
        assert len(self.ids("3/bob")) == 20
        assert len(self.ids("2/h100")) == 0, "names of resources are no values"
        assert len(self.ids("2/centos")) == 2


class TestPicture:
    def drawn(self, keys: str, width: int, height: int, trouble: tuple[str, float] | None = None) -> Console:
        screen = Console(
            file=io.StringIO(),
            record=True,
            width=width,
            height=height,
            force_terminal=True,
            color_system="truecolor",
            highlight=False,
        )
        screen.print(TopPicture(pressed(keys), SEEN, NOW, height, trouble), end="")
        return screen

    @pytest.mark.parametrize(
        ("name", "keys", "width", "height"),
        [
            ("top-clusters", "", 110, 12),
            ("top-queue", "3", 80, 16),
            ("top-running", "4a", 50, 8),
            ("top-filter", "3/bob", 60, 10),
            ("top-nodes", "2p", 36, 8),
        ],
    )
    def test_it_looks_as_it_did(
        self, name: str, keys: str, width: int, height: int, request: pytest.FixtureRequest
    ) -> None:
        drawn = self.drawn(keys, width, height).export_svg(title="rmcs top", unique_id=name)
        path = GOLDEN / f"{name}.svg"
        if request.config.getoption("--refresh-golden"):
            path.write_text(drawn, encoding="utf-8")
        assert path.exists(), "write it with: pytest tests/unit/cli/test_top.py --refresh-golden"
        assert drawn == path.read_text(encoding="utf-8"), "if it is better now: pytest --refresh-golden, and look at it"

    @pytest.mark.parametrize("keys", ["", "2", "3", "4", "3/bob", "3/none", "\x1b[F3p"])
    @pytest.mark.parametrize("width", [1, 7, 20, 41, 80, 200])
    @pytest.mark.parametrize("height", [1, 2, 3, 5, 24, 60])
    def test_it_fits(self, keys: str, width: int, height: int) -> None:
        from rich.cells import cell_len

        lines = self.drawn(keys, width, height).export_text().split("\n")
        assert len(lines) == height
        assert max(map(cell_len, lines)) <= width

    def test_a_service_that_is_lost(self) -> None:
        first = self.drawn("", 110, 10, ("it does not answer: refused", NOW - 12)).export_text().splitlines()[0]
        assert first.rstrip() == "No answer for 12s; it is asked again. it does not answer: refused"

    def test_where_there_is_little_room_the_pane_and_the_pause_are_seen(self) -> None:
        lines = self.drawn("4p", 24, 8).export_text().splitlines()
        assert lines[0].startswith("PAUSED  rmcs")
        assert lines[1].startswith(" Running 2  4/4")

    def test_where_one_is(self) -> None:
        assert "13-22 of 22" in self.drawn("3\x1b[F", 110, 14).export_text()
        assert "Nothing here has 'xyz' in it." in self.drawn("3/xyz", 110, 14).export_text()


def test_what_there_is_to_see(service: HttpService) -> None:
    from ray_multicluster_scheduler.cli.service import connect

    service.submit("t0", 8)
    until(lambda: service.get("/api/v1/items/t0")["state"] == "RUNNING")
    service.submit("t1", 8)
    until(lambda: service.get("/api/v1/queue")["depth"] == 1)
    seen = look(connect(service.address))
    assert [one["id"] for one in seen["running"]] == ["t0"]
    assert [one["id"] for one in seen["queue"]] == ["t1"]
    assert [one["name"] for one in seen["clusters"]] == ["mac"]
    screen = Console(file=io.StringIO(), width=100, height=10)
    for pane in "1234":
        screen.print(TopPicture(pressed(pane), seen, time.time(), 10))


def test_without_a_terminal(service: HttpService, rmcs: Rmcs) -> None:
    done = rmcs("top")
    assert (done.code, done.out) == (2, "")
    assert "needs a terminal" in done.err
    assert "rmcs status --watch" in done.err


class Terminal:
    """A real one of 100 columns and 20 lines, in which `rmcs top`, or another command, runs."""

    CODE = (
        "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        "from ray_multicluster_scheduler.main import main; sys.exit(main(sys.argv[1:]))"
    )

    def __init__(self, *words: str) -> None:
        self.ours, self._theirs = pty.openpty()
        self.resize(100, 20)
        self.before = termios.tcgetattr(self._theirs)
        environ = {name: one for name, one in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.CODE, *(words or ("top", "--every", "0.5"))],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            cwd=ROOT,
            env={**environ, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        self.text = ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: str) -> None:
        self.text = ""
        os.write(self.ours, keys.encode())

    def until(self, said: str, patience_s: float = 20.0) -> None:
        deadline = time.monotonic() + patience_s
        while said not in self.text:
            assert time.monotonic() < deadline, f"{said!r} does not come: {self.text[-2000:]!r}"
            self._read(0.1)

    def _read(self, wait_s: float) -> None:
        if select.select([self.ours], [], [], wait_s)[0]:
            self.text += os.read(self.ours, 65536).decode(errors="replace")

    def end(self) -> int:
        """Its exit code; the terminal is as it was."""
        deadline = time.monotonic() + 20
        while self.process.poll() is None:
            assert time.monotonic() < deadline
            self._read(0.1)
        self._read(0.1)
        assert termios.tcgetattr(self._theirs) == self.before
        assert "\x1b[?1049l" in self.text, "the ordinary screen is back"
        assert "\x1b[?25h" in self.text, "and the cursor"
        assert "Traceback" not in self.text
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)
        os.close(self._theirs)


class TestInATerminal:
    @pytest.fixture
    def terminal(self, service: HttpService) -> Iterator[Terminal]:
        service.submit("alpha-1")
        until(lambda: service.get("/api/v1/items/alpha-1")["state"] == "RUNNING")
        one = Terminal()
        try:
            one.until("\x1b[?1049h")
            one.until("mac")
            yield one
        finally:
            one.close()

    def test_keys(self, terminal: Terminal) -> None:
        assert termios.tcgetattr(terminal._theirs) != terminal.before
        terminal.type("\x1b[D")
        terminal.until("alpha-1")
        terminal.type("/zzz")
        terminal.until("Nothing here has 'zzz' in it.")
        terminal.type("\x1b")
        terminal.until("alpha-1")
        terminal.type("p")
        terminal.until("PAUSED")
        terminal.resize(30, 6)
        terminal.text = ""
        terminal.until("quit")
        terminal.type("q")
        assert terminal.end() == 0

    def test_ctrl_c(self, terminal: Terminal) -> None:
        terminal.type("\x03")
        assert terminal.end() == 130

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_signals(self, terminal: Terminal, number: signal.Signals) -> None:
        terminal.process.send_signal(number)
        assert terminal.end() == 128 + number

    def test_the_service_goes_and_comes_back(self, terminal: Terminal, service: HttpService) -> None:
        service.stop()
        terminal.until("No answer for")
        service.start()
        terminal.text = ""
        terminal.until(f"at {service.address}")
        terminal.type("q")
        assert terminal.end() == 0

    def test_a_token_that_is_revoked_ends_it(self, terminal: Terminal, service: HttpService) -> None:
        service.book.revoke(service.token.split("_")[1], force=True)
        assert terminal.end() == 1
        assert "does not take the token from RMCS_TOKEN" in terminal.text.partition("\x1b[?1049l")[2]
