"""Who only looks starts nothing: a cluster without a dashboard is not asked, as that would start a gateway there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.cli.commands.top import fetch
from ray_multicluster_scheduler.cli.service.client import Service, connect
from tests.unit.cli.conftest import Rmcs
from tests.unit.service.http_service import HttpService

MAC = {"name": "mac", "dashboard": "http://127.0.0.1:9"}
LAB = {"name": "lab", "head_address": "127.0.0.1:9", "carrier": "ray_client"}


@pytest.fixture
def asked(service: HttpService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The clusters that the service asks, of two, one of which has no dashboard."""
    monkeypatch.setenv("RMCS_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    names: list[str] = []
    refresh = service.plane.refresh

    def noted(cluster: str, **_: object) -> Any:
        names.append(cluster)
        return refresh(cluster)

    service.plane.refresh = noted  # type: ignore[method-assign]  # in place of the executor
    service.post("/api/v1/clusters/apply", {"clusters": [MAC, LAB]})
    service.plane.runtime.health._names = lambda: ["mac", "lab"]
    return names


@pytest.mark.parametrize(
    "action",
    [
        lambda rmcs, _: rmcs("doctor"),
        lambda rmcs, _: rmcs("status"),
        lambda _, service: fetch(connect(service.address)),
    ],
    ids=["doctor", "status", "top"],
)
def test_a_view_asks_the_clusters(
    asked: list[str], service: HttpService, rmcs: Rmcs, action: Callable[[Rmcs, HttpService], object]
) -> None:
    action(rmcs, service)
    assert set(asked) == {"mac"}


def test_rows_are_the_same_whether_it_was_asked_or_not(asked: list[str], service: HttpService, rmcs: Rmcs) -> None:
    for asks in ({"mac"}, set()):
        reported = json.loads(rmcs("status", "-o", "json").out)["clusters"]
        assert set(asked) == asks
        listed = service.get("/api/v1/clusters")["clusters"]
        assert [list(row) for row in reported] == [list(row) for row in listed]
        asked.clear()


@pytest.mark.parametrize("words", [["status"], ["status", "--watch", "--every", "0.2", "-o", "json"]])
def test_a_cluster_that_is_removed_between_two_questions(
    asked: list[str], service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    get, looks = Service.get, []

    def late(self: Service, path: str, **query: Any) -> Any:
        if path.endswith("/clusters/mac"):
            service.post("/api/v1/clusters/apply", {"clusters": [LAB]})
        if path.endswith("/fleet"):
            looks.append(path)
            if len(looks) > 2:
                raise KeyboardInterrupt
        return get(self, path, **query)

    monkeypatch.setattr(Service, "get", late)
    done = rmcs(*words)
    assert done.code == (130 if "--watch" in words else 0), done.err
    assert "lab" in done.out
    assert "mac" not in done.out


def test_an_explicit_refresh_starts_the_gateway(asked: list[str], rmcs: Rmcs) -> None:
    assert rmcs("clusters").code == 0
    assert set(asked) == {"lab", "mac"}


def test_finding_of_doctor(asked: list[str], rmcs: Rmcs) -> None:
    found = json.loads(rmcs("doctor", "-o", "json").out)
    (lab,) = [one for one in found if one["about"] == "lab"]
    assert lab["verdict"] == "ok"
    assert "it has no dashboard" in lab["says"]
    assert "`rmcs clusters check lab` starts one" in lab["says"]
    assert {"about": "service", "verdict": "ok", "says": "it reaches mac", "fix": "", "code": ""} in found
