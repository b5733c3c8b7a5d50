"""A real service in its own process (`rmcs up`), which tests can stop, kill and restart."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

_READY = re.compile(r"rmcs: (https?://\S+) is ready")
_TIMEOUT_S = 60.0


class RunningService:
    """Keeps its state folder and, after the first start, its port."""

    def __init__(self, config: Path, state: Path, **settings: object) -> None:
        self.config, self.state, self.log = config, state, state.with_suffix(".log")
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RMCS_")},
            "RMCS_HOME": str(state),
            **{f"RMCS_{name.upper()}": str(value) for name, value in settings.items()},
        }
        self.address = ""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, environ: Mapping[str, str] | None = None, *, wait: bool = True) -> Self:
        """Until it is ready; with ``wait`` False its process may end before that."""
        port = self.address.rpartition(":")[2] or "0"
        command = [sys.executable, "-m", "ray_multicluster_scheduler.main", "up"]
        command += ["--config", str(self.config), "--port", port]
        before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env={**self._environ, **(environ or {})}, stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + _TIMEOUT_S
        while wait or not self.address:
            output = self.log.read_bytes()[before:].decode(errors="replace")
            ready = _READY.search(output)
            if ready is not None:
                self.address = ready[1]
                return self
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the service did not start:\n{output[-3000:]}")
            time.sleep(0.02)
        return self

    @property
    def token(self) -> str:
        """The token of its owner, with all roles."""
        return (self.state / "token").read_text().strip()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop it with a signal; returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
