"""`rmcs token`: make, list and revoke, over HTTP to a service on loopback."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.main import main
from tests.unit.service.http_service import HttpService


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpService]:
    with HttpService(tmp_path / "state", auth="token") as one:
        monkeypatch.setenv("RMCS_ADDRESS", one.address)
        monkeypatch.setenv("RMCS_TOKEN", one.token)
        yield one


def test_made_listed_and_revoked(service: HttpService, capsys: pytest.CaptureFixture[str]) -> None:
    made = [
        "token",
        "create",
        "alice",
        "--role",
        "submitter",
        "--role",
        "viewer",
        "--note",
        "laptop",
        "--expires",
        "30d",
    ]
    assert main(made) == 0
    shown = capsys.readouterr()
    token = shown.out.strip()
    assert token.startswith("rmcs_")
    assert "alice is submitter, viewer until" in shown.err
    assert service.ask("GET", "/api/v1/fleet", token=token)[1]["you"] == {
        "user": "alice",
        "roles": ["submitter", "viewer"],
    }
    assert main(["token", "list"]) == 0
    table = capsys.readouterr().out
    assert [word in table for word in ("alice", "submitter,viewer", "laptop", "never")] == [True] * 4
    assert main(["token", "list", "-o", "json"]) == 0
    text = capsys.readouterr().out
    assert token.rpartition("_")[2] not in text + table
    rows = json.loads(text)
    assert [row["user"] for row in rows] == ["root-of-tests", "alice"]
    assert main(["token", "revoke", rows[1]["id"]]) == 0
    capsys.readouterr()
    assert main(["token", "revoke", rows[1]["id"]]) == 102
    assert "it was revoked already, or never existed" in capsys.readouterr().err
    assert service.ask("GET", "/api/v1/fleet", token=token)[0] == 401


def test_times_have_a_zone_and_may_be_short(service: HttpService, capsys: pytest.CaptureFixture[str]) -> None:
    before = time.time()
    assert main(["token", "create", "alice", "--role", "viewer", "--expires", "3s"]) == 0
    after = time.time()
    capsys.readouterr()
    assert main(["token", "list", "-o", "json"]) == 0
    made = json.loads(capsys.readouterr().out)[1]
    created, expires = (datetime.fromisoformat(made[name]).timestamp() for name in ("created_at", "expires_at"))
    assert before - 0.01 < created < after + 0.01, "they are rounded"
    assert before + 2.99 < expires < after + 3.01
    assert made["expires_at"].endswith("Z")


def test_json_has_the_token_too(service: HttpService, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "create", "bob", "--role", "operator", "-o", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["user"], made["roles"], made["expires_at"]) == ("bob", ["operator"], None)
    assert service.ask("GET", "/api/v1/fleet", token=made["token"])[0] == 200


@pytest.mark.parametrize(
    ("words", "code", "output"),
    [
        (["create", "alice", "--role", "root"], 2, "'root' is not one of 'viewer', 'submitter'"),
        (["create", "alice", "--role", "opertor"], 2, "Did you mean 'operator'?"),
        (["create", "alice"], 2, "--role"),
        (["create", "alice", "--role", "viewer", "--expires", "soon"], 2, "90m, 12h or 30d"),
        (["create", "a/b", "--role", "viewer"], 2, "user is 'a/b'"),
        (["revoke", "nothing"], 102, "There is no token"),
    ],
)
def test_usage_errors(
    service: HttpService, capsys: pytest.CaptureFixture[str], words: list[str], code: int, output: str
) -> None:
    assert main(["token", *words]) == code
    shown = capsys.readouterr().err
    assert output in shown
    assert "Traceback" not in shown


def test_the_last_admin(service: HttpService, capsys: pytest.CaptureFixture[str]) -> None:
    own = service.token.split("_")[1]
    assert main(["token", "revoke", own]) == 1
    assert "last token of an admin" in capsys.readouterr().err
    assert main(["token", "revoke", own, "--force"]) == 0
    assert main(["token", "list"]) == 1
    assert "rejects the token from RMCS_TOKEN" in capsys.readouterr().err


def test_it_is_for_admins(
    service: HttpService, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMCS_TOKEN", service.token_for("otto", Role.OPERATOR))
    assert main(["token", "list"]) == 1
    assert "More: rmcs explain NOT_ALLOWED" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["token", "owner"])
def test_there_is_no_service(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    monkeypatch.setenv("RMCS_HOME", str(tmp_path))
    monkeypatch.delenv("RMCS_ADDRESS", raising=False)
    assert main([command, "list"]) == 2
    assert "No service runs here" in capsys.readouterr().err


def test_one_that_asks_for_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with HttpService(tmp_path / "state") as service:
        assert main(["token", "list", "--address", service.address]) == 2
    assert "auth: none" in capsys.readouterr().err
