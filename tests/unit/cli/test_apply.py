"""`rmcs clusters apply`: other clusters for a service that runs, over HTTP on loopback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.main import main
from tests.unit.client_api.control_plane import CLOSED_PORT
from tests.unit.service.http_service import HttpService
from tests.unit.service.service_plane import CPUS, running

MAC = f"- {{name: mac, dashboard: '{CLOSED_PORT}'}}\n"
LINUX = "- {name: linux, dashboard: 'http://127.0.0.1:10', tags: [x86_64]}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "elsewhere" / "clusters.yaml"
    path.parent.mkdir()
    path.write_text(f"clusters:\n{MAC}{LINUX}")
    return path


def names(service: HttpService) -> list[str]:
    return [row["name"] for row in service.get("/api/v1/clusters")["clusters"]]


def test_a_dry_run_only_shows_it(service: HttpService, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clusters", "apply", str(file), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == ["linux: would be added", "mac: unchanged"]
    assert names(service) == ["mac"]
    actions = [one for one in service.plane.store.events_after(0, 1000) if getattr(one.entry, "what", "") == "action"]
    assert actions == [], "nothing was done"


def test_added_changed_and_removed(service: HttpService, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clusters", "apply", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == ["linux: added", "mac: unchanged"]
    assert names(service) == ["mac", "linux"]
    assert main(["clusters", "apply", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == ["mac: unchanged", "linux: unchanged"], "the same again"
    file.write_text(f"settings: {{max_queue: 5}}\nclusters:\n{LINUX.replace('x86_64', 'fast')}")
    assert main(["clusters", "apply", str(file), "--dry-run"]) == 0
    settings = "settings that differ take effect at the next start: "
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == ["linux: would be changed", "mac: would be removed"]
    assert shown[2].startswith(settings)
    assert "max_queue" in shown[2]
    assert main(["clusters", "apply", str(file), "-o", "json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["changed"], done["removed"], done["not_empty"]) == (["linux"], ["mac"], [])
    assert names(service) == ["linux"]


def test_apply_names_clusters_that_are_not_empty(
    service: HttpService, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.submit("t", CPUS)
    item = service.plane.runtime.item("t")
    assert item is not None
    running(item)
    file.write_text(f"clusters:\n{LINUX}")
    assert main(["clusters", "apply", str(file), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "mac: would be removed" in shown
    assert "mac: is not empty, so no change would be made; `rmcs clusters drain mac` first" in shown
    assert main(["clusters", "apply", str(file)]) == 1
    assert "are not empty (mac: t)" in capsys.readouterr().err
    assert names(service) == ["mac"]


def test_relative_paths_are_those_of_the_file(
    service: HttpService, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = "runtime_env: {working_dir: ./code}, auth_token: '${LINUX_TOKEN}'}"
    file.write_text(f"clusters:\n{MAC}{LINUX.strip()[:-1]}, {more}\n")
    monkeypatch.chdir(file.parent)
    assert main(["clusters", "apply", file.name]) == 0
    linux = service.plane.runtime.config.cluster("linux")
    assert linux.runtime_env["working_dir"] == str(file.parent.resolve() / "code")
    assert linux.auth_token is not None
    assert linux.auth_token.get_secret_value() == "${LINUX_TOKEN}"
    assert "LINUX_TOKEN" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("clusters:\n- {nmae: x}\n", "clusters.yaml: "),
        ("clusters: [\n", "this is not YAML"),
        (None, "cannot be read"),
    ],
)
def test_an_invalid_file_is_reported_by_name_and_not_sent(
    file: Path, capsys: pytest.CaptureFixture[str], text: str | None, output: str
) -> None:
    file.unlink()
    if text is not None:
        file.write_text(text)
    assert main(["clusters", "apply", str(file), "--address", "http://127.0.0.1:9"]) == 2
    shown = capsys.readouterr().err
    assert output in shown
    assert str(file) in shown


def test_only_who_may_run_code_may_send_clusters(
    service: HttpService, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for role, output in ((Role.OPERATOR, "with the role admin"), (Role.ADMIN, "NOT_ALLOWED")):
        monkeypatch.setenv("RMCS_TOKEN", service.token_for("adam", role))
        assert main(["clusters", "apply", str(file), "--dry-run"]) == 1
        assert output in capsys.readouterr().err


def test_there_is_no_service(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RMCS_HOME", str(tmp_path))
    monkeypatch.delenv("RMCS_ADDRESS", raising=False)
    assert main(["clusters", "apply", str(file)]) == 2
    assert "No service runs here" in capsys.readouterr().err


def test_apply_prints_warnings(service: HttpService, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `rmcs config check` and `rmcs up` do."""
    file.write_text(f"clusters:\n{MAC.replace('}', ', auth_token_path: /nowhere/token}')}")
    assert main(["clusters", "apply", str(file), "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["mac: would be changed"]
    assert shown.err.startswith("rmcs: ! ")
    assert "/nowhere/token" in shown.err
