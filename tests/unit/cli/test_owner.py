"""`rmcs owner`: list, show and set, over HTTP to a service on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.main import main
from tests.unit.service.http_service import HttpService

ANN = {"weight": 2.0, "max_queued": 1_000_000, "max_running": 5, "max_gpus": 0.5, "max_priority": None}


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpService]:
    with HttpService(tmp_path / "state", auth="token", owners={"ann": ANN}) as one:
        monkeypatch.setenv("RMCS_ADDRESS", one.address)
        monkeypatch.setenv("RMCS_TOKEN", one.token)
        yield one


def lines(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_listed_and_shown(service: HttpService, capsys: pytest.CaptureFixture[str]) -> None:
    service.submit("t", owner="bob")
    service.post("/api/v1/queue/owner/bob/pause", {"reason": "on holiday"})
    assert main(["owner", "list"]) == 0
    head, ann, bob = lines(capsys)
    assert head[:3] == ["OWNER", "WAITING", "RUNNING"]
    assert ann == ["ann", "0", "0", "2", "1000000", "5", "0.5", "–", "settings", "no"]
    assert bob[0] == "bob"
    assert bob[-3:] == ["yes:", "on", "holiday"]
    assert main(["owner", "list", "-o", "json"]) == 0
    assert [row["owner"] for row in json.loads(capsys.readouterr().out)] == ["ann", "bob"]
    assert main(["owner", "show", "ann"]) == 0
    assert lines(capsys)[1] == ann
    assert main(["owner", "show", "ann", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["limits"] == ANN


def test_a_name_with_a_slash_in_it(service: HttpService, capsys: pytest.CaptureFixture[str]) -> None:
    service.submit("t", owner="team/a b")
    assert main(["owner", "show", "team/a b"]) == 0
    assert "team/a b" in capsys.readouterr().out
    assert main(["owner", "set", "team/a b", "--max-running", "9"]) == 0
    assert service.get("/api/v1/owners/team%2Fa%20b")["limits"]["max_running"] == 9
    for order, changed in (("pause", "yes"), ("resume", "no")):
        assert main(["queue", order, "--owner", "team/a b"]) == 0
        capsys.readouterr()
        assert main(["owner", "show", "team/a b"]) == 0
        assert lines(capsys)[1][-1] == changed
    assert main(["owner", "set", "team/a b", "--reset"]) == 0
    assert main(["owner", "show", "team/b"]) == 102
    assert main(["task", "show", "team/a"]) == 102
    assert "Nothing here is called 'team/a'" in capsys.readouterr().err


def test_limits_that_are_not_named_stay(service: HttpService, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["owner", "set", "ann", "--max-running", "9", "--max-gpus", "none", "--max-priority", "-3.5"]) == 0
    assert lines(capsys)[1] == ["ann", "0", "0", "2", "1000000", "9", "–", "-3.5", "set", "later", "no"]
    limits = {**ANN, "max_running": 9, "max_gpus": None, "max_priority": -3.5}
    assert service.get("/api/v1/owners/ann")["limits"] == limits
    assert main(["owner", "set", "ann", "--weight", "0.5", "-o", "json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["limits"], row["changed"]) == ({**limits, "weight": 0.5}, True)
    assert main(["owner", "set", "ann", "--reset"]) == 0
    assert "settings" in capsys.readouterr().out
    assert service.get("/api/v1/owners/ann")["limits"] == ANN


def test_an_owner_that_was_not_there(service: HttpService, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["owner", "show", "some body"]) == 102
    assert "is unknown" in capsys.readouterr().err
    assert main(["owner", "set", "some body", "--max-queued", "0"]) == 0
    assert service.get("/api/v1/owners/some%20body")["limits"]["max_queued"] == 0


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["ann"], "Name limits, such as --max-running 5"),
        (["ann", "--reset", "--weight", "1"], "not both"),
        (["ann", "--max-running", "many"], "'many' is not a whole number, or none."),
        (["ann", "--max-running", "1.5"], "'1.5' is not a whole number, or none."),
        (["ann", "--weight", "none"], "'none' is not a number."),
        (["ann", "--max-running", "-1"], "give a number, or for no limit none (null in JSON, None in Python)"),
        (["ann", "--weight", "0"], "weight is '0.0': it should be greater than"),
        (["ann", "--max-gpus", "x"], "'x' is not a number, or none."),
    ],
)
def test_usage_errors(service: HttpService, capsys: pytest.CaptureFixture[str], words: list[str], output: str) -> None:
    assert main(["owner", "set", *words]) == 2
    shown = capsys.readouterr().err
    assert output in shown
    assert "Traceback" not in shown


def test_limits_are_for_admins(
    service: HttpService, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMCS_TOKEN", service.token_for("otto", Role.OPERATOR))
    assert main(["owner", "list"]) == 0
    assert main(["owner", "set", "ann", "--weight", "3"]) == 1
    assert "More: rmcs explain NOT_ALLOWED" in capsys.readouterr().err
