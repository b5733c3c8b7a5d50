"""`rmcs plan` and `rmcs explain`: what they print, and their exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.scheduler import UnifiedScheduler
from ray_multicluster_scheduler.cli.service import local_programs
from ray_multicluster_scheduler.common.model import CandidateReport, Rejection, SchedulingDecision
from ray_multicluster_scheduler.control_plane.runtime import local_queries
from ray_multicluster_scheduler.main import main
from tests.unit.client_api.actor_plane import ActorPlane
from tests.unit.client_api.control_plane import CLOSED_PORT, ControlPlane, until
from tests.unit.lifecycle.driver import task

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMCS_HOME", str(tmp_path / "home"))


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    """A program with one item that runs and one that waits."""
    with ControlPlane() as plane:
        plane.task("t1", cpus=8)
        waiting = plane.submit(plane.with_payload(task("t2", 8)))
        until(lambda: waiting.explain()["code"] == "NO_CAPACITY")
        yield plane


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "clusters.yaml"
    path.write_text(f"clusters:\n  - name: mac\n    dashboard: {CLOSED_PORT}\n    tags: [arm64]\n")
    return str(path)


class TestExplain:
    def test_an_item_of_a_program_that_runs_now(self, plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["explain", "t2"]) == 0
        text = capsys.readouterr().out
        assert text.startswith("t2 (task t2) is QUEUED\n  NO_CAPACITY: ")
        assert "may start: unknown" in text
        assert f"Source: process {os.getpid()}: " in text

    def test_as_json(self, plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["explain", "t1", "-o", "json"]) == 0
        explanation: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert (explanation["id"], explanation["state"], explanation["cluster"]) == ("t1", "RUNNING", "mac")

    def test_by_another_process(self, plane: ControlPlane) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "ray_multicluster_scheduler", "explain", "t1", "-o", "json"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["state"] == "RUNNING"

    def test_unknown_item_lists_the_asked_programs(
        self, plane: ControlPlane, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["explain", "nobody"]) == 102
        error = capsys.readouterr().err
        assert f"None of your programs has an item 'nobody'; programs queried: process {os.getpid()}." in error
        assert "What to do: see `rmcs explain --list`" in error

    def test_without_a_program(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["explain", "nobody"]) == 102
        assert "No service runs here, and no program of yours" in capsys.readouterr().err
        assert main(["explain", "--list"]) == 0
        assert "No program of yours" in capsys.readouterr().out

    def test_the_list(self, plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["explain", "--list"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(f"process {os.getpid()}: ")
        assert [line.split()[:4] for line in lines[2:]] == [
            ["t2", "task", "t2", "QUEUED"],
            ["t1", "task", "t1", "RUNNING"],
        ]
        assert main(["explain", "--list", "-o", "json"]) == 0
        assert [one["id"] for one in json.loads(capsys.readouterr().out)[0]["items"]] == ["t2", "t1"]

    def test_the_list_has_the_names_of_actors(self, capsys: pytest.CaptureFixture[str]) -> None:
        with ActorPlane() as plane:
            for options in ({"name": "tally"}, {}):
                plane.actor(**options)
            assert main(["explain", "--list"]) == 0
            nameless, named = capsys.readouterr().out.splitlines()[2:]
            assert nameless.split()[1:4] == ["actor", "Counter", "RUNNING"]
            assert named.split()[1:5] == ["actor", "Counter", "'tally'", "RUNNING"]
            assert main(["explain", "--list", "-o", "json"]) == 0
            items = json.loads(capsys.readouterr().out)[0]["items"]
            assert [(one["name"], one["actor_name"]) for one in items] == [("Counter", None), ("Counter", "tally")]

    def test_a_cut_list_shows_how_many_are_missing(
        self, plane: ControlPlane, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(local_queries, "MAX_LISTED", 1)
        assert main(["explain", "--list"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "and 1 older ones"
        assert main(["explain", "--list", "-o", "json"]) == 0
        (answer,) = json.loads(capsys.readouterr().out)
        assert ([one["id"] for one in answer["items"]], answer["more"]) == (["t2"], 1)

    def test_a_program_that_does_not_answer_is_named(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        silent = {"error": "TimeoutError", "message": "timed out"}
        monkeypatch.setattr(local_programs, "query_all", lambda _: iter([(4711, silent)]))
        assert main(["explain", "--list"]) == 0
        reported = capsys.readouterr()
        assert (reported.out, reported.err) == ("", "rmcs: process 4711 did not list its items: timed out\n")
        assert main(["explain", "--list", "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out) == []

    @pytest.mark.parametrize(
        "words", [[], ["t1", "--list"], ["t1", "-o", "xml"], ["--list", "--address", "http://a:1"]]
    )
    def test_usage(self, words: list[str]) -> None:
        assert main(["explain", *words]) == 2


class TestPlan:
    def test_a_table_without_submitting_anything(self, config: str, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["--cpus", "4", "--gpus", "1", "--memory", "8GiB", "--resource", "tpu=2", "--tag", "arm64"]
        assert main(["plan", "--config", config, *words]) == 100, "it would fail at once"
        out = capsys.readouterr().out
        assert out.startswith("CLUSTER_UNREACHABLE: no cluster can take it")
        assert "CLUSTER  VERDICT" in out
        assert out.count("it has not answered since it was added") == 1

    def test_what_would_be_refused_is_one(
        self, config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        full = SchedulingDecision("t", 0.0, None, "QUEUE_FULL", "it would be refused: 9 items wait already")
        monkeypatch.setattr(UnifiedScheduler, "plan", lambda *_, **__: full)
        assert main(["plan", "--config", config]) == 100
        assert capsys.readouterr().out == "QUEUE_FULL: it would be refused: 9 items wait already\n"

    def test_what_would_wait_is_no_failure(
        self, config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row = CandidateReport("mac", (Rejection("NO_CAPACITY", "1 CPU is free"),))
        waits = SchedulingDecision("t", 1.0, None, "NO_CAPACITY", "mac: 1 CPU is free", (row,), "some is freed on mac")
        monkeypatch.setattr(UnifiedScheduler, "plan", lambda *_, **__: waits)
        assert main(["plan", "--config", config]) == 0
        assert capsys.readouterr().out.startswith(
            "NO_CAPACITY: it waits; the reason of each cluster is below\nIt can continue when some"
        )

    @pytest.mark.parametrize("kind", ["task", "actor", "job"])
    def test_as_json_for_every_kind(self, config: str, capsys: pytest.CaptureFixture[str], kind: str) -> None:
        words = ["--kind", kind, "--preferred-cluster", "mac", "--fallback", "wait", "--require-tag", "x86_64"]
        assert main(["plan", "--config", config, "-o", "json", *words]) == 100
        decision: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert decision["cluster"] is None
        (row,) = decision["candidates"]
        assert row["cluster"] == "mac"
        assert {"CLUSTER_UNREACHABLE", "REQUIRED_TAGS"} <= {one["code"] for one in row["rejections"]}

    @pytest.mark.parametrize(
        "words",
        [
            ["--resource", "tpu"],
            ["--resource", "tpu=many"],
            ["--kind", "gang"],
            ["--fallback", "maybe"],
            ["--memory", "lots"],
            ["--preferred-cluster", "nowhere"],
            ["--cpus", "-1"],
        ],
    )
    def test_usage(self, config: str, words: list[str]) -> None:
        assert main(["plan", "--config", config, *words]) == 2
