"""Contenders as processes: they answer, they fail with a reason, and none is left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from bench import _contenders
from bench._contenders import Contender, ContenderFailed
from bench._profile import CannotProfile, agent_of

ECHO = """
import json, sys
print(json.dumps({"value": "1.0"}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "die":
        sys.exit("the last words")
    if request["do"] == "hang":
        continue
    print(json.dumps({"error": "no"} if request["do"] == "fail" else {"value": request}), flush=True)
"""
Make = Callable[[str], Contender]


@pytest.fixture
def make(leak_check: None) -> Iterator[Make]:
    made: list[Contender] = []

    def start(program: str) -> Contender:
        made.append(Contender("it", [sys.executable, "-c", program], dict(os.environ)))
        made[-1].start()
        return made[-1]

    yield start
    for contender in made:
        contender.end()


def test_it_answers_one_request_after_the_other(make: Make) -> None:
    it = make(ECHO)
    assert it.version == "1.0"
    assert it.ask("tasks", count=3) == {"do": "tasks", "count": 3}
    with pytest.raises(ContenderFailed, match="it failed at fail: no"):
        it.ask("fail")
    assert it.ask("again") == {"do": "again"}


def test_it_ends_when_asked_and_can_be_started_again(make: Make) -> None:
    it = make(ECHO)
    pid = it.pid
    it.start()
    assert it.pid == pid, "it was up already"
    it.end()
    assert not psutil.pid_exists(pid)
    with pytest.raises(ContenderFailed, match="does not run"):
        it.ask("tasks")
    it.start()
    assert it.ask("tasks") == {"do": "tasks"}


def test_one_that_dies_says_why(make: Make) -> None:
    it = make(ECHO)
    with pytest.raises(ContenderFailed, match="it ended at die\n    the last words"):
        it.ask("die")
    it.start()
    assert it.ask("tasks") == {"do": "tasks"}


def test_one_that_does_not_answer_is_ended(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    it = make(ECHO)
    pid = it.pid
    monkeypatch.setattr(_contenders, "_REQUEST_TIMEOUT_S", 0.2)
    with pytest.raises(ContenderFailed, match=r"did not answer hang within 0\.2 s"):
        it.ask("hang")
    assert not psutil.pid_exists(pid)


def test_one_that_cannot_start_says_why(make: Make) -> None:
    with pytest.raises(ContenderFailed, match="it ended at start\n    no ray here"):
        make("import sys; sys.exit('no ray here')")


def test_the_agent_is_the_gateway_that_is_connected_to_the_process() -> None:
    connect = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); sys.stdin.read()"
    gateway = "ray_multicluster_scheduler.scheduler.connection.gateway"
    with socket.create_server(("127.0.0.1", 0)) as ours, socket.create_server(("127.0.0.1", 0)) as other:
        # Another process owns `other`'s agent in real life; here a closed listener plays that part.
        foreign_port = other.getsockname()[1]
        started = []
        try:
            for port, name in (
                (ours.getsockname()[1], "a shell"),
                (foreign_port, gateway),
                (ours.getsockname()[1], gateway),
            ):
                command = [sys.executable, "-c", connect, str(port), name]
                started.append(subprocess.Popen(command, stdin=subprocess.PIPE))
            connections = [ours.accept()[0], other.accept()[0], ours.accept()[0]]
            other.close()
            pids = [process.pid for process in started]
            assert agent_of(os.getpid(), pids) == pids[2]
            with pytest.raises(CannotProfile, match="none of the cluster's 2 processes"):
                agent_of(os.getpid(), pids[:2])
            for connection in connections:
                connection.close()
        finally:
            for process in started:
                process.kill()
                process.communicate()


def test_a_configuration_is_written_anew_for_each_carrier(tmp_path: Path) -> None:
    original = tmp_path / "clusters.yaml"
    original.write_text("settings: {prefetch_ms: 5}\nclusters:\n- {name: a, dashboard: 'http://127.0.0.1:1'}\n")
    path = _contenders.config_with(original, tmp_path / "other.yaml", {"carrier": "ray_client"})
    assert yaml.safe_load(path.read_text()) == {
        "settings": {"prefetch_ms": 5},
        "clusters": [{"name": "a", "dashboard": "http://127.0.0.1:1", "carrier": "ray_client"}],
    }
