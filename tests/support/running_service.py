"""A real service in a process of its own: `rmcs up`, to be stopped, killed and started again."""

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
_PATIENCE_S = 60.0


class RunningService:
    """On one state folder and, from its first start on, one port."""

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
        deadline = time.monotonic() + _PATIENCE_S
        while wait or not self.address:
            said = self.log.read_bytes()[before:].decode(errors="replace")
            ready = _READY.search(said)
            if ready is not None:
                self.address = ready[1]
                return self
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the service did not start:\n{said[-3000:]}")
            time.sleep(0.02)
        return self

    @property
    def token(self) -> str:
        """Its owner's, with all roles."""
        return (self.state / "token").read_text().strip()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        """As if the power went off."""
        self.process.kill()
        self.process.wait()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """As an operator would; returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
