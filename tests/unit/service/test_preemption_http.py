"""Preemption as users see it: the dry run, plan, events, metrics, and the settings that decide."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.control_plane.config.settings import PRESETS, Preemption
from ray_multicluster_scheduler.main import main
from ray_multicluster_scheduler.scheduler.lifecycle.preemption import preemption_rules
from ray_multicluster_scheduler.scheduler.pools import preemption_rules as core
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService, body
from tests.unit.service.service_plane import a_task, running

pytestmark = pytest.mark.usefixtures("leak_check")
READY = {"min_runtime_s": 0}


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpService]:
    pools = [{"name": "train", "quota": {"CPU": 8}}]
    settings: dict[str, Any] = {"submission_interval_s": 0, "pools": pools, "preemption": READY}
    with HttpService(tmp_path / "state", auth="token", **settings) as one:
        monkeypatch.setenv("RMCS_ADDRESS", one.address)
        monkeypatch.setenv("RMCS_TOKEN", one.token)
        yield one


def state(service: HttpService, name: str) -> str:
    return str(service.get(f"/api/v1/items/{name}")["state"])


def report(service: HttpService, name: str, token: str | None = None) -> dict[str, Any]:
    status, found = service.ask("GET", f"/api/v1/items/{name}/preemption", token=token or service.token)
    assert status == 200, found
    answer: dict[str, Any] = found
    return answer


def run(service: HttpService, name: str, cpus: float = 8, **values: Any) -> None:
    service.submit(name, cpus, preemptible=True, **values)
    until(lambda: state(service, name) == "RUNNING")


def test_a_held_item_has_no_plan_and_a_waiting_one_says_why(service: HttpService) -> None:
    run(service, "long", min_runtime_s=1000.0)
    assert report(service, "long")["code"] == "NOT_WAITING"
    service.submit("urgent", 8, priority=3)
    until(lambda: state(service, "urgent") == "QUEUED")
    found = report(service, "urgent")
    assert (found["code"], found["cluster"], found["victims"], found["total"]) == ("NO_VICTIM", None, [], 1)
    (candidate,) = found["candidates"]
    assert (candidate["id"], candidate["code"], candidate["rank"]) == ("long", "MIN_RUNTIME", None)
    assert service.ask("GET", "/api/v1/items/none/preemption")[0] == 404
    assert state(service, "long") == "RUNNING"


def test_ids_of_other_owners_are_hidden(service: HttpService) -> None:
    run(service, "long", min_runtime_s=1000.0)
    ann = service.token_for("ann", Role.SUBMITTER)
    assert service.ask("POST", "/api/v1/items", body(a_task("mine", 8, priority=3)), token=ann)[0] == 200
    until(lambda: state(service, "mine") == "QUEUED")
    assert [one["id"] for one in report(service, "mine", ann)["candidates"]] == ["another owner's item"]
    assert service.ask("GET", "/api/v1/items/long/preemption", token=ann)[0] == 404


def test_it_gives_way_and_resumes(service: HttpService, capsys: pytest.CaptureFixture[str]) -> None:
    run(service, "long", pool="train")
    plane = service.plane
    service.submit("urgent", 8, pool="train", priority=3)
    until(lambda: bool(plane.preempted))
    assert state(service, "long") == "PREEMPTING"
    found = report(service, "urgent")
    assert (found["code"], found["cluster"]) == ("FREES_ROOM", "mac")
    assert [one["code"] for one in found["candidates"]] == ["ALREADY_LEAVING"]
    metrics = service.get("/metrics").decode()
    assert 'rmcs_preemptions_total{pool="train",reason="same_pool_priority"} 1' in metrics
    assert 'rmcs_preemption_lost_seconds_total{pool="train"}' in metrics
    assert "rmcs_preemption_longest_seconds" in metrics
    plane.leave()
    until(lambda: state(service, "urgent") == "RUNNING")
    assert service.get("/api/v1/items/long/explain")["attempts"][0]["ended_as"] == "preempted"
    plane.finish(running(service.item("urgent")))
    until(lambda: state(service, "long") == "RUNNING")
    assert service.get("/api/v1/items/long")["code"] == "RESUMED"
    ended = report(service, "urgent")
    assert (ended["state"], ended["code"], ended["total"]) == ("SUCCEEDED", "NOT_WAITING", 0)
    assert main(["events", "--types", "preempted,resumed", "--since", "0", "-o", "json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["type"], one["id"], one["state"]) for one in events] == [
        ("transition", "long", "PREEMPTING"),
        ("transition", "long", "RUNNING"),
    ]


def test_a_preemption_continues_after_a_restart(service: HttpService) -> None:
    run(service, "long")
    service.submit("urgent", 8, priority=3)
    until(lambda: bool(service.plane.preempted))
    service.restart()
    until(lambda: [one.task_id for one in service.plane.preempted] == ["long"])
    assert report(service, "urgent")["code"] == "FREES_ROOM"
    service.plane.leave()
    until(lambda: state(service, "urgent") == "RUNNING")
    assert state(service, "long") == "QUEUED"


def test_the_dry_run_and_plan(service: HttpService, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        run(service, f"long{number}", 4, min_runtime_s=1000.0)
    service.submit("urgent", 8, priority=3)
    until(lambda: state(service, "urgent") == "QUEUED")
    assert main(["preempt", "urgent"]) == 2
    assert "preempts by itself" in capsys.readouterr().err
    assert main(["preempt", "urgent", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert all(one in shown for one in ("NO_VICTIM", "long0", "long1", "MIN_RUNTIME"))
    assert main(["preempt", "urgent", "--dry-run", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"] == 2


def test_plan_says_how_many_would_give_way(service: HttpService) -> None:
    for number in range(2):
        run(service, f"long{number}", 4)
    planned = service.post("/api/v1/plan", {"task": {"kind": "task", "priority": 3, "requirements": {"CPU": 8}}})
    assert planned["cluster"] is None
    assert planned["sentence"].endswith("; 2 items would give way on mac")
    equal = service.post("/api/v1/plan", {"task": {"kind": "task", "requirements": {"CPU": 8}}})
    assert "give way" not in equal["sentence"]


def test_the_settings_reach_the_rules(service: HttpService) -> None:
    given = Preemption(
        label=0.25, same_pool=2, other_pool=7, enable_cross_pool=False, label_rules={"stage": {"rlhf": ("pretrain",)}},
        min_runtime_s=5, cool_down_s=6, grace_s=9,
    )  # fmt: skip
    rules = preemption_rules(service.plane.config.settings.model_copy(update={"preemption": given}))
    for name in set(Preemption.model_fields) - {"preset"}:
        assert getattr(rules, name) == getattr(given, name)


def test_the_presets_are_those_of_the_rules() -> None:
    assert set(PRESETS) == set(core.PRESETS)
