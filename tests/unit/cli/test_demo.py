"""The demo succeeds only if all of it happened: a stand-in for the scheduler tells it otherwise, point by point."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import ray_multicluster_scheduler
from ray_multicluster_scheduler.cli.commands import demo
from ray_multicluster_scheduler.cli.commands.demo import Tour
from ray_multicluster_scheduler.common.exception import ClusterConnectionError, RemoteTraceback
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.serving import SchedulerRequest, SchedulerResponse


@dataclass
class FakeHandle:
    """A task that ran at once, here."""

    cluster: str
    value: Any = None
    error: Exception | None = None

    def result(self, timeout: float) -> Any:
        if self.error is not None:
            raise self.error
        return self.value

    def explain(self) -> dict[str, Any]:
        return {"cluster": self.cluster, "state": "SUCCEEDED", "attempt": 1, "sentence": "", "decision": DECISION}


class FakeActor:
    """Counts here, unless its first calls get lost."""

    def __init__(self, tally: Any, cluster: str, lost: int) -> None:
        self._tally, self.cluster, self._lost = tally, cluster, lost
        self.state = TaskState.RUNNING
        self.add = self

    def remote(self, number: int) -> FakeHandle:
        if number <= self._lost:
            return FakeHandle(self.cluster, 0)
        return FakeHandle(self.cluster, self._tally.add(number))

    def explain(self) -> dict[str, Any]:
        return {**FakeHandle(self.cluster).explain(), "state": str(self.state)}


DECISION = {"sentence": "it had the most room"}


class FakeDeployment:
    """Three instances, which serve ``shares`` of the requests; it is its own scheduler."""

    def __init__(self, shares: Sequence[int]) -> None:
        self.scheduler = self
        self._served = [str(number) for number, share in enumerate(shares) for _ in range(share)]

    def status(self) -> dict[str, Any]:
        clusters = ("linux", "linux", "mac")
        rows = [{"instance": str(number), "cluster": cluster} for number, cluster in enumerate(clusters)]
        return {"running": 3, "instances": rows}

    def schedule(self, request: SchedulerRequest) -> SchedulerResponse:
        return SchedulerResponse(task_id=str(request.input_data))

    def wait(self, task_id: str, timeout: float) -> str:
        return f"text of page {task_id}"

    def explain(self, task_id: str) -> dict[str, Any]:
        return {"instance": self._served[int(task_id)], "reason": "it is fast"}

    def delete(self) -> None: ...


@dataclass
class FakeApi:
    """The public API as the story uses it. Each field is something that can go wrong."""

    names: Sequence[str] = ("linux", "mac")
    ignore_tags: bool = False
    off_by: int = 0
    job_status: str = "SUCCEEDED"
    job_log: str = f"{demo.JOB_GREETING} mac\n"
    notes: bool = True
    cause: bool = True
    task_error: type[Exception] | None = None
    lost_calls: int = 0
    shares: Sequence[int] = (95, 95, 10)
    killed: bool = False
    is_up: bool = False
    RemoteTraceback: type[Exception] = RemoteTraceback
    _turn: itertools.count[int] = field(default_factory=itertools.count)

    def initialize_scheduler_environment(self, config: Path) -> None:
        self.is_up = True

    def submit_actor(self, cls: type, *, name: str, ready_timeout: float) -> FakeActor:
        return FakeActor(cls(), self.names[0], self.lost_calls)

    def kill(self, actor: FakeActor) -> None:
        self.killed = True
        actor.state = TaskState.CANCELLED

    def shutdown(self) -> None:
        self.is_up = False

    def deploy(self, cls: type, args: tuple[Any, ...], **options: object) -> FakeDeployment:
        assert options["replicas"] == 3
        return FakeDeployment(self.shares)

    def submit_task_async(
        self, function: Callable[..., Any], args: tuple[Any, ...] = (), *, name: str, require_tags: Sequence[str] = ()
    ) -> FakeHandle:
        cluster = self.names[next(self._turn) % len(self.names)]
        if require_tags:
            cluster = "linux" if self.ignore_tags else demo.TAGS[require_tags[0]]
            error = ClusterConnectionError("mac does not answer.") if self.task_error else None
            return FakeHandle(cluster, {"cluster": cluster, "host": "h", "pid": 1}, error)
        if name.startswith("square"):
            return FakeHandle(cluster, args[0] ** 2 + self.off_by)
        try:
            return FakeHandle(cluster, function(*args))
        except ValueError as error:
            if self.notes:
                error.add_note(f"It ran on cluster {cluster}.")
            if self.cause:
                error.__cause__ = RemoteTraceback("over there")
            return FakeHandle(cluster, error=error)

    def get(self, handles: list[FakeHandle], timeout: float) -> list[Any]:
        return [handle.result(timeout) for handle in handles]

    def submit_job(self, entrypoint: str) -> str:
        return "job-1"

    def wait_for_all_jobs(self, ids: list[str], **options: float) -> None:
        assert ids == ["job-1"]

    def get_job_status(self, job_id: str) -> str:
        return self.job_status

    def get_job_logs(self, job_id: str) -> str:
        return self.job_log

    def explain(self, job_id: str) -> dict[str, Any]:
        return FakeHandle("mac").explain()


def run_tour(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], str]:
    monkeypatch.setattr(demo, "rmcs", api)
    screen = Console(file=io.StringIO(), width=200, force_terminal=False)
    tour = Tour(screen, Path("clusters.yaml"))
    problems = tour.run()
    tour.print_table()
    assert not api.is_up, "the scheduler was left running"
    return problems, screen.file.getvalue()  # it is the StringIO of above


def test_successful_run(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi()
    problems, text = run_tour(api, monkeypatch)
    assert problems == []
    assert api.killed
    assert "10 on linux, 10 on mac" in text
    assert "over there" in text
    table = text.partition("WHY THERE")[2].strip().splitlines()
    assert len(table) == 25
    assert "its total is 5050" in text
    assert re.search(r"mac +100 ms +10 +it is fast", text)
    assert all("it had the most room" in row for row in table)
    assert "RUNNING" not in text, "nothing runs any more when the table is shown"
    assert any(row.startswith("actor tally (killed)") and "CANCELLED" in row for row in table)


@pytest.mark.parametrize(
    ("api", "problem"),
    [
        (FakeApi(ignore_tags=True), "a task for arm64 reports 'linux'"),
        (FakeApi(off_by=1), "wrong results"),
        (FakeApi(names=["mac"]), "did not spread"),
        (FakeApi(lost_calls=1), "the actor counted"),
        (FakeApi(job_status="FAILED"), "job-1 ended FAILED"),
        (FakeApi(job_log="nothing"), "lacks its line"),
        (FakeApi(notes=False), "does not name the cluster"),
        (FakeApi(cause=False), "without its remote traceback"),
        (FakeApi(shares=(60, 60, 80)), "the slow instance got 80 of 200"),
        (FakeApi(task_error=ClusterConnectionError), "mac does not answer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_missing_result_is_reported(api: FakeApi, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problems, _ = run_tour(api, monkeypatch)
    assert len(problems) == 1
    assert problem in problems[0]


def test_an_interrupt_shuts_the_scheduler_down(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi()
    monkeypatch.setattr(api, "get", lambda handles, timeout: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run_tour(api, monkeypatch)
    assert not api.is_up


@pytest.mark.parametrize(("problems", "code"), [([], 0), (["step 2: wrong results"], 100)])
def test_exit_code_of_the_demo(
    problems: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ray_multicluster_scheduler.main import main

    class NoFleet:
        config_path = Path("clusters.yaml")

        def __init__(self, *clusters: object, **options: object) -> None: ...
        def __enter__(self) -> NoFleet:
            return self

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(ray_multicluster_scheduler, "LocalFleet", NoFleet)
    monkeypatch.setattr(Tour, "run", lambda self: problems)
    assert main(["demo"]) == code
    captured = capsys.readouterr()
    assert ("All steps had" in captured.out) == (code == 0)
    assert all(problem in captured.err for problem in problems)


def test_the_last_line_calls_it_as_this_shell_can(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert demo._rmcs() == "rmcs", "there is none beside it either"
    python.with_name("rmcs").touch(mode=0o755)
    assert demo._rmcs() == ".venv/bin/rmcs", "as make demo calls it"
    monkeypatch.chdir("/")
    assert demo._rmcs() == str(python.with_name("rmcs")).removeprefix("/")
    monkeypatch.setenv("PATH", str(python.parent))
    assert demo._rmcs() == "rmcs"


def test_the_stand_in_has_only_what_the_real_api_has() -> None:
    public = {name for name in vars(FakeApi) if not name.startswith("_")} - set(FakeApi.__dataclass_fields__)
    assert public <= set(ray_multicluster_scheduler.__all__)
