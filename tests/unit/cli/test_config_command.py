"""`rmcs config`: check a file, and show what is in force."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from ray_multicluster_scheduler.cli.commands import config
from ray_multicluster_scheduler.local_fleet.fleet_home import BackgroundFleet, FleetHome
from ray_multicluster_scheduler.local_fleet.processes import Identity
from tests.unit.cli.conftest import Rmcs
from tests.unit.cli.openapi import schema_violations
from tests.unit.service.http_service import HttpService

GOOD = "settings: {retries: 2}\nclusters:\n- {name: mac, dashboard: 'http://127.0.0.1:9', auth_token: hush}\n"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "clusters.yaml"
    path.write_text(GOOD)
    return str(path)


def test_a_right_one(file: str, rmcs: Rmcs) -> None:
    done = rmcs("config", "check", file)
    assert done.code == 0
    assert "is valid: 1 cluster (mac); settings: retries" in done.out
    assert json.loads(rmcs("config", "check", file, "-o", "json").out)["clusters"] == ["mac"]


def test_a_wrong_one(file: str, rmcs: Rmcs) -> None:
    Path(file).write_text(GOOD.replace("name:", "nmae:"))
    done = rmcs("config", "check", file)
    assert (done.code, done.out) == (2, "")
    assert "nmae" in done.err
    assert "What to do" in done.err


def test_several_mistakes_are_one_per_line(file: str, rmcs: Rmcs) -> None:
    Path(file).write_text("clusters:\n- nmae: mac\n  dashbord: http://127.0.0.1:9\n- name: 'x\x9b31m'\n")
    done = rmcs("config", "check", file)
    assert done.code == 2
    first, *wrong, last = done.err.splitlines()
    assert first == f"rmcs: error: {file}, line 4: this is not YAML: it holds characters that YAML does not allow."
    Path(file).write_text('clusters:\n- nmae: mac\n  dashbord: http://127.0.0.1:9\n- name: "x\\x9b31m"\n')
    first, *wrong, last = rmcs("config", "check", file).err.splitlines()
    assert first == f"rmcs: error: {file}: 4 things are wrong:"
    assert [line.split(":")[0] for line in wrong] == ["  line 2", "  line 2", "  line 3", "  line 4"]
    assert last.startswith("What to do: ")


def test_a_usable_one_that_is_hardly_meant(file: str, rmcs: Rmcs) -> None:
    Path(file).write_text(
        GOOD + "- {name: also, dashboard: 'http://127.0.0.1:9/'}\n- {name: head, head_address: 'h:1'}\n"
    )
    done = rmcs("config", "check", file)
    assert done.code == 0
    assert "is valid, with warnings: 3 clusters (mac, also, head)" in done.out
    assert "! mac and also are one cluster under several names (the same dashboard, http://127.0.0.1:9)" in done.out
    assert "! head has a head_address but no dashboard" in done.out
    reported = json.loads(rmcs("config", "check", file, "-o", "json").out)["warnings"]
    assert [(one["clusters"], one["code"]) for one in reported] == [
        (["mac", "also"], "SAME_CLUSTER"),
        (["head"], "NO_CARRIER"),
    ]


def test_a_token_that_is_not_there(file: str, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    Path(file).write_text(GOOD.replace("hush", "'${NO_SUCH_TOKEN}'"))
    done = rmcs("config", "check", file)
    assert done.code == 0, "as of all that can be used"
    assert "is valid, with warnings: 1 cluster (mac)" in done.out
    assert "! auth_token of cluster mac refers to the environment variable NO_SUCH_TOKEN, which is not set" in done.out
    assert "What to do: set NO_SUCH_TOKEN to the cluster's token" in done.out


def test_configuration_of_a_service(service: HttpService, rmcs: Rmcs) -> None:
    done = rmcs("config", "show")
    assert done.code == 0
    assert yaml.safe_load(done.out)["clusters"][0]["name"] == "mac"
    reported = json.loads(rmcs("config", "show", "-o", "json").out)
    assert schema_violations(service, "/api/v1/settings", reported) == []


def test_parsed_file_is_shown_without_secrets(file: str, rmcs: Rmcs) -> None:
    done = rmcs("config", "show", "--config", file, "-o", "yaml")
    assert yaml.safe_load(done.out)["settings"]["retries"] == 2
    assert "hush" not in done.out


class TestWhichFile:
    """It is reported on stderr, where no program reads it by mistake."""

    @pytest.fixture(autouse=True)
    def _no_other(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RMCS_HOME", str(tmp_path / "home"))
        monkeypatch.chdir(tmp_path)

    @pytest.mark.parametrize("command", ["check", "show"])
    def test_the_one_that_is_named_by_the_environment(
        self, rmcs: Rmcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        other = tmp_path / "other.yaml"
        other.write_text(GOOD.replace("mac", "lab"))
        monkeypatch.setenv("RMCS_CONFIG", "other.yaml")
        done = rmcs("config", command)
        assert done.code == 0
        assert "lab" in done.out
        assert done.err == f"rmcs: read {other}, which RMCS_CONFIG names\n"

    @pytest.mark.parametrize("command", ["check", "show"])
    def test_the_one_that_is_found(self, file: str, rmcs: Rmcs, command: str) -> None:
        assert rmcs("config", command).err == f"rmcs: read {file}\n"

    @pytest.mark.parametrize("words", [["check"], ["show", "--config"]])
    def test_the_one_that_was_given(
        self, file: str, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, words: list[str]
    ) -> None:
        monkeypatch.setenv("RMCS_CONFIG", "other.yaml")
        assert rmcs("config", *words, file).err == f"rmcs: read {file}\n"

    def test_there_is_none(self, rmcs: Rmcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        done = rmcs("config", "show")
        assert "No clusters are configured" in done.err
        assert "or start a local fleet with `rmcs fleet up`" in done.err
        monkeypatch.setenv("RMCS_CONFIG", "other.yaml")
        done = rmcs("config", "show")
        assert (done.code, done.out) == (2, "")
        assert f"{tmp_path / 'other.yaml'} (named by RMCS_CONFIG) cannot be read" in done.err

    def test_there_is_none_and_a_local_fleet_is_up(
        self, rmcs: Rmcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RMCS_HOME", str(tmp_path / "home"))
        me, home = Identity.of(os.getpid()), FleetHome()
        assert me is not None
        home.make()
        home.write(BackgroundFleet(me, str(tmp_path), []))
        for words in (["config", "show"], ["clusters"]):
            done = rmcs(*words)
            assert done.code == 2
            assert "No clusters are configured" in done.err
            where = tmp_path / "home" / "fleet" / "clusters.yaml"
            assert f"What to do: a local fleet is up, so name its file: export RMCS_CONFIG={where}\n" in done.err
        assert f"export RMCS_CONFIG={where}" in rmcs("doctor", "-o", "json").out
        home.write(BackgroundFleet(Identity(me.pid, me.started - 1000), str(tmp_path), []))
        assert "is up, so" not in rmcs("clusters").err, "its process has died"

    def test_a_service_that_uses_another_file(
        self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        source = service.get("/api/v1/settings")["source"]
        assert rmcs("config", "show").err == f"rmcs: the service {service.address} uses {source}\n"
        monkeypatch.setenv("RMCS_CONFIG", "other.yaml")
        output = rmcs("config", "show").err
        assert output.endswith("; RMCS_CONFIG names other.yaml, which is shown with --config other.yaml\n")
        assert config._other_file_hint(str(tmp_path / "other.yaml")) == "", "it is the same one"


def test_the_log_level_of_a_service_that_runs(service: HttpService, rmcs: Rmcs) -> None:
    before = rmcs("config", "log-level").out.strip()
    try:
        assert rmcs("config", "log-level", "debug").out.strip() == "DEBUG"
        done = rmcs("config", "log-level", "-o", "json")
        assert json.loads(done.out) == {"level": "DEBUG"}
        assert schema_violations(service, "/api/v1/log-level", json.loads(done.out)) == []
    finally:
        assert rmcs("config", "log-level", before).code == 0
    wrong = rmcs("config", "log-level", "loud")
    assert (wrong.code, wrong.out) == (2, "")
    assert "DEBUG" in wrong.err


NOBODY = "~nosuchuser/x"
UNKNOWN = "there is no user for ~nosuchuser on this machine"


class TestHomesOfNobody:
    """`~ann` of somebody who is not there is one sentence, wherever it is named."""

    @pytest.mark.parametrize(
        ("variable", "words"),
        [
            ("RMCS_CONFIG", "config check"),
            ("RMCS_CONFIG", "config show"),
            ("RMCS_HOME", "status"),
            ("RMCS_HOME", "doctor"),
            ("RMCS_HOME", "debug-dump"),
            ("RMCS_HOME", "fleet status"),
            ("RMCS_TOKEN_FILE", "status --address http://127.0.0.1:9"),
        ],
    )
    def test_in_a_variable(self, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, variable: str, words: str) -> None:
        for one in ("RMCS_ADDRESS", "RMCS_TOKEN"):
            monkeypatch.delenv(one, raising=False)
        monkeypatch.setenv(variable, NOBODY)
        assert rmcs(*words.split()) == (
            2,
            "",
            f"rmcs: error: {variable} names {NOBODY}, but {UNKNOWN}.\nWhat to do: write the path in full\n",
        )

    def test_as_an_argument(self, rmcs: Rmcs) -> None:
        done = rmcs("config", "check", NOBODY)
        assert done.code == 2
        assert f"The argument names {NOBODY}, but {UNKNOWN}." in done.err

    @pytest.mark.parametrize(
        "output",
        ["auth_token_path: ~nosuchuser/t", "tls: {ca: ~nosuchuser/c}", "runtime_env: {working_dir: ~nosuchuser}"],
    )
    def test_in_a_file(self, rmcs: Rmcs, tmp_path: Path, output: str) -> None:
        file = tmp_path / "clusters.yaml"
        file.write_text(f"clusters:\n- name: mac\n  dashboard: http://127.0.0.1:9\n  {output}\n")
        done = rmcs("config", "check", str(file))
        assert done.code == 2
        assert UNKNOWN in done.err

    def test_config_show_with_a_running_service(
        self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RMCS_CONFIG", NOBODY)
        assert rmcs("config", "show").code == 2


@pytest.mark.parametrize("words", ["status", "doctor", "debug-dump", "config check", "fleet status"])
def test_a_home_with_a_name_that_is_too_long(
    rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str
) -> None:
    for one in ("RMCS_ADDRESS", "RMCS_TOKEN", "RMCS_CONFIG"):
        monkeypatch.delenv(one, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RMCS_HOME", str(tmp_path / ("x" * 300)))
    done = rmcs(*words.split())
    assert (done.code, done.out) == (2, "")
    assert "rmcs: error: RMCS_HOME cannot be the name of a folder: File name too long.\n" in done.err
