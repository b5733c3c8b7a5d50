"""The contenders of the benchmark: one child process each, kept alive over all rounds and driven over a pipe."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import yaml

from ray_multicluster_scheduler.local_fleet import LocalFleet
from ray_multicluster_scheduler.local_fleet.interpreter import find_ray_python
from ray_multicluster_scheduler.local_fleet.ports import LOOPBACK
from ray_multicluster_scheduler.local_fleet.ray_head import cluster_environment

PROGRAM = Path(__file__).with_name("_program.py")
_START_TIMEOUT_S = 120.0
_REQUEST_TIMEOUT_S = 180.0
_END_TIMEOUT_S = 20.0
_TAIL_LINES = 15


class ContenderFailed(Exception):
    """The error of a contender, with the end of its output."""


class Contender:
    """One child process. Its creator must always call :meth:`end`."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self.version = ""
        self._command = list(command)
        self._environment = dict(environment)
        self._process: subprocess.Popen[str] | None = None
        self._printed: IO[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it is connected, unless it is running. Raises ContenderFailed."""
        if self._process is not None:
            return
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            text=True,
            start_new_session=True,  # Ctrl+C must not reach it; a contender ends when its input does
        )
        self.version = str(self._answer("start", _START_TIMEOUT_S))

    @property
    def pid(self) -> int:
        return self._running().pid

    def ask(self, do: str, /, **numbers: int) -> Any:
        """Carry out a request of ``_program.Workloads``. Raises ContenderFailed."""
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"do": do, **numbers}) + "\n")
            process.stdin.flush()
        except OSError as error:
            raise self._failed(f"took no request for {do} ({error})") from error
        return self._answer(do, _REQUEST_TIMEOUT_S)

    def end(self) -> None:
        """Ask it to end, then kill it; safe to call again."""
        process, self._process = self._process, None
        printed, self._printed = self._printed, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(OSError):  # it may have ended already
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            if printed is not None:
                printed.close()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise ContenderFailed(f"{self.name} does not run")
        return self._process

    def _answer(self, do: str, timeout_s: float) -> Any:
        process = self._running()
        assert process.stdout is not None
        # One request, one line: the buffer of the text stream is empty whenever the pipe is.
        ready, _, _ = select.select([process.stdout], [], [], timeout_s)
        if not ready:
            raise self._failed(f"did not answer {do} within {timeout_s:g} s")
        line = process.stdout.readline()
        if not line:
            raise self._failed(f"ended at {do}")
        answer = json.loads(line)
        if "error" in answer:
            raise ContenderFailed(f"{self.name} failed at {do}: {answer['error']}")
        return answer["value"]

    def _failed(self, what: str) -> ContenderFailed:
        """End the process after a failure: a late answer would be taken for that of the next request."""
        lines: list[str] = []
        if self._printed is not None:
            self._printed.seek(0)
            lines = self._printed.read().decode("utf-8", "replace").splitlines()
        self.end()
        return ContenderFailed("\n    ".join([f"{self.name} {what}", *lines[-_TAIL_LINES:]]))


def contenders(fleet: LocalFleet, cluster: str, folder: Path) -> dict[str, Contender]:
    """All contenders, not started yet, in the order of their turns. Their configuration is in ``folder``, which must
    exist
    as long as they do."""
    ray_python = find_ray_python()
    ports = fleet.direct_ports(cluster)
    inside = cluster_environment(
        os.environ,
        python=ray_python,
        ports=ports,
        marker="bench",
        home=fleet.home(cluster),
        tmp=fleet.folder(cluster).tmp,
        token_path=fleet.folder(cluster).token,
    )
    # Bypass the fleet's forwarders, which exist for fault injection and would slow the other contenders down.
    client, gcs = f"ray://{LOOPBACK}:{ports.client}", f"{LOOPBACK}:{ports.gcs}"
    config = str(fleet.config_path)
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RMCS_")}
    without = {**ours, "RMCS_PREFETCH_MS": "0"}

    def program(name: str, python: str, address: str, environment: dict[str, str]) -> Contender:
        return Contender(name, [python, "-P", str(PROGRAM), name, address], environment)

    def by(carrier: str, **keys: str) -> str:
        return str(config_with(fleet.config_path, folder / f"{carrier}.yaml", {"carrier": carrier, **keys}))

    by_client = by("ray_client", head_address=f"{LOOPBACK}:{ports.client}", connector_python=str(ray_python))
    return {
        "ray_client": program("ray_client", str(ray_python), client, inside),
        "rmcs": program("rmcs", sys.executable, config, ours),
        "rmcs_dial_in": program("rmcs_dial_in", sys.executable, by("dial_in"), ours),
        "rmcs_ray_client": program("rmcs_ray_client", sys.executable, by_client, ours),
        "rmcs_no_prefetch": program("rmcs_no_prefetch", sys.executable, config, without),
        "rmcs_service": program("rmcs_service", sys.executable, config, ours),
        "native": program("native", str(ray_python), gcs, inside),
        "socket": program("socket", sys.executable, LOOPBACK, ours),
    }


def config_with(original: Path, path: Path, keys: Mapping[str, str]) -> Path:
    """Write a copy of the configuration, with these keys for each of its clusters."""
    document = yaml.safe_load(original.read_text(encoding="utf-8"))
    for entry in document["clusters"]:
        entry.update(keys)
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path
