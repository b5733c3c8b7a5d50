"""A terminal for tests: a command runs in it as before a person."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


class Terminal:
    """A real one of 20 lines, in which `rmcs top`, or another command, runs."""

    CODE = (
        "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        "from ray_multicluster_scheduler.main import main; sys.exit(main(sys.argv[1:]))"
    )

    def __init__(self, *words: str, columns: int = 100) -> None:
        self.ours, self._theirs = pty.openpty()
        self.resize(columns, 20)
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
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may come in two pieces

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: str) -> None:
        self.text = ""
        os.write(self.ours, keys.encode())

    def until(self, output: str, patience_s: float = 60.0) -> None:
        deadline = time.monotonic() + patience_s
        while output not in self.text:
            assert time.monotonic() < deadline, f"{output!r} does not come: {self.text[-2000:]!r}"
            self._read(0.1)

    def _read(self, wait_s: float) -> bool:
        """Did anything come?"""
        came = bool(select.select([self.ours], [], [], wait_s)[0])
        if came:
            self.text += self._decoder.decode(os.read(self.ours, 65536))
        return came

    def _read_rest(self) -> None:
        """A terminal hands out only a few thousand characters at a time."""
        while self._read(0.1):
            pass

    def all(self) -> list[str]:
        """All lines of a command that ends by itself."""
        deadline = time.monotonic() + 60
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text[-2000:]
            self._read(0.1)
        self._read_rest()
        return self.text.replace("\r\n", "\n").rstrip("\n").split("\n")

    def end(self) -> int:
        """Its exit code; the terminal is as it was."""
        deadline = time.monotonic() + 60
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text[-2000:]
            self._read(0.1)
        self._read_rest()
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


def shown(*words: str, columns: int) -> list[str]:
    """What a command says before a person."""
    terminal = Terminal(*words, columns=columns)
    try:
        return terminal.all()
    finally:
        terminal.close()
