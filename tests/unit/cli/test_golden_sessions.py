"""Sessions of several commands: requests, the configuration, and misspelt words."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from ray_multicluster_scheduler import __version__
from ray_multicluster_scheduler.cli.commands.simulate import lines_of, metrics_table, summary
from ray_multicluster_scheduler.cli.layout.lines import FoldedText, fold_text
from ray_multicluster_scheduler.cli.layout.output import Format, as_text
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.config import load_config
from ray_multicluster_scheduler.scheduler.lifecycle.events import DispatchAccepted, Started
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Persist, Transition
from ray_multicluster_scheduler.simulation import Comparison, Synthetic, load_fleet, simulate
from ray_multicluster_scheduler.simulation.checker.property import Violation
from ray_multicluster_scheduler.simulation.history import EventHandled, InstructionIssued
from ray_multicluster_scheduler.simulation.replay import Replayed
from tests.unit.cli.conftest import Rmcs
from tests.unit.cli.golden import USUAL, Picture, check, compare, frames, rendered
from tests.unit.cli.test_every_command import Stage
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService

_MADE = re.compile(r"\b([a-z]+)-[0-9a-f]{32}\b")
_AGO = re.compile(r"\banswered \d+ s ago")
NODES = {"linux": "2x{CPU:8}", "mac": "{CPU:4}"}


def simulated() -> Comparison:
    """One item after the other, so that nothing but its length decides how long each takes."""
    fleet = load_fleet(
        load_config([{"name": name, "dashboard": "http://simulated.invalid:8265"} for name in NODES]), None, NODES
    )
    workload = Synthetic.parse("items=3 over=1h run=constant:90 owners=ann,bob").generate(0, fleet)
    return Comparison({"": simulate(fleet, workload, seed=0)})


def replayed() -> str:
    def step(number: int, state: TaskState, code: str, sentence: str) -> InstructionIssued:
        return InstructionIssued(
            110.4 + number, Persist(Transition("t0", number, state, 1, 110.4 + number, code, sentence, "linux"))
        )

    history = [
        step(3, TaskState.DISPATCHING, "PLACED", "linux: load score 16.0"),
        EventHandled(113.5, DispatchAccepted("t0", 1)),
        EventHandled(113.6, Started("t0", 1, 113.55, "linux-n1")),
        step(4, TaskState.RUNNING, "STARTED", "started on linux"),
    ]
    broken = Violation("settles", 3, 114.4, "t0 was accepted, and never ended")
    done = Replayed(history, differs_at=3)
    return "\n".join([*lines_of(done, everything=False), str(broken), summary(done, 2, 1)])


SETTINGS = {
    "settings": {"resource_threshold": {"cpu": 0.7, "gpu": 0.7}, "ageing_s": 3600.0, "weights": {"load": 1.0}},
    "source": "/home/ann/clusters.yaml",
    "clusters": [{"name": "mac", "dashboard": "http://192.168.5.2:8265", "tags": ["macos"], "auth": "token"}],
}
PICTURES = {
    "config-show": Picture(lambda: as_text(SETTINGS, Format.yaml), ("config show",)),
    "simulate": Picture(lambda: metrics_table(simulated(), several=False), ("simulate",)),
    "replay": Picture(lambda: FoldedText(replayed()), ("replay",)),
}
SESSIONS = {
    "orders": (
        "task hold", "task release", "task priority", "task cancel", "task retry", "actor kill", "queue pause",
        "queue resume", "job stop", "job delete",
    ),
    "steering": (
        "clusters cordon", "clusters drain", "clusters uncordon", "clusters declare-dead", "config log-level",
        "token revoke", "version",
    ),
    "config-check": ("config check",),
    "errors": (),
    "errors-of-a-service": (),
}  # fmt: skip
"""Pictures of several commands, and which ones are seen in them."""


@pytest.mark.parametrize(("name", "width"), frames(PICTURES))
def test_output_equals_the_golden_file(name: str, width: int, request: pytest.FixtureRequest) -> None:
    check(PICTURES, name, width, request)


class Session:
    """Commands that are typed, and what each says: words first, then what it was asked for. Sentences are fold_text
    before a person."""

    def __init__(self, rmcs: Rmcs, others: Sequence[tuple[str, str]] = ()) -> None:
        here = (str(Path.cwd()), "/home/ann")
        self._rmcs, self._others = rmcs, (*others, here)
        self._lines: list[str] = []

    def type(self, *words: str, code: int = 0) -> str:
        done = self._rmcs(*words)
        assert done.code == code, done.err
        self._lines += [f"$ rmcs {' '.join(words)}", *done.err.splitlines(), *done.out.splitlines()]
        self._lines += [f"[exit code {code}]", ""] if code else [""]
        return done.out.strip()

    def compare(self, name: str, request: pytest.FixtureRequest) -> None:
        text = "\n".join(fold_text(self._shown(line), USUAL) for line in self._lines)
        compare(name, rendered(text.rstrip(), USUAL), request)

    def _shown(self, line: str) -> str:
        text = _MADE.sub(lambda found: f"{found[1]}-{'0123456789abcdef' * 2}", line)
        for real, shown in self._others:
            text = text.replace(real, shown)
        return _AGO.sub("answered 1 s ago", text)


@pytest.fixture
def stage(service: HttpService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("RMCS_HOME", str(home))
    monkeypatch.setenv("COLUMNS", str(USUAL))
    monkeypatch.chdir(tmp_path)
    return Stage(service, tmp_path)


def test_orders(stage: Stage, rmcs: Rmcs, request: pytest.FixtureRequest) -> None:
    failed, waiting, actor = stage.failed(), stage.waiting(), stage.actor()
    over = stage.job_that_is_over()
    session = Session(rmcs)
    session.type("task", "hold", waiting, "--reason", "until Monday")
    session.type("task", "release", waiting)
    session.type("task", "priority", waiting, "5")
    session.type("task", "cancel", waiting, failed)
    session.type("task", "retry", failed)
    session.type("actor", "kill", actor)
    session.type("queue", "pause", "--owner", "ann")
    session.type("queue", "resume", "--owner", "ann")
    session.type("job", "stop", over)
    session.type("job", "delete", over)
    session.compare("orders", request)


def test_steering(stage: Stage, rmcs: Rmcs, request: pytest.FixtureRequest) -> None:
    one = stage.running()
    token = stage.service.post("/api/v1/tokens", {"user": "bob", "roles": ["viewer"]})["id"]
    session = Session(rmcs, [(token, "k3v9x2qa"), (__version__, "0.1.0")])
    session.type("clusters", "cordon", "mac")
    session.type("clusters", "uncordon", "mac")
    session.type("clusters", "uncordon", "mac")
    stage.service.post(f"/api/v1/items/{one}/cancel", {})
    until(lambda: stage.service.get("/api/v1/clusters")["clusters"][0]["items"] == 0)
    session.type("clusters", "drain", "mac")
    session.type("clusters", "declare-dead", "mac", code=1)
    session.type("clusters", "declare-dead", "mac", "--force")
    session.type("token", "revoke", token)
    session.type("config", "log-level", "debug")
    session.type("version")
    session.compare("steering", request)


def test_the_configuration_is_checked(stage: Stage, rmcs: Rmcs, request: pytest.FixtureRequest) -> None:
    stage.file("clusters:\n  - {name: mac, dashboard: 'http://mac.invalid:8265'}\n")
    stage.file("settings: {ageing: 60}\nclusters:\n  - {name: mac, dashbord: 'http://mac.invalid:8265'}\n", "typo.yaml")
    stage.file(
        "clusters:\n" + "".join(f"  - {{name: {one}, dashboard: 'http://mac:8265'}}\n" for one in "ab"), "2.yaml"
    )
    session = Session(rmcs)
    session.type("config", "check", "clusters.yaml")
    session.type("config", "check", "typo.yaml", code=2)
    session.type("config", "check", "2.yaml")
    session.compare("config-check", request)


def test_misspelt_commands(
    stage: Stage, rmcs: Rmcs, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RMCS_ADDRESS", "RMCS_TOKEN"):
        monkeypatch.delenv(name)
    with socket.socket() as unavailable:
        unavailable.bind(("127.0.0.1", 0))  # and it does not listen
        address = f"http://127.0.0.1:{unavailable.getsockname()[1]}"
        session = Session(rmcs, [(address, "http://127.0.0.1:8000")])
        session.type("tsak", "list", code=2)
        session.type("logs", "task-9f3c", code=2)
        session.type("fleet", "list", code=2)
        session.type("task", "list", "--stat", "RUNNING", code=2)
        session.type("task", "list", "-o", "jsn", code=2)
        session.type("plan", "--cpus", "many", code=2)
        session.type("explain", "NO_CAPACTY", code=102)
        session.type("status", code=2)
        session.type("status", "--address", address, code=1)
    session.compare("errors", request)


def test_what_a_service_does_not_know(stage: Stage, rmcs: Rmcs, request: pytest.FixtureRequest) -> None:
    stage.running()
    session = Session(rmcs, [(stage.service.address, "http://127.0.0.1:8000")])
    session.type("clusters", "check", "mca", code=102)
    session.type("task", "list", "--cluster", "mca")
    session.type("task", "list", "--state", "RUNING", code=2)
    session.type("task", "list", "--kind", "tsk", code=2)
    session.type("events", "--types", "transitions", code=2)
    session.type("task", "show", "task-9f3c", code=102)
    session.type("token", "create", "ann", "--role", "root", code=2)
    session.type("owner", "show", "otto", code=102)
    session.compare("errors-of-a-service", request)
