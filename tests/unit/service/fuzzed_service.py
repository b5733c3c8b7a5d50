"""A service in a process of its own, to be asked whatever comes to mind; it tells what it holds.

python -m tests.unit.service.fuzzed_service FOLDER

First line: where it is, and its tokens by role. Then one line for each line that it reads: how much it holds now. It
ends with its input.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService
from tests.unit.service.service_plane import a_job, a_task

ROOT = Path(__file__).resolve().parents[3]
USERS = {"admin": "root-of-tests", "submitter": "sam"}
ITEMS = ("done", "runs", "waits", "job")
"""What each of the two has, with the role before it: admin-done, and so on."""


class FuzzedService:
    """That process, from outside. To be ended."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.unit.service.fuzzed_service", str(folder / "state")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
            )
        reported = self._line()
        self.address: str = reported["address"]
        self.tokens: Mapping[str, str] = reported["tokens"]

    def holds(self) -> dict[str, int]:
        """Open files, tasks of its loop, readers of its events, and megabytes."""
        assert self._process.stdin is not None
        self._process.stdin.write("?\n")
        self._process.stdin.flush()
        return self._line()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._process.communicate(timeout=60)

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the service is gone:\n{self.log.read_text()[-4000:]}"
        reported: dict[str, Any] = json.loads(line)
        return reported


def _serve(folder: Path) -> None:
    logging.basicConfig(level=logging.WARNING)  # what it has to say of defects is read afterwards
    with HttpService(folder, auth="token", submission_interval_s=0, breaker_failures=1000) as service:
        tokens = {"admin": service.token, "submitter": service.token_for("sam", Role.SUBMITTER)}
        for role, user in USERS.items():
            done = service.plane.taken(a_task(f"{role}-done", 0, owner=user))
            until(lambda name=f"{role}-done": any(one.task_id == name for one in service.plane.placed))
            service.plane.finish(done, b"value")
            service.plane.taken(a_task(f"{role}-runs", 0, owner=user))
            service.plane.taken(a_task(f"{role}-waits", 100, owner=user))
            service.plane.taken(a_job(f"{role}-job", owner=user))
        _say({"address": service.address, "tokens": tokens})
        loop = service.plane.runtime._loop
        for _ in sys.stdin:
            gc.collect()
            me = psutil.Process()
            tasks = service.plane.runtime.call_and_wait(lambda: len(asyncio.all_tasks(loop)))
            held = {"files": me.num_fds(), "tasks": tasks, "readers": len(service.plane.runtime.event_publisher.hub)}
            _say({**held, "megabytes": me.memory_info().rss // 2**20})


def _say(reported: object) -> None:
    print(json.dumps(reported), flush=True)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
    os._exit(0)  # threads of questions that nobody waits for any more do not keep it
