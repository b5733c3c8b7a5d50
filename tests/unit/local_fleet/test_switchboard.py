"""The switchboard of the tests: one address for all agents, each forwarded through its own cluster's network."""

from __future__ import annotations

import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ray_multicluster_scheduler.local_fleet import LocalCluster, LocalFleet
from tests.support.switchboard import Switchboard

pytestmark = pytest.mark.usefixtures("leak_check")

CALLER = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20) as line:
    for word in sys.stdin:
        try:
            line.sendall(word.encode())
            print((line.recv(100) or b"over\\n").decode(), end="", flush=True)
        except ConnectionError:
            print("over", flush=True)
"""


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(100):
            self.request.sendall(data)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False


@pytest.fixture
def port() -> Iterator[int]:
    """Of ours, where whatever is reported is repeated."""
    with Server(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@contextmanager
def caller(board: Switchboard, home: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with that home, as every process of a cluster has its cluster's."""
    command = [sys.executable, "-c", CALLER, str(board.port)]
    environ = {**os.environ, "HOME": str(home)}
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def say(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_each_agent_uses_the_network_of_its_own_cluster(
    fake_python: Path, base: Path, port: int, tmp_path: Path
) -> None:
    with (
        LocalFleet(LocalCluster("a"), LocalCluster("b"), ray_python=fake_python) as fleet,
        Switchboard(fleet, port) as board,
        caller(board, fleet.home("a")) as of_a,
        caller(board, fleet.home("b")) as of_b,
        caller(board, tmp_path) as stranger,
    ):
        assert (say(of_a, "one"), say(of_b, "two")) == ("one", "two")
        assert say(stranger, "three") == "over", "of no cluster that there is"
        fleet.cut("a")
        assert (say(of_a, "four"), say(of_b, "five")) == ("over", "five")
