"""Every command with a real service behind it: what it prints as json and yaml is what the OpenAPI document says, data
is on stdout and words are on stderr, and there are no colours where nobody wants them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import jsonschema_rs
import pytest
import yaml

from ray_multicluster_scheduler.cli.layout import output
from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.main import main
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from tests.unit.cli.commands import all_commands
from tests.unit.cli.conftest import Done, Rmcs
from tests.unit.cli.openapi import schema_violations
from tests.unit.cli.test_job import Dashboard
from tests.unit.client_api.control_plane import until
from tests.unit.service.actor_service import an_actor
from tests.unit.service.http_service import HttpService, body

ROOT = Path(__file__).resolve().parents[3]


class Stage:
    """A service, and what a command may need of it; each time anew."""

    def __init__(self, service: HttpService, folder: Path) -> None:
        self.service, self.folder, self._made = service, folder, 0
        service.plane.runtime.clients = Dashboard()  # type: ignore[assignment]  # a fake

    def new(self, begins: str = "t") -> str:
        self._made += 1
        return f"{begins}-{self._made}"

    def running(self) -> str:
        return self._in_state("RUNNING", lambda one: self.service.submit(one, 0.01, owner="ann"))

    def waiting(self) -> str:
        self.running()
        return self._in_state("QUEUED", lambda one: self.service.submit(one, 8, owner="ann"))

    def failed(self) -> str:
        one = self.running()
        answer = {"failure": FailureClass.USER, "error_type": "ValueError", "message": "no", "traceback": "Traceback …"}
        self.service.plane.end(CallResult(one, 1, "failed", **answer))  # type: ignore[arg-type]  # its fields
        until(lambda: self._state(one) == "FAILED")
        return one

    def actor(self) -> str:
        return self._in_state("RUNNING", lambda one: self.service.post("/api/v1/items", body(an_actor(one))))

    def job(self) -> str:
        answer = {"kind": "job", "name": "nightly", "job": {"entrypoint": "python train.py"}}
        return self._in_state(
            "RUNNING", lambda one: self.service.post("/api/v1/items", {"task": {"id": one, **answer}})
        )

    def job_that_is_over(self) -> str:
        job = self.job()
        self.service.post(f"/api/v1/items/{job}/cancel", {})
        until(lambda: self._state(job) == "CANCELLED")
        return job

    def pool(self) -> str:
        name = self.new("pool")
        assert self.service.ask("PUT", f"/api/v1/pools/{name}", {"quota": {"CPU": 2}})[0] == 200
        return name

    def python_file(self) -> str:
        """A module that no other test has loaded, with a class to deploy."""
        return self.file("class Model:\n    def infer(self, page):\n        return page\n", f"model_{uuid4().hex}.py")

    def deployment(self) -> str:
        name = self.new("ocr")
        assert main(["serving", "deploy", f"{self.python_file()}:Model", "--name", name]) == 0
        return name

    def file(self, text: str, name: str = "clusters.yaml") -> str:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    def clusters(self) -> str:
        return self.file("clusters:\n  - {name: mac, dashboard: 'http://mac.invalid:8265'}\n")

    def recorded(self) -> str:
        path = self.folder / self.new("history")
        words = ["simulate", "--nodes", "a={CPU:4}", "--synthetic", "items=3 over=1min run=constant:9"]
        assert main([*words, "--record", str(path)]) == 0
        return str(path)

    def _in_state(self, state: str, submit: Callable[[str], object]) -> str:
        one = self.new()
        submit(one)
        until(lambda: self._state(one) == state)
        return one

    def _state(self, one: str) -> str:
        return str(self.service.get(f"/api/v1/items/{one}")["state"])


class Model(NamedTuple):
    """The answer of a route, or a part of it; with ``each``, every one of a list is such an answer."""

    path: str
    inside: tuple[str, ...] = ()
    method: str = "get"
    each: bool = False


class Case(NamedTuple):
    """``words`` follow the command. ``models`` are of the document, by the key under which they are printed ("": all of
    it); ``shape`` is for what is no answer of the service."""

    words: Callable[[Stage], list[str]]
    models: Mapping[str, Model] = {}
    shape: Mapping[str, Any] | None = None
    code: int = 0
    lines: bool = False


def nothing(_: Stage) -> list[str]:
    return []


def of(path: str, *inside: str, method: str = "get", each: bool = False) -> dict[str, Model]:
    return {"": Model(f"/api/v1/{path}", inside, method, each)}


def thing(**fields: str) -> dict[str, Any]:
    """An object with exactly these fields, each of one of these types."""
    properties = {name: {"type": kinds.split()} for name, kinds in fields.items()}
    return {"type": "object", "properties": properties, "required": list(fields), "additionalProperties": False}


ORDERS = {
    verb: Case(lambda stage: [stage.waiting()], of(f"items/{{item_id}}/{verb}", method="post", each=True))
    for verb in ("cancel", "hold", "release")
}
STEERING = {
    verb: Case(lambda _: ["mac"], of(f"clusters/{{name}}/{verb}", method="post"))
    for verb in ("cordon", "uncordon", "drain")
}
CASES: dict[str, Case] = {
    "status": Case(
        lambda stage: [stage.waiting()][1:],
        {"clusters": Model("/api/v1/clusters", ("clusters",)), "queue": Model("/api/v1/queue")},
        thing(
            address="string",
            version="string",
            user="string",
            not_ready="string null",
            clusters="array",
            queue="object",
        ),
    ),
    "job submit": Case(lambda _: ["--no-wait", "--", "true"], of("jobs/{job_id}")),
    "job status": Case(lambda stage: [stage.job()], of("jobs/{job_id}"), code=101),
    "job stop": Case(lambda stage: [stage.job()], of("jobs/{job_id}")),
    "job delete": Case(lambda stage: [stage.job_that_is_over()], of("items/{item_id}", method="delete")),
    "job list": Case(lambda stage: [stage.job()][1:], of("jobs", "jobs")),
    "task list": Case(lambda stage: [stage.failed()][1:], of("items", "items")),
    "task show": Case(lambda stage: [stage.failed()], of("items/{item_id}"), code=100),
    "task cancel": ORDERS["cancel"],
    "task hold": ORDERS["hold"],
    "task release": ORDERS["release"],
    "task priority": Case(
        lambda stage: [stage.waiting(), "3"], of("items/{item_id}/priority", method="post", each=True)
    ),
    "task retry": Case(lambda stage: [stage.failed()], of("items/{item_id}/retry", method="post", each=True)),
    "actor list": Case(lambda stage: [stage.actor()][1:], of("actors", "actors")),
    "actor kill": Case(lambda stage: [stage.actor()], of("items/{item_id}/cancel", method="post", each=True)),
    "queue": Case(lambda stage: [stage.waiting()][1:], of("queue")),
    "queue pause": Case(lambda _: ["--owner", "ann"], of("queue/{what}/{name}/pause", method="post")),
    "queue resume": Case(lambda _: ["--cluster", "mac"], of("queue/{what}/{name}/resume", method="post")),
    "clusters": Case(nothing, of("clusters", "clusters")),
    "clusters list": Case(nothing, of("clusters", "clusters")),
    "clusters show": Case(lambda _: ["mac"], of("clusters/{name}")),
    "clusters check": Case(lambda _: ["mac"], of("clusters/{name}/check", method="post")),
    "clusters cordon": STEERING["cordon"],
    "clusters uncordon": STEERING["uncordon"],
    "clusters drain": STEERING["drain"],
    "clusters declare-dead": Case(lambda _: ["mac", "--force"], of("clusters/{name}/declare-dead", method="post")),
    "clusters apply": Case(lambda stage: [stage.clusters(), "--dry-run"], of("clusters/apply", method="post")),
    "explain": Case(lambda stage: [stage.waiting()], of("items/{item_id}/explain")),
    "preempt": Case(lambda stage: [stage.waiting(), "--dry-run"], of("items/{item_id}/preemption")),
    "plan": Case(lambda _: ["--cpus", "1"], of("plan", method="post")),
    "events": Case(
        lambda stage: [stage.running()][1:],
        shape={"type": "object", "required": ["type", "number", "at"], "properties": {"at": {"type": "string"}}},
        lines=True,
    ),
    "doctor": Case(
        lambda stage: ["--config", stage.clusters()],
        shape={
            "type": "array",
            "items": thing(about="string", verdict="string", says="string", fix="string", code="string"),
        },
        code=100,
    ),
    "config check": Case(
        lambda stage: [stage.clusters()],
        shape=thing(source="string", clusters="array", pools="array", settings="array", warnings="array"),
    ),
    "config show": Case(nothing, of("settings")),
    "config log-level": Case(lambda _: ["info"], of("log-level", method="put")),
    "owner list": Case(lambda stage: [stage.running()][1:], of("owners", "owners")),
    "owner show": Case(lambda stage: [stage.running(), "ann"][1:], of("owners/{owner}")),
    "owner set": Case(lambda _: ["ann", "--max-running", "5"], of("owners/{owner}", method="put")),
    "pool list": Case(lambda stage: [stage.pool()][1:], of("pools", "pools")),
    "pool show": Case(lambda stage: [stage.pool()], of("pools/{name}")),
    "pool create": Case(lambda stage: [stage.new("p"), "--quota", "CPU=2"], of("pools/{name}", method="put")),
    "pool resize": Case(lambda stage: [stage.pool(), "--quota", "CPU=3"], of("pools/{name}", method="patch")),
    "pool relabel": Case(lambda stage: [stage.pool(), "team=nlp"], of("pools/{name}", method="patch")),
    "pool delete": Case(lambda stage: [stage.pool()], of("pools/{name}", method="delete")),
    "pool apply": Case(lambda stage: ["-f", stage.file("pools: [{name: a}]\n")], of("pools", method="put")),
    "token create": Case(lambda _: ["bob", "--role", "viewer"], of("tokens", method="post")),
    "token list": Case(nothing, of("tokens", "tokens")),
    "token revoke": Case(
        lambda stage: [stage.service.post("/api/v1/tokens", {"user": "bob", "roles": ["viewer"]})["id"]],
        of("tokens/{token_id}", method="delete"),
    ),
    "serving deploy": Case(
        lambda stage: [f"{stage.python_file()}:Model", "--name", stage.new("ocr"), "--cpus", "0.5"],
        of("serving/deployments", method="post"),
    ),
    "serving list": Case(lambda stage: [stage.deployment()][1:], of("serving/deployments", "deployments")),
    "serving status": Case(lambda stage: [stage.deployment()], of("serving/deployments/{name}")),
    "serving scale": Case(lambda stage: [stage.deployment(), "2"], of("serving/deployments/{name}", method="patch")),
    "serving delete": Case(lambda stage: [stage.deployment()], of("serving/deployments/{name}", method="delete")),
    "debug-dump": Case(
        lambda stage: [str(stage.folder / stage.new("dump"))],
        shape=thing(file="string", bytes="integer", parts="array", left_out="object"),
    ),
    "trace": Case(
        lambda stage: [str(stage.folder / "trace.csv"), "--force"], shape=thing(file="string", items="integer")
    ),
    "simulate": Case(
        lambda _: ["--nodes", "a={CPU:4}", "--synthetic", "items=3 over=1min run=constant:9"],
        of("simulate", method="post"),
    ),
    "replay": Case(
        lambda stage: ["--quiet", stage.recorded()],
        shape=thing(events="integer", differs_at="integer null", violations="array", error="string null"),
    ),
    "version": Case(nothing, shape=thing(version="string")),
}
TEXTS = {"task logs": "what a task printed", "job logs": "what a job printed"}
"""What others wrote: it is printed as it is, and there is no -o."""
ELSEWHERE = {
    "up": "tests/unit/service/test_up.py::test_up_and_down_and_up_again",
    "down": "tests/unit/service/test_up.py::test_down_reports_what_it_has_stopped_to_programs",
    "top": "tests/unit/cli/test_top_in_a_terminal.py::TestInATerminal",
    "serving up": "tests/unit/cli/test_serving.py::test_up_serves_until_it_is_stopped",
    "fleet up": "tests/unit/local_fleet/test_background.py::test_json_output",
    "fleet down": "tests/unit/local_fleet/test_background.py::test_json_output",
    "fleet status": "tests/unit/local_fleet/test_background.py::test_json_output",
    "demo": "tests/integration/test_cli_on_a_fleet.py::test_the_demo_runs_to_the_end",
}
"""What has no service behind it, or is one, or needs a terminal or Ray: which test runs it."""
WITHOUT_OUTPUT = {*TEXTS, "up", "serving up", "top", "demo"}


def test_every_command_has_its_test() -> None:
    """Each needs a case above."""
    assert sorted(all_commands()) == sorted([*CASES, *TEXTS, *ELSEWHERE])


@pytest.mark.parametrize("where", sorted(set(ELSEWHERE.values())))
def test_those_elsewhere_are_there(where: str) -> None:
    file, _, name = where.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {one.name for one in ast.walk(tree) if isinstance(one, (ast.FunctionDef, ast.ClassDef))}


def test_all_but_texts_and_screens_have_output() -> None:
    """Each of the three formats, for every command whose answer is data."""
    having = {
        words for words, command in all_commands().items() if any("--output" in one.opts for one in command.params)
    }
    assert set(all_commands()) - having == WITHOUT_OUTPUT


@pytest.fixture
def stage(service: HttpService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("RMCS_HOME", str(home))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)
    return Stage(service, tmp_path)


@pytest.fixture
def on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rmcs:
    """stdout and stderr are terminals."""
    monkeypatch.setattr(output, "is_interactive", lambda _: True)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*typed: str) -> Done:
        capsys.readouterr()
        return Done(main(list(typed)), *capsys.readouterr())

    return run


@pytest.mark.parametrize("command", CASES)
class TestEach:
    def test_for_programs(self, stage: Stage, rmcs: Rmcs, command: str) -> None:
        case = CASES[command]
        for form in ("json", "yaml"):
            done = rmcs(*command.split(), "-o", form, *case.words(stage))
            assert done.code == case.code, done.err
            for reported in read(done.out, form, lines=case.lines):
                assert reported, "nothing is nothing to look at"
                assert found_wrong(stage.service, case, reported) == []
            assert not [line for line in done.err.splitlines() if not line.startswith("rmcs: ")]

    def test_for_people(self, stage: Stage, rmcs: Rmcs, command: str) -> None:
        """The fixture looks for control characters."""
        case = CASES[command]
        done = rmcs(*command.split(), *case.words(stage))
        assert done.code == case.code, done.err
        assert not [line for line in done.out.splitlines() if line.startswith("rmcs: ")], "a message among the data"
        assert not [line for line in done.err.splitlines() if not line.startswith("rmcs: ")], "data among the messages"

    def test_without_colours(
        self, stage: Stage, on_a_terminal: Rmcs, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        monkeypatch.setenv("NO_COLOR", "1")
        case = CASES[command]
        done = on_a_terminal(*command.split(), *case.words(stage))
        assert done.code == case.code, done.err
        assert "\x1b" not in done.out
        assert not re.search(r"\x1b\[[0-9;]*m", done.err), "a wait may move the cursor, and no more"


@pytest.mark.parametrize("command", ["status", "task list", "queue", "clusters show", "doctor", "owner list"])
def test_with_colours(stage: Stage, on_a_terminal: Rmcs, command: str) -> None:
    """Else nobody would see that NO_COLOR does something."""
    assert "\x1b[" in on_a_terminal(*command.split(), *CASES[command].words(stage)).out


def test_styles_on_stderr_are_seen(stage: Stage, on_a_terminal: Rmcs) -> None:
    """Else nobody would see that there are none with NO_COLOR: here a spinner turns."""
    stage.running()
    done = on_a_terminal("clusters", "drain", "mac", "--timeout", "0.1")
    assert "\x1b[" in done.err
    assert "\x1b[" not in done.out


@pytest.mark.parametrize("kind", ["task", "job"])
def test_texts(stage: Stage, rmcs: Rmcs, kind: str) -> None:
    one = stage.running() if kind == "task" else stage.job()
    if kind == "task":
        runtime = stage.service.plane.runtime
        runtime.call_and_wait(lambda: runtime.collector.output("mac", one, 1, "stdout", "a line\n"))
    done = rmcs(kind, "logs", one)
    assert done == (0, "a line\n", "")


def read(text: str, form: str, *, lines: bool) -> list[Any]:
    if form == "json":
        return [json.loads(line) for line in text.splitlines()] if lines else [json.loads(text)]
    return list(yaml.safe_load_all(text))


def found_wrong(service: HttpService, case: Case, reported: Any) -> list[str]:
    wrong: list[str] = []
    if case.shape is not None:
        bad = jsonschema_rs.Draft202012Validator(dict(case.shape)).iter_errors(reported)
        wrong = [f"{one.instance_path}: {one.message}" for one in bad]
    for key, model in case.models.items():
        part = reported[key] if key else reported
        for one in part if model.each else [part]:
            wrong += schema_violations(service, model.path, one, *model.inside, method=model.method)
    return wrong
