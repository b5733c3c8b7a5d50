"""`rmcs explain`, `clusters`, `plan` and `trace` with a service behind them: the same conventions."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
import yaml

from ray_multicluster_scheduler.cli.service import local_programs
from ray_multicluster_scheduler.control_plane.config import home
from ray_multicluster_scheduler.control_plane.store.state_folder import StateFolder
from tests.unit.cli.conftest import Rmcs
from tests.unit.cli.openapi import schema_violations
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService

EXPLAIN = "/api/v1/items/{item_id}/explain"


@pytest.fixture
def service(service: HttpService) -> HttpService:
    """One waits for another."""
    service.submit("alpha-1", 8)
    until(lambda: service.get("/api/v1/items/alpha-1")["state"] == "RUNNING")
    service.submit("beta-1", 8)
    until(lambda: service.get("/api/v1/items/beta-1/explain")["code"] == "NO_CAPACITY")
    return service


@pytest.mark.parametrize("words", [[], ["--tail", "3"]])
def test_logs_of_what_has_not_started(service: HttpService, rmcs: Rmcs, words: list[str]) -> None:
    done = rmcs("task", "logs", "beta-1", *words)
    assert (done.code, done.out) == (0, "")
    assert done.err == "rmcs: beta-1 has printed nothing: it is QUEUED, and has not started\n"
    assert rmcs("task", "logs", "alpha-1").err == "", "it runs, and may yet print"


class TestExplain:
    @pytest.mark.parametrize("output", ["beta-1", "last", "be"])
    def test_by_the_service(self, service: HttpService, rmcs: Rmcs, output: str) -> None:
        done = rmcs("explain", output)
        assert done.code == 0
        assert done.out.startswith("beta-1 (task")
        assert done.out.endswith(f"Source: the service {service.address}\n")

    def test_json(self, service: HttpService, rmcs: Rmcs) -> None:
        reported = json.loads(rmcs("explain", "beta-1", "-o", "json").out)
        assert schema_violations(service, EXPLAIN, reported) == []
        assert reported["history"][0]["at"].endswith("Z")
        assert yaml.safe_load(rmcs("explain", "beta-1", "-o", "yaml").out)["id"] == "beta-1"

    def test_unknown_item(
        self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("RMCS_HOME", str(tmp_path))  # where no program runs
        done = rmcs("explain", "nothing")
        assert done.code == 102
        assert f"The service {service.address} has no item 'nothing'.\n" in done.err
        assert "What to do: see `rmcs task list`" in done.err
        named = rmcs("explain", "nothing", "--address", service.address)
        assert named.code == 102
        assert "There is no item 'nothing'" in named.err

    def test_the_service_is_no_program(
        self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """It was asked already, and has a socket like every program with a scheduler."""
        monkeypatch.setenv("RMCS_HOME", str(tmp_path / "home"))
        programs = [(os.getpid(), Path("service")), (1, Path("program"))]
        monkeypatch.setattr(home, "sockets", lambda: programs)
        monkeypatch.setattr(local_programs, "query_program", lambda *_: {"error": "UnknownItemError"})
        with StateFolder(tmp_path / "home") as state:
            state.announce(address=service.address)
            done = rmcs("explain", "nothing")
        assert "has no item 'nothing', and none of your programs has; programs queried: process 1.\n" in done.err


def test_clusters(service: HttpService, rmcs: Rmcs) -> None:
    rows = json.loads(rmcs("clusters", "-o", "json").out)
    assert schema_violations(service, "/api/v1/clusters", rows, "clusters") == []
    assert yaml.safe_load(rmcs("clusters", "-o", "yaml").out)[0]["name"] == "mac"
    assert rmcs("clusters").out.splitlines()[1].split()[:2] == ["mac", "UP"]


def test_plan(service: HttpService, rmcs: Rmcs) -> None:
    done = rmcs("plan", "--cpus", "1", "-o", "json")
    assert done.code == 0
    assert schema_violations(service, "/api/v1/plan", json.loads(done.out), method="post") == []
    assert rmcs("plan", "--cpus", "9").code == 100


@pytest.mark.parametrize("words", ["clusters", "plan --cpus 1"])
def test_the_service_may_be_named(
    service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str
) -> None:
    monkeypatch.delenv("RMCS_ADDRESS")
    monkeypatch.setenv("RMCS_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert rmcs(*words.split()).code == 2
    done = rmcs(*words.split(), "--address", service.address)
    assert done.code == 0, done.err
    assert "mac" in done.out


class TestTrace:
    def test_trace_prints_the_next_command(self, service: HttpService, rmcs: Rmcs, tmp_path: Path) -> None:
        out = tmp_path / "what ran.csv"
        empty = rmcs("trace", str(out))
        assert (empty.code, empty.out) == (0, f"{out}\n")
        assert f"{out} contains no item: nothing has run yet" in empty.err
        service.plane.finish(service.plane.runtime.item("alpha-1"))  # type: ignore[arg-type]  # it is there
        until(lambda: service.get("/api/v1/items/alpha-1")["state"] == "SUCCEEDED")
        done = rmcs("trace", str(out), "--force")
        assert (done.code, done.out) == (0, f"{out}\n")
        assert f"1 item in {out}; " in done.err
        command = done.err.strip().partition("rmcs simulate ")[2]
        assert command == f"--trace '{out}' --nodes 'NAME=4x{{CPU:16}}'"
        assert rmcs("simulate", *shlex.split(command)).code == 0, "and that can be done"

    def test_trace_keeps_an_existing_file(self, service: HttpService, rmcs: Rmcs, tmp_path: Path) -> None:
        out = tmp_path / "out.csv"
        out.write_text("mine")
        done = rmcs("trace", str(out))
        assert (done.code, done.out) == (2, "")
        assert f"{out} exists already." in done.err
        assert "--force" in done.err
        assert out.read_text() == "mine"
        assert rmcs("trace", str(out), "--force").code == 0
        assert out.read_text() != "mine"

    def test_a_folder_that_is_not_there(self, service: HttpService, rmcs: Rmcs, tmp_path: Path) -> None:
        assert rmcs("trace", str(tmp_path / "none" / "out.csv")).code == 2
        (tmp_path / "link").symlink_to("/dev/null")
        done = rmcs("trace", str(tmp_path / "link"), "--force")
        assert done.code == 2
        assert "is not a regular file, and is not replaced" in done.err


def test_tokens(service: HttpService, rmcs: Rmcs) -> None:
    rows = json.loads(rmcs("token", "list", "-o", "json").out)
    assert schema_violations(service, "/api/v1/tokens", rows, "tokens") == []
    assert "never" in rmcs("token", "list").out
