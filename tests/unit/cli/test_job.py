"""`rmcs job`: the commands and flags of `ray job`, with a service behind them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from ray_multicluster_scheduler.cli.arguments import options
from ray_multicluster_scheduler.cli.commands import job as job_command
from ray_multicluster_scheduler.cli.service.client import Service, connect
from ray_multicluster_scheduler.cli.service.item_wait import interruptible
from ray_multicluster_scheduler.common.exception import ResultLostError, ServiceUnavailableError, TaskSubmissionError
from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.scheduler_core.attempt_preparation import PreparedAttempt
from tests.unit.cli.commands import all_commands
from tests.unit.cli.conftest import Rmcs
from tests.unit.cli.openapi import schema_violations
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService

RAYS = {
    "submit": "address job-id submission-id runtime-env runtime-env-json working-dir metadata-json entrypoint-num-cpus "
    "entrypoint-num-gpus entrypoint-memory entrypoint-resources entrypoint-label-selector no-wait verify headers "
    "log-style log-color verbose",
    "status": "address verify headers log-style log-color verbose",
    "logs": "address follow verify headers log-style log-color verbose",
    "stop": "address no-wait verify headers log-style log-color verbose",
    "list": "address verify headers log-style log-color verbose",
    "delete": "address verify headers log-style log-color verbose",
}
"""Options of `ray job` in Ray 2.60."""
SILENT = DashboardProblem("mac does not answer.", code="DASHBOARD_DOWN", cluster="mac")


class Dashboard:
    """Of a cluster that has printed one line for each job, and knows nothing of these attempts."""

    def __init__(self, *unknown: str) -> None:
        self.unknown = unknown
        self.followed = threading.Event()

    def client(self, _: str) -> Dashboard:
        return self

    async def job_logs(self, submission_id: str) -> str:
        if submission_id.endswith(self.unknown):
            raise TaskSubmissionError(f"Cluster mac knows no job {submission_id}.")
        return "a line\n"

    async def job_info(self, submission_id: str) -> dict[str, Any] | None:
        return {"status": "RUNNING"}

    async def tail_job_logs(self, submission_id: str) -> AsyncIterator[str]:
        yield "a line\n"
        self.followed.set()

    async def close(self) -> None: ...


@pytest.fixture
def service(service: HttpService) -> HttpService:
    service.plane.runtime.clients = Dashboard()  # type: ignore[assignment]  # a fake
    return service


def state(service: HttpService, job_id: str) -> str:
    return str(service.get(f"/api/v1/items/{job_id}")["state"])


def running(service: HttpService, job_id: str) -> str:
    service.post("/api/v1/items", {"task": {"id": job_id, "kind": "job", "name": "j", "job": {"entrypoint": "true"}}})
    until(lambda: state(service, job_id) == "RUNNING")
    return job_id


def end(service: HttpService, job_id: str, how: str = "succeeded") -> None:
    failed: dict[str, Any] = {"failure": FailureClass.USER, "sentence": "it broke"} if how == "failed" else {}
    service.plane.post(events.AttemptFinished(job_id, 1, how, **failed))  # type: ignore[arg-type]  # one of its words
    until(lambda: state(service, job_id) in ("SUCCEEDED", "FAILED", "CANCELLED"))


def end_when_it_runs(service: HttpService, job_id: str, how: str = "succeeded") -> threading.Thread:
    def work() -> None:
        until(lambda: service.ask("GET", f"/api/v1/items/{job_id}")[1].get("state") == "RUNNING")
        end(service, job_id, how)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def end_when_it_is_followed(service: HttpService, job_id: str) -> threading.Thread:
    """The line that it printed was received."""
    dashboard: Dashboard = service.plane.runtime.clients  # type: ignore[assignment]  # the fake of the fixture

    def work() -> None:
        dashboard.followed.wait(60)  # else the test says what is missing; it must not wait for ever
        end(service, job_id)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("command", RAYS)
def test_it_has_every_flag_of_ray_job(command: str) -> None:
    known = {name for one in all_commands()[f"job {command}"].params for name in one.opts}
    assert {f"--{name}" for name in RAYS[command].split()} <= known


class TestSubmit:
    def test_a_service_that_is_away_when_the_end_is_known(
        self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        get, away = Service.get, 1

        def asked(self: Service, path: str, **query: object) -> Any:
            nonlocal away
            if path.endswith("/jobs/j1") and away:
                away -= 1
                raise ServiceUnavailableError("The service does not answer.")
            return get(self, path, **query)

        monkeypatch.setattr(Service, "get", asked)
        ending = end_when_it_runs(service, "j1")
        done = rmcs("job", "submit", "--submission-id", "j1", "--", "true")
        ending.join()
        assert (done.code, away) == (0, 0), done.err
        assert "rmcs: j1 succeeded" in done.err

    def test_words_and_exit_code_are_of_one_moment(
        self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It ends just when nobody waits for it any longer."""
        get = Service.get

        def asked(self: Service, path: str, **query: object) -> Any:
            if path.endswith("/jobs/j1"):
                until(lambda: state(service, "j1") == "RUNNING")
                end(service, "j1")
            return get(self, path, **query)

        monkeypatch.setattr(Service, "get", asked)
        done = rmcs("job", "submit", "--timeout", "0", "--submission-id", "j1", "--", "true")
        assert "rmcs: j1 succeeded" in done.err
        assert done.code == 0

    @pytest.mark.parametrize("form", ["json", "table"])
    def test_a_failing_hint_does_not_change_the_exit_code(
        self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, form: str
    ) -> None:
        get = Service.get

        def asked(self: Service, path: str, **query: object) -> Any:
            if path.endswith("/explain") and state(service, "j1") == "SUCCEEDED":
                raise ServiceUnavailableError("The service does not answer.")
            return get(self, path, **query)

        monkeypatch.setattr(Service, "get", asked)
        ending = end_when_it_runs(service, "j1")
        done = rmcs("job", "submit", "--submission-id", "j1", "-o", form, "--", "true")
        ending.join()
        assert done.code == 0, done.err
        assert form == "table" or json.loads(done.out)["status"] == "SUCCEEDED"

    @pytest.mark.parametrize(("how", "code", "output"), [("succeeded", 0, "succeeded"), ("failed", 100, "failed")])
    def test_its_output_and_its_end(self, service: HttpService, rmcs: Rmcs, how: str, code: int, output: str) -> None:
        ending = end_when_it_runs(service, "j1", how)
        done = rmcs("job", "submit", "--submission-id", "j1", "--", "python", "my script.py", "--arg=1")
        ending.join()
        assert (done.code, done.out) == (code, "a line\n")
        assert f"j1 {output}" in done.err
        assert service.get("/api/v1/jobs/j1")["entrypoint"] == "python 'my script.py' --arg=1"

    def test_one_that_can_never_run_is_not_called_accepted(self, service: HttpService, rmcs: Rmcs) -> None:
        done = rmcs("job", "submit", "--no-wait", "--preferred-cluster", "macc", "--", "true")
        assert done.code == 100
        assert f"{done.out.strip()} failed: " in done.err
        assert "There is no cluster 'macc'" in done.err
        assert "did you mean 'mac'?" in done.err
        assert "accepted" not in done.err

    @pytest.mark.parametrize("words", [[], ["--no-wait"]])
    def test_a_job_that_can_never_run_prints_the_reason(
        self, service: HttpService, rmcs: Rmcs, words: list[str]
    ) -> None:
        ask = ["--submission-id", "j1", "--entrypoint-num-gpus", "1000", *words, "--", "echo", "hi"]
        done = rmcs("job", "submit", *ask)
        assert done.code == 100
        assert "rmcs: j1 failed: No cluster can ever run job j1 (echo hi):\n  mac: " in done.err
        assert "\nrmcs: what to do: request less, " in done.err
        assert "it never started, more: `rmcs explain j1`" in done.err
        again = rmcs("job", "status", "j1")
        assert again.code == 100
        assert "Status message: No cluster can ever run job j1 (echo hi):\n  mac: " in again.out
        assert "`rmcs explain j1`" in again.err
        assert "job logs" not in done.err + again.err, "it has printed nothing"

    def test_logs_are_not_announced_where_none_follow(self) -> None:
        output = "Job entrypoint command failed with exit code 3, last available logs (truncated to 20,000 chars):\n"
        info = {"job_id": "j1", "status": "FAILED", "attempt": 1, "message": output}
        assert job_command.end_summary(info) == "j1 failed: Job entrypoint command failed with exit code 3"
        assert job_command.status_text("j1", info, str).endswith("failed with exit code 3")
        assert "chars):\nboom" in job_command.status_text("j1", {**info, "message": f"{output}boom"}, str)

    def test_converted_paths_are_printed(self, service: HttpService, rmcs: Rmcs) -> None:
        """Else nobody understands why it does not find its file."""
        paths = [("/home/ann/train.py", "/Users/ann/train.py"), ("/home/ann/data", "/Users/ann/data")]
        made = PreparedAttempt("mac", 1, {}, "python /Users/ann/train.py /Users/ann/data", paths)
        service.plane.runtime.preparation.prepared["j1"] = made
        ending = end_when_it_runs(service, "j1", "failed")
        done = rmcs("job", "submit", "--submission-id", "j1", "--", "python", "/home/ann/train.py", "/home/ann/data")
        ending.join()
        assert done.code == 100
        where = service.get("/api/v1/items/j1")["cluster"]
        reported = "/home/ann/train.py became /Users/ann/train.py, /home/ann/data became /Users/ann/data"
        assert f"for the home directory of {where}, {reported}\n" in done.err

    def test_no_wait_prints_the_id_alone(self, service: HttpService, rmcs: Rmcs) -> None:
        done = rmcs("job", "submit", "--no-wait", "python", "x.py", "--flag")
        assert done.code == 0
        info = service.get(f"/api/v1/jobs/{done.out.strip()}")
        assert info["entrypoint"] == "python x.py --flag"
        reported = json.loads(rmcs("job", "submit", "--no-wait", "-o", "json", "--", "true").out)
        assert schema_violations(service, "/api/v1/jobs/{job_id}", reported) == []

    def test_as_json_stdout_has_only_the_end(self, service: HttpService, rmcs: Rmcs) -> None:
        ending = end_when_it_runs(service, "j1")
        done = rmcs("job", "submit", "--submission-id", "j1", "-o", "json", "true")
        ending.join()
        reported = json.loads(done.out)
        assert schema_violations(service, "/api/v1/jobs/{job_id}", reported) == []
        assert reported["status"] == "SUCCEEDED"
        assert "a line" in done.err

    def test_flags_reach_the_job(self, service: HttpService, rmcs: Rmcs, tmp_path: Path) -> None:
        env = tmp_path / "env.yaml"
        env.write_text("env_vars: {COLOUR: red}\n")
        service.plane.cpus = {"CPU": 8, "disk": 4, "tpu": 4, "memory": 2**30}  # else nobody could ever run it
        service.plane.runtime.call_and_wait(lambda: service.plane.refresh("mac"))
        words = ["--job-id", "j1", "--runtime-env", str(env), "--metadata-json", '{"who": "ann"}', "--priority", "2.5"]
        words += ["--entrypoint-num-cpus", "0.5", "--entrypoint-memory", "1000", "--entrypoint-resources", '{"tpu": 1}']
        words += ["--cpus", "2", "--resource", "disk=1", "--tag", "fast", "--name", "nightly", "--retries", "2"]
        words += [
            "--label",
            "team=nlp",
            "--label",
            "rest=a=b",
            "--pool",
            "nlp",
            "--no-preemptible",
            "--min-runtime",
            "60",
        ]
        words += ["--entrypoint-num-gpus", "0", "--verify", "true", "--log-style", "record", "--log-color", "false"]
        assert service.ask("PUT", "/api/v1/pools/nlp", {})[0] == 200
        assert rmcs("job", "submit", "--no-wait", *words, "--", "true").code == 0
        task = service.plane.runtime.run(service.plane.runtime.find_item("j1")).task  # type: ignore[union-attr]  # it is there
        assert task.job is not None
        assert task.job.metadata == {"who": "ann"}
        assert task.job.entrypoint_resources == {"CPU": 0.5, "memory": 1000, "tpu": 1}
        assert (dict(task.requirements), task.tags, task.name) == ({"CPU": 2, "disk": 1}, ("fast",), "nightly")
        assert (task.priority, task.retries, task.runtime_env["env_vars"]) == (2.5, 2, {"COLOUR": "red"})
        pool = {"labels": {"team": "nlp", "rest": "a=b"}, "pool": "nlp", "preemptible": False, "min_runtime_s": 60.0}
        assert task.pool_fields == pool
        reported = json.loads(rmcs("job", "status", "j1", "-o", "json").out)
        assert reported.items() >= pool.items()
        assert schema_violations(service, "/api/v1/jobs/{job_id}", reported) == []

    def test_a_whole_priority_and_no_fields_of_pools(self, service: HttpService, rmcs: Rmcs) -> None:
        assert rmcs("job", "submit", "--no-wait", "--submission-id", "j1", "--priority", "5.0", "--", "true").code == 0
        task = service.plane.runtime.run(service.plane.runtime.find_item("j1")).task  # type: ignore[union-attr]  # it is there
        assert (str(task.priority), task.pool_fields) == ("5", {})

    def test_a_folder_travels_along(self, service: HttpService, rmcs: Rmcs, tmp_path: Path) -> None:
        (tmp_path / "x.py").write_text("print(1)")
        words = ["--submission-id", "j1", "--runtime-env-json", "{}", "--working-dir", str(tmp_path)]
        assert rmcs("job", "submit", "--no-wait", *words, "--", "python", "x.py").code == 0
        task = service.plane.runtime.run(service.plane.runtime.find_item("j1")).task  # type: ignore[union-attr]  # it is there
        assert str(tmp_path) not in str(task.runtime_env["working_dir"]), "it is named by what is in it"

    @pytest.mark.parametrize(
        ("words", "output"),
        [
            (["--metadata-json", "{"], "this is no JSON"),
            (["--metadata-json", "[]"], "JSON object"),
            (["--runtime-env", "nowhere.yaml"], "cannot be read"),
            (["--runtime-env", "x", "--runtime-env-json", "{}"], "only one of"),
            (["--entrypoint-label-selector", "{}"], "--require-tag"),
            (["--verify", "false"], "certificate"),
            (["--headers", '{"Cookie": "x"}'], "only header"),
            (["--resource", "tpu"], "NAME=AMOUNT"),
            (["--priority", "9999999"], "'--priority': expected less than or equal to 1000000."),
            (["--priority", "nan"], "Invalid value for '--priority'"),
            (["--label", "team"], "--label: 'team' is not KEY=VALUE, such as team=nlp."),
            (["--label", "=nlp"], "--label: '=nlp' is not KEY=VALUE"),
            (["--label", f"team={'x' * 257}"], "at most 64 texts by name"),
            (["--pool", ""], "--pool: it is empty; give a value"),
            (["--min-runtime", "0"], "min_runtime_s is 0.0"),
            (["--name", ""], "--name: it is empty; give a value"),
            (["--submission-id", ""], "--submission-id: it is empty; give a value"),
            (["--working-dir", " "], "--working-dir: it is empty; give a value"),
            (["--submission-id", "last"], "submission_id is 'last'"),
            (["--submission-id", "all"], "submission_id is 'all'"),
            (["--working-dir", "/nonexistent"], "--working-dir: there is no folder or archive '/nonexistent' here"),
            (["--runtime-env-json", '{"working_dir": "/nonexistent"}'], "working_dir: there is no folder"),
            (["--working-dir", "~nobodyhere/x"], "--working-dir: '~nobodyhere/x' cannot be read: "),
            (["--working-dir", "x" * 5000], "cannot be read: File name too long."),
            (["--entrypoint-num-cpus", "1e308"], "is 1e+308: that is no amount. What to do: give a number from 0 to"),
            ([], "Missing argument"),
        ],
    )
    def test_usage_errors(self, service: HttpService, rmcs: Rmcs, words: list[str], output: str) -> None:
        done = rmcs("job", "submit", *words, *(["--", "true"] if words else []))
        assert (done.code, done.out) == (2, "")
        assert output in " ".join(done.err.split())

    def test_an_empty_entrypoint(self, service: HttpService, rmcs: Rmcs) -> None:
        done = rmcs("job", "submit", "--no-wait", "--", "")
        assert (done.code, done.out) == (2, "")
        assert "it is empty; give a command, such as python train.py" in " ".join(done.err.split())
        assert service.get("/api/v1/jobs")["jobs"] == []

    def test_a_wait_that_is_over_before_the_job(self, service: HttpService, rmcs: Rmcs) -> None:
        running(service, "full")
        service.plane.runtime.clients.tail_job_logs = silent(threading.Event())  # type: ignore[method-assign, assignment]
        done = rmcs("job", "submit", "--submission-id", "j1", "--timeout", "0.5", "--", "true")
        assert done.code == 101
        assert re.search("j1 is (PENDING|RUNNING), and has not ended", done.err), (
            "it may not have begun within that time"
        )
        assert "j1 continues; follow it with `rmcs job logs -f j1`, end it with `rmcs job stop j1`" in done.err


def silent(followed: threading.Event) -> Callable[[str], AsyncIterator[str]]:
    """What a job prints that prints nothing; ``followed`` is set when it is followed."""

    async def tail(_: str) -> AsyncIterator[str]:
        followed.set()
        await asyncio.sleep(1.5)
        yield ""

    return tail


class TestInterrupt:
    @pytest.mark.parametrize(("words", "after"), [([], "RUNNING"), (["--cancel-on-interrupt"], "CANCELLED")])
    def test_work_goes_on_unless_it_is_not_to(
        self, service: HttpService, rmcs: Rmcs, words: list[str], after: str
    ) -> None:
        followed = threading.Event()
        service.plane.runtime.clients.tail_job_logs = silent(followed)  # type: ignore[method-assign, assignment]

        def interrupt() -> None:
            assert followed.wait(60)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        done = rmcs("job", "submit", "--submission-id", "j1", *words, "--", "true")
        thread.join()
        assert done.code == 130
        how = "j1 continues; follow it with `rmcs job logs -f j1`, end it with `rmcs job stop j1`"
        assert (how in done.err) == (after == "RUNNING")
        assert ("j1 is cancelled" in done.err) == (after == "CANCELLED")
        until(lambda: state(service, "j1") == after)

    def test_job_is_cancelled_only_after_its_cluster_ended_it(
        self, service: HttpService, capsys: pytest.CaptureFixture[str]
    ) -> None:
        service.submit("t1", 1)
        until(lambda: state(service, "t1") == "RUNNING")
        with pytest.raises(typer.Exit), interruptible(connect(), "t1", cancel=True):
            raise KeyboardInterrupt
        assert capsys.readouterr().err == "rmcs: t1 is being cancelled\n"


class TestOthers:
    def test_status(self, service: HttpService, rmcs: Rmcs) -> None:
        running(service, "j1")
        done = rmcs("job", "status", "j1")
        assert done.code == 101
        assert done.out.splitlines()[0] == "Status for job 'j1': RUNNING"
        end(service, "j1", "failed")
        done = rmcs("job", "status", "last", "-o", "json")
        assert done.code == 100
        reported = json.loads(done.out)
        assert schema_violations(service, "/api/v1/jobs/{job_id}", reported) == []
        assert (reported["status"], reported["job_id"]) == ("FAILED", "j1")

    def test_one_that_failed_shows_the_end_of_what_it_printed(self, service: HttpService, rmcs: Rmcs) -> None:
        """Ray has it in its message; where that is missing, the log is asked for."""
        lines = "".join(f"line {number}\n" for number in range(100))
        for job, output in (("j1", f"Job failed with exit code 1, last available logs:\n{lines}"), ("j2", "it broke")):
            running(service, job)
            service.plane.post(events.AttemptFinished(job, 1, "failed", FailureClass.USER, sentence=output))
            until(lambda job=job: state(service, job) == "FAILED")  # type: ignore[misc]  # a lambda with a default
        done = rmcs("job", "status", "j1")
        assert done.code == 100
        shown = done.out.splitlines()
        assert shown[1].endswith("exit code 1, last available logs:")
        assert (shown[2], shown[-1], len(shown)) == ("line 80", "line 99", 22)
        assert "all of its output: `rmcs job logs j1`" in done.err
        assert rmcs("job", "status", "j2").out.splitlines()[-1] == "a line"

        def gone(_: str) -> None:
            raise SILENT

        service.plane.runtime.clients.client = gone  # type: ignore[method-assign, assignment]  # it is away
        done = rmcs("job", "status", "j2")
        assert done.code == 100
        assert "cannot be read: mac does not answer" in done.err
        assert "rmcs: when its cluster answers again, all of its output: `rmcs job logs j2`\n" in done.err

        def forgotten(_: str) -> None:
            raise ResultLostError("Ray on mac does not know of it any more.", cluster="mac")

        service.plane.runtime.clients.client = forgotten  # type: ignore[method-assign, assignment]  # started anew
        done = rmcs("job", "status", "j2")
        assert "the output cannot be read: Ray on mac does not know of it any more." in done.err
        assert "job logs" not in done.err, "there they are as little"
        assert "rmcs: to run it once more: `rmcs task retry j2`\n" in done.err

    def test_a_task_is_no_job(self, service: HttpService, rmcs: Rmcs) -> None:
        service.submit("t1")
        done = rmcs("job", "status", "t1")
        assert done.code == 102
        assert "t1 is a task, not a job" in done.err
        assert rmcs("job", "status", "t").code == 102

    def test_list(self, service: HttpService, rmcs: Rmcs) -> None:
        for name in ("j1", "j2"):
            running(service, name)
        title, newest, _ = rmcs("job", "list").out.splitlines()
        assert title.split()[:3] == ["JOB", "ID", "STATUS"]
        assert newest.split()[:3] == ["j2", "RUNNING", "mac"]
        rows = json.loads(rmcs("job", "list", "-o", "json").out)
        assert schema_violations(service, "/api/v1/jobs", rows, "jobs") == []
        assert rows[0]["submitted_at"].endswith("Z")
        assert "--limit" in rmcs("job", "list", "--limit", "1").err

    def test_logs(self, service: HttpService, rmcs: Rmcs) -> None:
        running(service, "j1")
        assert rmcs("job", "logs", "j1").out == "a line\n"
        ending = end_when_it_runs(service, "j1", "failed")
        done = rmcs("job", "logs", "--follow", "j1")
        ending.join()
        assert (done.code, done.out) == (100, "a line\n")

    def test_the_end_of_its_logs(self, service: HttpService, rmcs: Rmcs) -> None:
        running(service, "j1")
        assert rmcs("job", "logs", "j1", "--tail", "0").out == ""
        ending = end_when_it_runs(service, "j1")
        done = rmcs("job", "logs", "--follow", "--tail", "0", "j1")
        ending.join()
        assert (done.code, done.out) == (0, "")

    @pytest.mark.parametrize("words", [[], ["--no-wait"]])
    def test_stop(self, service: HttpService, rmcs: Rmcs, words: list[str]) -> None:
        running(service, "j1")
        done = rmcs("job", "stop", "j1", *words)
        assert (done.code, done.out) == (0, "j1\n")
        until(lambda: state(service, "j1") == "CANCELLED")
        assert rmcs("job", "status", "j1").code == 103
        again = rmcs("job", "stop", "j1", "-o", "json")
        assert (again.code, again.err) == (0, "rmcs: j1 has already ended: STOPPED\n")
        reported = json.loads(again.out)
        assert schema_violations(service, "/api/v1/jobs/{job_id}", reported) == []

    @pytest.mark.parametrize(
        ("started", "output"),
        [
            (False, "is PENDING after 0.1 s: Ray on mac has not started its entrypoint yet, and ends it only once it"),
            (True, "is RUNNING after 0.1 s: its cluster got the request, and has not ended it yet"),
        ],
    )
    def test_stop_does_not_wait_for_ever(
        self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, started: bool, output: str
    ) -> None:
        """Ray ends a job that it has not started yet only once it has, which may take a quarter of an hour."""
        monkeypatch.setattr(job_command, "STOP_TIMEOUT_S", 0.1)
        monkeypatch.setattr(service.plane, "dispatch", lambda orders: None)
        monkeypatch.setattr(service.plane, "cancel", service.plane.cancelled.append)
        item = {"id": "j1", "kind": "job", "name": "j", "job": {"entrypoint": "true"}}
        service.post("/api/v1/items", {"task": item})
        until(lambda: state(service, "j1") == "DISPATCHING")
        if started:
            service.plane.post(events.Started("j1", 1, 0.0))
            until(lambda: state(service, "j1") == "RUNNING")
        done = rmcs("job", "stop", "j1")
        assert (done.code, done.out) == (101, "j1\n")
        assert output in done.err
        assert [one.task_id for one in service.plane.cancelled] == ["j1"]
        assert "after 0 s" in rmcs("job", "stop", "j1", "--timeout", "0").err

    def test_explains_that_a_lost_job_does_not_stop(self) -> None:
        assert "gets the request when it does" in job_command.unfinished_reason({"job_id": "j1", "status": "LOST"})

    def test_the_token_may_be_a_header(self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RMCS_TOKEN")
        assert rmcs("job", "list").code == 1
        header = json.dumps({"Authorization": f"Bearer {service.token}"})
        assert rmcs("job", "list", "--headers", header).code == 0
        assert rmcs("job", "submit", "--no-wait", "--headers", header, "--", "true").code == 0

    def test_ca_file(self, tmp_path: Path) -> None:
        assert options._ca_file("True") is None
        assert options._ca_file(str(tmp_path)) == str(tmp_path)


def test_delete_removes_a_finished_job(service: HttpService, rmcs: Rmcs) -> None:
    job = running(service, "nightly")
    done = rmcs("job", "delete", job)
    assert done.code == 1
    assert "it is RUNNING" in done.err
    end(service, job)
    until(lambda: state(service, job) == "SUCCEEDED")
    until(lambda: rmcs("job", "delete", job).code == 0)
    assert service.get(f"/api/v1/items/{job}")["state"] == "EXPIRED"
    assert rmcs("job", "status", job).code == 102
    assert rmcs("job", "list", "-o", "json").out.strip() == "[]"
    service.restart()
    assert service.get(f"/api/v1/items/{job}")["state"] == "EXPIRED"
