"""PUT and DELETE /api/v1/owners/{owner}: other limits while the service runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.exception import ConfigurationError, NotAllowedError
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.control_plane.store import OperationRecord
from ray_multicluster_scheduler.scheduler.lifecycle.events import OwnerLimitsChanged
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService, body
from tests.unit.service.service_plane import a_task

pytestmark = pytest.mark.usefixtures("leak_check")
ANN = "/api/v1/owners/ann"
NONE: dict[str, Any] = {"weight": 1, "max_queued": None, "max_running": None, "max_gpus": None, "max_priority": None}
CONFIGURED = {**NONE, "max_running": 1, "weight": 2, "max_priority": 5}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    owners = {"ann": {"max_running": 1, "weight": 2, "max_priority": 5}}
    with HttpService(tmp_path / "state", auth="token", submission_interval_s=0, owners=owners) as service:
        yield service


def put(service: HttpService, **limits: Any) -> Any:
    status, output = service.ask("PUT", ANN, limits)
    assert status == 200, output
    return output


def running(service: HttpService) -> int:
    return int(service.get(ANN)["running"])


def test_more_starts_at_once_and_less_ends_nothing(service: HttpService) -> None:
    for number in range(4):
        service.submit(f"a{number}", owner="ann")
    until(lambda: running(service) == 1)
    row = put(service, max_running=3)
    assert (row["limits"], row["changed"]) == ({**NONE, "max_running": 3}, True)
    until(lambda: running(service) == 3)
    assert put(service, max_running=0)["running"] == 3
    assert service.get("/api/v1/items/a3/explain")["code"] == "OWNER_LIMIT"
    status, back = service.ask("DELETE", ANN)
    assert (status, back["limits"], back["changed"]) == (200, CONFIGURED, False)
    assert running(service) == 3


def test_it_holds_after_a_restart(service: HttpService) -> None:
    put(service, max_running=0, max_queued=2)
    service.submit("a0", owner="ann")
    service.restart()
    row = service.get(ANN)
    assert (row["limits"], row["changed"]) == ({**NONE, "max_running": 0, "max_queued": 2}, True)
    assert (row["waiting"], row["running"]) == (1, 0)
    assert service.ask("DELETE", ANN)[0] == 200
    until(lambda: running(service) == 1)
    service.restart()
    assert (service.get(ANN)["limits"], service.get(ANN)["changed"]) == (CONFIGURED, False)


def test_the_settings_that_are_shown_are_those_that_hold(service: HttpService) -> None:
    put(service, max_gpus=1.5)
    for path in ("/api/v1/settings", "/api/v1/fleet"):
        assert service.get(path)["settings"]["owners"] == {"ann": {**NONE, "max_gpus": 1.5}}
    assert [row["owner"] for row in service.get("/api/v1/owners")["owners"]] == ["ann"]


def test_an_unknown_owner(service: HttpService) -> None:
    path = "/api/v1/owners/some%20body"
    status, row = service.ask("DELETE", path)
    assert (status, row["owner"], row["limits"], row["changed"]) == (200, "some body", NONE, False)
    assert service.ask("GET", path)[0] == 404
    assert service.ask("PUT", path, {})[1]["changed"]
    assert service.get(path)["limits"] == NONE


def test_the_ceiling_of_priorities_is_the_one_of_now(service: HttpService) -> None:
    ann = service.token_for("ann", Role.SUBMITTER)

    def sent(priority: float) -> int:
        task = a_task(f"p{priority}", 0, priority=priority, start_after=5e9)
        return service.ask("POST", "/api/v1/items", body(task), token=ann)[0]

    assert sent(6) == 403
    put(service, max_priority=6)
    assert (sent(6), sent(7)) == (200, 403)
    assert service.ask("POST", "/api/v1/items/p6/priority", {"priority": 7}, token=ann)[0] == 403
    put(service, max_priority=6.5)
    assert service.get(ANN)["limits"]["max_priority"] == 6.5
    assert (sent(6.5), sent(6.75)) == (200, 403)
    service.restart()
    assert (service.get(ANN)["limits"]["max_priority"], sent(6.5), sent(6.75)) == (6.5, 200, 403)
    assert isinstance(put(service, max_priority=6.0)["limits"]["max_priority"], int)
    put(service)
    assert (sent(7), service.ask("POST", "/api/v1/items/p6/priority", {"priority": 9}, token=ann)[0]) == (200, 200)


def test_changes_are_audited(service: HttpService) -> None:
    adam = service.token_for("adam", Role.ADMIN)
    assert service.ask("PUT", ANN, {"max_running": 3}, token=adam)[0] == 200
    assert service.ask("DELETE", ANN, token=adam)[0] == 200
    notes = [one.entry for one in service.plane.store.events_after(0, 1000) if isinstance(one.entry, OperationRecord)]
    reported = [(note.user, note.subject, json.loads(note.document)) for note in notes if note.what == "action"]
    output = [(user, subject, words["action"], words["details"]) for user, subject, words in reported]
    assert output == [
        ("adam", "owner ann", "set limits", {"weight": 1.0, "max_running": 3}),
        ("adam", "owner ann", "reset limits", {}),
    ]


def test_an_operator_may_not(service: HttpService) -> None:
    otto = service.token_for("otto", Role.OPERATOR, Role.SUBMITTER)
    for method in ("PUT", "DELETE"):
        status, output = service.ask(method, ANN, {} if method == "PUT" else None, token=otto)
        assert (status, output["error"]) == (403, "NotAllowedError")


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ({"max_runing": 1}, "An owner has no limit 'max_runing' (did you mean 'max_running'?)."),
        ({"max_running": "3"}, "max_running is '3': it should be a valid integer."),
        ({"max_running": True}, "max_running is 'True': it should be a valid integer."),
        ({"max_queued": -1}, "max_queued is '-1': it should be greater than or equal to 0."),
        ({"max_queued": 10**23}, f"max_queued is '{10**23}': it should be less than or equal to 1000000000."),
        ({"max_running": 10**9 + 1}, "max_running is '1000000001': it should be less than or equal to 1000000000."),
        ({"max_gpus": 1e10}, "max_gpus is '10000000000.0': it should be less than or equal to 1000000000."),
        ({"max_priority": 10**20}, f"max_priority is '{10**20}': it should be less than or equal to 1000000."),
        ({"max_priority": -1000001}, "max_priority is '-1000001': it should be greater than or equal to -1000000."),
        ({"max_priority": True}, "max_priority is 'True': expected a number, got true."),
        ({"max_priority": "5"}, "max_priority is '5': it should be a valid number."),
        ({"max_priority": float("nan")}, "max_priority is 'nan': it should be a finite number."),
        ({"weight": 0}, "weight is '0': it should be greater than or equal to 0.000001."),
        ({"weight": None}, "weight is 'None': it should be a valid number."),
        ({"weight": 1e-9}, "weight is '1e-09': it should be greater than or equal to 0.000001."),
        ({"weight": float("inf")}, "weight is 'inf': it should be less than or equal to 1000000"),
        ({"max_gpus": float("inf")}, "max_gpus is 'inf': it should be a finite number."),
        ([1], "The body is a list."),
    ],
)
def test_invalid_limits_are_rejected(service: HttpService, output: Any, words: str) -> None:
    status, answer = service.ask("PUT", ANN, output)
    assert (status, answer["error"]) == (422, "ConfigurationError")
    assert words in answer["message"]
    assert answer["next_step"]
    assert service.get(ANN)["limits"] == CONFIGURED


def test_the_largest_accepted_values(service: HttpService) -> None:
    most = {"max_queued": 10**9, "max_running": 10**9, "max_gpus": 1e9, "max_priority": 1_000_000}
    assert put(service, **most)["limits"] == {**NONE, **most}


def test_limits_beyond_the_bounds_that_were_kept_before_there_were_any(service: HttpService) -> None:
    before = OwnerLimits.model_construct(
        weight=1.0, max_queued=10**23, max_running=None, max_gpus=1e99, max_priority=-(10**20)
    )
    service.plane.runtime.post_user_event(OwnerLimitsChanged("ann", before))
    until(lambda: service.get(ANN)["limits"]["max_queued"] == 10**23)
    service.restart()
    bounded = {"max_queued": 10**9, "max_gpus": 1e9, "max_priority": -1_000_000}
    assert service.get(ANN)["limits"] == {**NONE, **bounded}


def test_a_name_beyond_all_measure(service: HttpService) -> None:
    status, output = service.ask("PUT", f"/api/v1/owners/{'x' * 257}", {})
    assert (status, "has 257 characters" in output["message"]) == (422, True)


def test_the_same_from_a_program(service: HttpService) -> None:
    with UnifiedScheduler(address=service.address, token=service.token) as scheduler:
        assert scheduler.owner_limits("ann") == CONFIGURED
        assert scheduler.owner_limits("nobody") == NONE
        scheduler.set_owner_limits("ann", max_running=7)
        assert service.get(ANN)["limits"] == scheduler.owner_limits("ann") == {**NONE, "max_running": 7}
        scheduler.reset_owner_limits("ann")
        assert service.get(ANN)["limits"] == CONFIGURED


def test_a_program_that_runs_hears_of_a_higher_ceiling(service: HttpService) -> None:
    with UnifiedScheduler(address=service.address, token=service.token) as scheduler:
        with pytest.raises(ConfigurationError, match="priority is 6, and ann may request 5 at most"):
            scheduler.submit_task_async(print, owner="ann", priority=6)
        put(service, max_priority=6)
        handle = scheduler.submit_task_async(print, owner="ann", priority=6)
        assert handle.accepted(60)
        put(service, max_priority=2)
        late = scheduler.submit_task_async(print, owner="ann", priority=6)
        with pytest.raises(NotAllowedError, match="ann may use at most 2"):
            late.result(60)
