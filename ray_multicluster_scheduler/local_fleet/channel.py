"""The parent's end of the line to one supervisor: requests out, answers and progress in."""

from __future__ import annotations

import itertools
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.local_fleet.layout import ClusterDir

_MODULE = "ray_multicluster_scheduler.local_fleet.supervisor"


class Channel:
    """A running supervisor. Safe from any thread; it has no thread of its own."""

    def __init__(
        self, name: str, folder: ClusterDir, spec: dict[str, Any], progress: Callable[[str, str], None]
    ) -> None:
        self.name = name
        self.lock = threading.RLock()
        self._progress = progress
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._awaited: set[int] = set()
        self._rest = b""
        self.published: dict[str, int] | None = None
        with folder.supervisor_log.open("wb") as log:
            self._process = subprocess.Popen(  # nosec B603 # our own program, without a shell
                [sys.executable, "-P", "-m", _MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=import_environment(),
                cwd="/",
                bufsize=0,
                start_new_session=True,  # Ctrl+C in the terminal must not reach it
            )
        self._write({**spec, "parent": os.getpid()})

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def post(self, op: str, **args: Any) -> int:
        """Send a request; its answer is fetched with :func:`collect`."""
        number = next(self._numbers)
        self._awaited.add(number)
        self._write({"id": number, "op": op, "args": args})
        return number

    def call(self, op: str, timeout_s: float = 60.0, **args: Any) -> dict[str, Any]:
        """Send a request and wait for its answer. Raises ClusterConnectionError if it failed."""
        with self.lock:
            number = self.post(op, **args)
            collect([(self, number)], timeout_s)
            return self.take(number)

    def answered(self, number: int) -> bool:
        return number in self._answers

    def take(self, number: int) -> dict[str, Any]:
        """The answer to a request, or its error."""
        self._awaited.discard(number)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise ClusterConnectionError(answer["error"], cluster=self.name, next_step=answer["next_step"])
        result: dict[str, Any] = answer["ok"]
        return result

    def forget(self, number: int) -> None:
        """Nobody waits for this answer any more."""
        self._awaited.discard(number)
        self._answers.pop(number, None)

    def receive(self) -> None:
        """Read what is there. Raises ClusterConnectionError if the supervisor is gone."""
        chunk = os.read(self.fileno(), 65536)
        if not chunk:
            raise self._gone()
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._take_in(json.loads(line))

    def hang_up(self) -> None:
        """Close the line: the supervisor ends its cluster, tidies up and exits."""
        assert self._process.stdin is not None
        # Said in words too: a forked child of ours may hold a copy of the pipe, and then closing it says nothing.
        with suppress(ClusterConnectionError):
            self._write({"op": "end"})
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def join(self, timeout_s: float) -> bool:
        """Wait until the supervisor has exited after :meth:`hang_up`; False means it was killed in the end."""
        assert self._process.stdout is not None
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._process.stdout.close()
        return status == 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def _take_in(self, message: dict[str, Any]) -> None:
        if message.get("event") == "published":
            self.published = {"client": message["client"], "dashboard": message["dashboard"]}
        elif message.get("event") == "progress":
            self._progress(self.name, message["text"])
        elif message["id"] in self._awaited:
            self._answers[message["id"]] = message

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(message) + "\n").encode())
        except (BrokenPipeError, ValueError):
            raise self._gone() from None

    def _gone(self) -> ClusterConnectionError:
        return ClusterConnectionError(
            f"The supervisor of local cluster {self.name!r} (pid {self.pid}) is gone.",
            cluster=self.name,
            next_step="stop() the fleet, which ends what is left of the cluster, and start it again.",
        )


def collect(pending: Sequence[tuple[Channel, int]], timeout_s: float) -> None:
    """Wait until every request has its answer, reading all lines side by side."""
    deadline = time.monotonic() + timeout_s
    wait_for([channel for channel, _ in pending], lambda: all(c.answered(n) for c, n in pending), deadline)
    late = [(channel, number) for channel, number in pending if not channel.answered(number)]
    for channel, number in late:
        channel.forget(number)
    if late:
        names = ", ".join(repr(channel.name) for channel, _ in late)
        raise ClusterConnectionError(
            f"No answer from the supervisor of local cluster {names} within {timeout_s:g} s.",
            cluster=late[0][0].name,
            next_step="stop() the fleet and start it again.",
        )


def wait_for(channels: Sequence[Channel], done: Callable[[], bool], deadline: float) -> None:
    """Read from the channels until ``done()`` or the deadline."""
    with selectors.DefaultSelector() as selector:
        for channel in channels:
            selector.register(channel, selectors.EVENT_READ, channel)
        while not done() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                key.data.receive()


def import_environment() -> dict[str, str]:
    """Ours, with absolute import paths: the supervisor runs in another folder."""
    paths = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    root = Path(__file__).absolute().parents[2]
    if root.name not in ("site-packages", "dist-packages"):  # an installed package is found anyway
        paths.insert(0, str(root))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
