"""`rmcs doctor --deep`: a tiny task to each cluster and back, by the service if there is one."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from ray_multicluster_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.cli.doctor import round_trip
from ray_multicluster_scheduler.cli.layout import output
from ray_multicluster_scheduler.cli.layout.output import Spinner
from ray_multicluster_scheduler.common.exception import ConfigurationError, ServiceUnavailableError
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from tests.unit.cli.conftest import Rmcs
from tests.unit.cli.test_doctor_service import unreachable
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for long."""
    monkeypatch.setattr(round_trip, "TASK_TIMEOUT_S", 0.3)


def of(rmcs: Rmcs, about: str) -> list[dict[str, Any]]:
    found = json.loads(rmcs("doctor", "--deep", "-o", "json").out)
    return [one for one in found if one["about"] == about]


def items(service: HttpService) -> list[str]:
    return [f"{row['name']} {row['state']}" for row in service.get("/api/v1/items")["items"]]


def test_a_task_is_sent_through_the_service(service: HttpService, rmcs: Rmcs) -> None:
    service.plane.works = True
    done = rmcs("doctor", "--deep")
    assert done.code == 0, done.out
    assert "✓ mac: a task ran there and returned" in done.out
    assert items(service) == ["doctor SUCCEEDED"]
    (placed,) = service.plane.placed
    assert service.plane.runtime._describe(placed.task_id).requirements == {}, "also where all CPUs are in use"
    assert done.err == "", "nobody watches"


@pytest.mark.parametrize("text", ["clusters: [{name: other, dashboard: 'http://127.0.0.1:9'}]", "nonsense"])
def test_service_is_preferred_to_a_default_file(service: HttpService, rmcs: Rmcs, home: Path, text: str) -> None:
    service.plane.works = True
    (home / "clusters.yaml").write_text(text)
    assert [one["says"] for one in of(rmcs, "mac")] == ["a task ran there and returned"]


@pytest.mark.parametrize(
    ("order", "answer", "code"),
    [
        ("/api/v1/clusters/mac/cordon", "no task was sent there: it is cordoned", "CORDONED"),
        ("/api/v1/queue/cluster/mac/pause", "no task was sent there: its queue is paused", "QUEUE_PAUSED"),
    ],
)
def test_no_task_is_sent_to_a_cordoned_cluster(
    service: HttpService, rmcs: Rmcs, order: str, answer: str, code: str
) -> None:
    service.post(order)
    one = of(rmcs, "mac")[-1]
    assert (one["verdict"], one["says"], one["code"]) == ("warning", answer, code)
    assert one["fix"].startswith("`rmcs ")
    assert items(service) == []


def test_no_task_is_sent_to_an_unreachable_cluster(service: HttpService, rmcs: Rmcs) -> None:
    unreachable(service, "mac: the switch is off. What to do: press it")
    problem, one = of(rmcs, "mac")
    assert (problem["verdict"], one["verdict"], one["code"]) == ("wrong", "warning", "CLUSTER_UNREACHABLE")
    assert "no task was sent there: " in one["says"]
    assert "the switch is off." in one["says"]
    assert one["fix"] == "press it"
    assert items(service) == []


def test_missing_submitter_role_is_a_warning(service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMCS_TOKEN", service.token_for("vera", Role.VIEWER))
    one = of(rmcs, "service")[-1]
    assert (one["verdict"], one["code"]) == ("warning", "NOT_ALLOWED")
    assert one["says"] == "you may not submit (viewer), so no task was sent to its clusters"
    assert "submitter" in one["fix"]
    assert items(service) == []


@pytest.mark.usefixtures("soon")
def test_one_that_does_not_come_back(service: HttpService, rmcs: Rmcs) -> None:
    (one,) = of(rmcs, "mac")
    assert (one["verdict"], bool(one["code"]), bool(one["fix"])) == ("wrong", True, True)
    assert one["says"].startswith("a task could not run there and return: ")
    until(lambda: items(service)[0] != "doctor RUNNING")
    assert rmcs("doctor", "--deep").code == 100


@pytest.mark.usefixtures("soon")
def test_one_that_waits_for_ever_is_cancelled(service: HttpService, rmcs: Rmcs) -> None:
    service.post("/api/v1/queue/owner/root-of-tests/pause")
    (one,) = of(rmcs, "mac")
    assert one["verdict"] == "wrong"
    until(lambda: items(service)[0] in ("doctor CANCELLED", "doctor FAILED"))


def test_ctrl_c_cancels_the_tasks(service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: Spinner, text: str) -> None:
        if "on its way" in text:
            raise KeyboardInterrupt

    monkeypatch.setattr(Spinner, "show", interrupt)
    assert rmcs("doctor", "--deep").code == 130
    until(lambda: items(service) == ["doctor CANCELLED"])


def test_findings_are_printed_if_tasks_cannot_be_sent(
    service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise ServiceUnavailableError("It is away.", next_step="wait")

    monkeypatch.setattr("ray_multicluster_scheduler.cli.doctor.round_trip._send_tasks", away)
    done = rmcs("doctor", "--deep")
    assert done.code == 100
    assert "✓ service: it reaches mac" in done.out
    assert "✗ tasks: It is away." in done.out


def test_findings_are_printed_if_the_local_control_plane_does_not_start(
    rmcs: Rmcs, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise ConfigurationError("There is no such policy.", next_step="correct it")

    monkeypatch.delenv("RMCS_ADDRESS", raising=False)
    monkeypatch.setattr(UnifiedScheduler, "submit_task_async", refused)
    entry = {"name": "mac", "dashboard": "http://127.0.0.1:9"}
    (home / "clusters.yaml").write_text(yaml.safe_dump({"clusters": [entry]}))
    done = rmcs("doctor", "--deep")
    assert done.code == 100
    assert "✓ configuration: " in done.out
    assert "✗ tasks: There is no such policy.\n    What to do: correct it" in done.out


def test_a_person_sees_why_it_takes_so_long(
    service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, soon: None
) -> None:
    seen = io.StringIO()
    monkeypatch.setattr(output, "is_terminal", lambda **_: True)
    monkeypatch.setattr(output, "console", lambda **_: Console(file=seen, force_terminal=True, width=200))
    done = rmcs("doctor", "--deep", "-o", "json")
    assert "a tiny task is on its way to mac and back: " in seen.getvalue()
    assert json.loads(done.out)[-1]["about"] == "mac", "data is where data belongs"
