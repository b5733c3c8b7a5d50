"""Common mistakes, one row each: the right error within seconds, with the next step, and no leaks."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from ray_multicluster_scheduler import (
    ConfigurationError,
    NoFeasibleClusterError,
    NoHealthyClusterError,
    SchedulerError,
    TaskSubmissionError,
    UnifiedScheduler,
)
from ray_multicluster_scheduler.local_fleet import LocalFleet

LIMIT_S = 45.0


@dataclass
class World:
    """Input of the cases: the real cluster's entry in clusters.yaml, and wrong addresses."""

    entry: dict[str, Any]
    folder: Path
    closed_port: int
    strange_port: int
    silent_port: int


@dataclass(frozen=True)
class Case:
    """A mistake: ``cluster`` and ``settings`` change the configuration, ``submit`` is what the program does."""

    name: str
    error: type[SchedulerError]
    says: str
    next_step: str
    submit: Callable[[UnifiedScheduler], object] = lambda scheduler: scheduler.submit_task(len, ("abc",))
    cluster: Callable[[World], dict[str, Any]] = lambda world: {}
    settings: dict[str, Any] = field(default_factory=dict)
    about: str = "cluster"


CASES = [
    Case(
        "not a function",
        ConfigurationError,
        r"given 3 \(int\), which is not a function",
        "pass the function itself",
        submit=lambda scheduler: scheduler.submit_task(3),
        about="nothing",
    ),
    Case(
        "an argument that cannot be pickled",
        TaskSubmissionError,
        "argument 1 of len, a lock, cannot be pickled",
        "inside the function",
        submit=lambda scheduler: scheduler.submit_task(len, ("x", threading.Lock())),
        about="nothing",
    ),
    Case(
        "negative CPUs",
        ConfigurationError,
        r"resource_requirements\['CPU'\] is -1",
        "a number from 0 to 1e300",
        submit=lambda scheduler: scheduler.submit_task(len, ("abc",), resource_requirements={"CPU": -1}),
        about="nothing",
    ),
    Case(
        "more than any node can ever have",
        NoFeasibleClusterError,
        "1000 CPU",
        "request less",
        submit=lambda scheduler: scheduler.submit_task(len, ("abc",), resource_requirements={"CPU": 1000}),
        about="task",
    ),
    Case(
        "a job that no node can ever hold",
        NoFeasibleClusterError,
        "1000 GPU",
        "request less",
        submit=lambda scheduler: scheduler.submit_job_async("true", resource_requirements={"GPU": 1000}).result(),
        about="task",
    ),
    Case(
        "a cluster's name misspelt",
        ConfigurationError,
        "lunix",
        "linux",
        submit=lambda scheduler: scheduler.submit_task(len, ("abc",), preferred_cluster="lunix"),
        about="task",
    ),
    Case(
        "a score that nobody knows",
        ConfigurationError,
        "loud",
        "load",
        settings={"weights": {"loud": 1}},
        about="nothing",
    ),
    Case(
        "the dashboard is down",
        NoHealthyClusterError,
        "nobody listens|refused",
        "dashboard",
        cluster=lambda world: {"dashboard": f"http://127.0.0.1:{world.closed_port}"},
    ),
    Case(
        "the head is down, for a job",
        NoHealthyClusterError,
        "nobody listens|refused",
        "dashboard",
        submit=lambda scheduler: scheduler.submit_job_async("true").result(),
        cluster=lambda world: {"dashboard": f"http://127.0.0.1:{world.closed_port}"},
    ),
    Case(
        "only a head address, and no Ray here",
        NoHealthyClusterError,
        "has no ray",
        "connector_python",
        cluster=lambda world: {"dashboard": None, "head_address": f"127.0.0.1:{world.closed_port}"},
    ),
    Case(
        "a wrong token",
        NoHealthyClusterError,
        "token",
        "auth_token",
        cluster=lambda world: {"auth_token": "not-the-token", "auth_token_path": None},
    ),
    Case(
        "a port that speaks something else",
        NoHealthyClusterError,
        "not.*dashboard|speaks",
        "dashboard",
        cluster=lambda world: {"dashboard": f"http://127.0.0.1:{world.strange_port}"},
    ),
    Case(
        "a port that says nothing",
        NoHealthyClusterError,
        "did not answer|within",
        "dashboard",
        cluster=lambda world: {"dashboard": f"http://127.0.0.1:{world.silent_port}"},
    ),
    Case(
        "an interpreter without ray",
        NoHealthyClusterError,
        "cannot import ray|No module named",
        "key python",
        cluster=lambda world: {"python": sys.executable},
    ),
    Case(
        "an interpreter that is not there",
        NoHealthyClusterError,
        "/nowhere/python",
        "key python",
        cluster=lambda world: {"python": "/nowhere/python"},
    ),
    Case(
        "an agent that cannot dial back",
        NoHealthyClusterError,
        "cannot dial back",
        "agent_advertise",
        cluster=lambda world: {"carrier": "agent"},
        settings={"agent_advertise": "127.0.0.1:1"},
    ),
]


@pytest.fixture(scope="module")
def warm(fleet: LocalFleet) -> None:
    """Run one job first, because the first job of a cluster takes seconds."""
    with UnifiedScheduler(fleet.config_path) as scheduler:
        scheduler.submit_job_async("true", preferred_cluster="linux", fallback="wait").result(60)


@pytest.fixture
def world(fleet: LocalFleet, tmp_path: Path, warm: None) -> Iterator[World]:
    entry = next(
        entry for entry in yaml.safe_load(Path(fleet.config_path).read_text())["clusters"] if entry["name"] == "linux"
    )
    with closing(socket.socket()) as closed, _ssh_like() as strange, closing(socket.socket()) as silent:
        closed.bind(("127.0.0.1", 0))  # bound, so that nobody else gets it, and not listening
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        yield World(entry, tmp_path, closed.getsockname()[1], strange, silent.getsockname()[1])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_mistake_raises_an_error_with_the_next_step(
    case: Case, world: World, fleet: LocalFleet, leak_check: None
) -> None:
    entry = {key: value for key, value in {**world.entry, **case.cluster(world)}.items() if value is not None}
    config = world.folder / "clusters.yaml"
    settings = {"submission_interval_s": 0, "resource_threshold": 1, **case.settings}
    config.write_text(yaml.safe_dump({"settings": settings, "clusters": [entry]}))
    with UnifiedScheduler(config) as scheduler:
        began = time.monotonic()
        with pytest.raises(case.error, match=case.says) as caught:
            case.submit(scheduler)
        took = time.monotonic() - began
        error = caught.value
        assert case.next_step in str(error), str(error)
        if case.about == "cluster":
            assert "linux" in str(error)
        elif case.about == "task":
            assert error.task_id
            assert error.task_id in str(error)
        assert took < LIMIT_S, f"it took {took:.1f} s"
        with pytest.raises(ConfigurationError):
            scheduler.submit_task("the program can go on")
    _no_agent_left(fleet, scheduler._control_plane)


def test_the_program_continues_with_the_right_configuration(world: World, fleet: LocalFleet) -> None:
    wrong = world.folder / "wrong.yaml"
    wrong.write_text(yaml.safe_dump({"clusters": [{**world.entry, "auth_token": "x", "auth_token_path": None}]}))
    with UnifiedScheduler(wrong) as scheduler, pytest.raises(NoHealthyClusterError):
        scheduler.submit_task(len, ("abc",))
    with UnifiedScheduler(fleet.config_path) as scheduler:
        assert scheduler.submit_task(len, ("abc",)) == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        ("", "empty"),
        ("clusters:\n  - name: a\n    dashbord: http://127.0.0.1:1\n", "did you mean 'dashboard'"),
        ("clusters: [\n", "YAML"),
        ("clusters: 3\n", "clusters"),
    ],
    ids=["missing", "empty", "misspelt", "not yaml", "not a list"],
)
def test_a_wrong_file_raises_an_error_with_the_reason(
    tmp_path: Path, text: str | None, says: str, leak_check: None
) -> None:
    path = tmp_path / "clusters.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=f"(?i){says}") as caught:
        UnifiedScheduler(path)
    assert str(path) in str(caught.value)


def _no_agent_left(fleet: LocalFleet, control_plane: str) -> None:
    with UnifiedScheduler(fleet.config_path) as scheduler:
        runtime, _ = scheduler._started()
        deadline = time.monotonic() + 60
        while True:
            jobs = runtime.run(runtime.clients.client("linux").list_jobs())
            left = [
                job["submission_id"]
                for job in jobs
                if str(job["submission_id"]).startswith(f"rmcs-agent-{control_plane}")
                and job["status"] in ("PENDING", "RUNNING")
            ]
            if not left:
                return
            assert time.monotonic() < deadline, f"agents are left: {left}"
            time.sleep(0.2)


@contextmanager
def _ssh_like() -> Iterator[int]:
    """A port that answers like an SSH server."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()
