"""The fleet's end of the pipe to one supervisor process: sends requests, receives answers and progress."""

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
from typing import IO, Any

from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.local_fleet.layout import ClusterDir

_MODULE = "ray_multicluster_scheduler.local_fleet.supervisor"


def spawn_module(module: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Run one of our modules in its own process session, with pipes to its standard input and output."""
    paths = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    root = Path(__file__).absolute().parents[2]
    if root.name not in ("site-packages", "dist-packages"):  # an installed package is found anyway
        paths.insert(0, str(root))
    return subprocess.Popen(  # nosec B603 # our own program, without a shell
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd="/",  # so the import paths above are absolute
        bufsize=0,
        start_new_session=True,  # Ctrl+C in the terminal must not reach it
    )


class SupervisorClient:
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
            self._process = spawn_module(_MODULE, log)
        self._write({**spec, "parent": os.getpid()})

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def post(self, op: str, **args: Any) -> int:
        """Send a request; :func:`collect` waits for its answer."""
        number = next(self._numbers)
        self._awaited.add(number)
        self._write({"id": number, "op": op, "args": args})
        return number

    def call(self, op: str, timeout_s: float = 60.0, **args: Any) -> dict[str, Any]:
        """Send a request and wait for its answer. Raises ClusterConnectionError if it failed."""
        with self.lock:
            number = self.post(op, **args)
            collect([(self, number)], timeout_s)
            return self.take_answer(number)

    def has_answer(self, number: int) -> bool:
        return number in self._answers

    def take_answer(self, number: int) -> dict[str, Any]:
        """The answer to a request. Raises the ClusterConnectionError that it carries."""
        self._awaited.discard(number)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise ClusterConnectionError(answer["error"], cluster=self.name, next_step=answer["next_step"])
        result: dict[str, Any] = answer["ok"]
        return result

    def discard_answer(self, number: int) -> None:
        """Ignore the answer to this request."""
        self._awaited.discard(number)
        self._answers.pop(number, None)

    def receive(self) -> None:
        """Read available messages. Raises ClusterConnectionError if the supervisor has ended."""
        chunk = os.read(self.fileno(), 65536)
        if not chunk:
            raise self._ended()
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._handle(json.loads(line))

    def hang_up(self) -> None:
        """Close the pipe: the supervisor ends its cluster, cleans up and exits."""
        assert self._process.stdin is not None
        # Also as a message: a forked child of ours may hold a copy of the pipe, so that closing it has no effect.
        with suppress(ClusterConnectionError):
            self._write({"op": "end"})
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def join(self, timeout_s: float) -> bool:
        """Wait until the supervisor has exited after :meth:`hang_up`; False if it had to be killed or failed."""
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

    def _handle(self, message: dict[str, Any]) -> None:
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
            raise self._ended() from None

    def _ended(self) -> ClusterConnectionError:
        return ClusterConnectionError(
            f"The supervisor of local cluster {self.name!r} (pid {self.pid}) has ended.",
            cluster=self.name,
            next_step="stop() the fleet, which ends the rest of the cluster, and start it again.",
        )


def collect(pending: Sequence[tuple[SupervisorClient, int]], timeout_s: float) -> None:
    """Wait until every request has its answer, reading from all supervisors at once."""
    deadline = time.monotonic() + timeout_s
    wait_for([client for client, _ in pending], lambda: all(c.has_answer(n) for c, n in pending), deadline)
    late = [(client, number) for client, number in pending if not client.has_answer(number)]
    for client, number in late:
        client.discard_answer(number)
    if late:
        names = ", ".join(repr(client.name) for client, _ in late)
        raise ClusterConnectionError(
            f"No answer from the supervisor of local cluster {names} within {timeout_s:g} s.",
            cluster=late[0][0].name,
            next_step="stop() the fleet and start it again.",
        )


def wait_for(clients: Sequence[SupervisorClient], done: Callable[[], bool], deadline: float) -> None:
    """Receive messages until ``done()`` or the deadline."""
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client, selectors.EVENT_READ, client)
        while not done() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                key.data.receive()
