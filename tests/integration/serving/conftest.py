"""A stand-alone serving scheduler in a process of its own, and instances over real HTTP. None of this needs Ray."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.docs_blocks import ROOT
from tests.support.serving_instances import OpenAIStub, StubInstance
from tests.support.serving_server import Server


class ServingProcess(Server):
    """`python -m ray_multicluster_scheduler.serving`, or another ``module`` with arguments, on a free port."""

    def __init__(self, *arguments: str, module: str = "ray_multicluster_scheduler.serving") -> None:
        command = [sys.executable, "-m", module, "--port", "0", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        self.output = ""
        self._lines = threading.Thread(target=self._read)
        self._started = threading.Event()
        self._lines.start()
        assert self._started.wait(120), self.output
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.output)
        assert found, self.output
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.output += line
                if "Uvicorn running" in line:
                    self._started.set()
        self._started.set()

    def memory(self, name: str = "VmHWM") -> int:
        """MiB: the most that was resident so far, or now (VmRSS)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{name}:\s+(\d+) kB", status)
        assert found
        return int(found[1]) // 1024

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, and wait for the end. Returns the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._lines.join()
        return code

    def stop(self) -> None:
        if self.process.poll() is None:
            self.end()
        self._lines.join()
        assert "Traceback" not in self.output


@pytest.fixture
def alone() -> Iterator[Callable[..., ServingProcess]]:
    """Starts schedulers; at the end of the test they must end without a traceback."""
    started: list[ServingProcess] = []

    def start(*arguments: str, **options: str) -> ServingProcess:
        started.append(ServingProcess(*arguments, **options))
        return started[-1]

    yield start
    try:
        for one in started:
            one.stop()
    finally:
        for one in started:
            one.process.kill()
            one.process.wait()


@pytest.fixture
def scheduler(alone: Callable[..., ServingProcess]) -> ServingProcess:
    return alone()


@pytest.fixture
def instance() -> Iterator[Callable[..., Any]]:
    """Starts an instance of a class (StubInstance by default), and stops it after the test."""
    started: list[Any] = []

    def start(*arguments: Any, kind: type[StubInstance | OpenAIStub] = StubInstance, **options: Any) -> Any:
        started.append(kind(*arguments, **options))
        return started[-1]

    yield start
    for one in started:
        one.stop()
