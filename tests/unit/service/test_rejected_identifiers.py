"""What an item is found by has no control characters: neither through a service, nor in a program of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.scheduler.lifecycle.events import OwnerLimitsChanged, QueuePaused
from tests.unit.client_api.control_plane import ControlPlane
from tests.unit.lifecycle.driver import task
from tests.unit.service.http_service import HttpService, body
from tests.unit.service.service_plane import a_task

FORGED = "ann\n2026-01-01T00:00:00.000Z INFO action=revoke"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpService]:
    with HttpService(tmp_path_factory.mktemp("line") / "state") as one:
        yield one


WRONG: list[dict[str, Any]] = [
    {"owner": FORGED},
    {"idempotency_key": "k\x1b[2J"},
    {"tags": ("a\x00",)},
    {"after": ("a\r",)},
    {"pool": "a\nb"},
    {"labels": {"team": "a\tb"}},
    {"labels": {"a\x1bb": ""}},
]


@pytest.mark.parametrize("wrong", [{"task_id": FORGED}, *WRONG])
def test_a_service_refuses_it(service: HttpService, wrong: dict[str, Any]) -> None:
    status, output = service.ask("POST", "/api/v1/items", body(a_task(**{"task_id": "t", **wrong})))
    assert status == 422
    assert "control characters" in output["message"]
    assert "\n" not in output["message"]


@pytest.mark.parametrize("name", ["%01", "a%09b", "ann%1B"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/queue/owner/{}/pause"),
        ("POST", "/api/v1/queue/owner/{}/resume"),
        ("PUT", "/api/v1/owners/{}"),
        ("DELETE", "/api/v1/owners/{}"),
    ],
)
def test_so_it_does_where_only_an_owner_is_named(service: HttpService, method: str, path: str, name: str) -> None:
    status, output = service.ask(method, path.format(name), None if method == "DELETE" else {})
    assert status == 422
    assert "owner is " in output["message"]
    assert "control characters" in output["message"]
    assert output["next_step"] == "give owner as text on one line, without control characters"
    assert service.get("/api/v1/owners")["owners"] == []


def test_earlier_limits_of_such_an_owner_can_be_undone(tmp_path: Path) -> None:
    with HttpService(tmp_path / "state") as service:
        runtime = service.plane.runtime
        runtime.post_user_event(QueuePaused("owner", "a\tb", "before"))
        runtime.post_user_event(OwnerLimitsChanged("a\tb", OwnerLimits(max_running=1)))
        assert [one["owner"] for one in service.get("/api/v1/owners")["owners"]] == ["a\tb"]
        assert service.ask("POST", "/api/v1/queue/owner/a%09b/resume", {})[0] == 200
        assert service.ask("DELETE", "/api/v1/owners/a%09b")[0] == 200
        assert service.get("/api/v1/owners")["owners"] == []


@pytest.mark.parametrize(
    "wrong", [{"owner": FORGED}, {"idempotency_key": "k\x1b"}, {"pool": FORGED}, {"labels": {"team": FORGED}}]
)
def test_a_client_refuses_it_before_it_is_sent(service: HttpService, wrong: dict[str, Any]) -> None:
    with (
        UnifiedScheduler(address=service.address) as scheduler,
        pytest.raises(ConfigurationError, match="(owner|idempotency_key|pool|labels) is"),
    ):
        scheduler.submit_task_async(print, **wrong)


@pytest.mark.parametrize("wrong", [{"task_id": FORGED}, *WRONG])
def test_so_does_a_program_of_its_own(wrong: dict[str, Any]) -> None:
    with ControlPlane() as plane, pytest.raises(ConfigurationError, match="control characters"):
        plane.submit(task(**{"task_id": "t", **wrong}))


def test_a_name_may_have_them_and_is_spelt_out_where_it_is_shown(service: HttpService, tmp_path: Path) -> None:
    service.submit("named", 0, name=FORGED)
    with UnifiedScheduler(address=service.address) as scheduler:
        output = str(scheduler.explain("named"))
    assert "ann\\n2026" in output
    assert not any(line.startswith("2026") for line in output.splitlines())
