"""What is asked with words that mean nothing is refused with a sentence, and not answered with something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.remote import remote_runtime
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService, body
from tests.unit.service.service_plane import a_job, a_task

JOB: dict[str, Any] = {"kind": "job", "name": "nightly", "job": {"entrypoint": "ls"}}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpService]:
    with HttpService(tmp_path_factory.mktemp("words") / "state") as one:
        one.submit("over")
        item = one.plane.runtime.item("over")
        assert item is not None
        one.plane.finish(item)
        yield one


def refused(service: HttpService, method: str, path: str, output: object = None, status: int = 422) -> dict[str, Any]:
    found, answer = service.ask(method, path, output)
    assert found == status, answer
    for inside in ("__init__", "TaskDescription", "TaskState", "None", "half"):
        assert inside not in answer["message"], answer
    assert answer["next_step"], answer
    reported: dict[str, Any] = answer
    return reported


@pytest.mark.parametrize(
    "path",
    [
        "items?limit=0",
        "items?limit=-1",
        "items?kind=bogus",
        "items?state=bogus",
        "items?since=nan",
        "items?until=inf",
        "queue?limit=0",
        "jobs?limit=0",
        "actors?limit=-1",
        "items/over/logs?attempt=99",
        "items/over/logs?attempt=0",
        "items/over/logs?attempt=-1",
        "items/over/logs?stream=../x",
        "events?since=-1",
    ],
)
def test_parameters(service: HttpService, path: str) -> None:
    refused(service, "GET", f"/api/v1/{path}")


def test_parameters_that_are_right(service: HttpService) -> None:
    for path in ("items?limit=1&kind=task&state=SUCCEEDED&since=0", "items/over/logs?attempt=1&stream=stdout"):
        service.get(f"/api/v1/{path}")


@pytest.mark.parametrize(
    "output",
    [
        {},
        {"task": None},
        {"task": 5},
        {"task": {}},
        {"task": {"kind": "job"}},
        {"task": {"name": "n"}},
        {"task": {"kind": "job", "name": "n"}},
        {"task": {"kind": "job", "name": "n", "job": {}}},
        {"task": {"kind": "actor", "name": "n"}},
        {"task": {"kind": "actor", "name": "n", "actor": {}}},
        {"task": {"kind": "gang", "name": "n"}},
        {"task": {"kind": "gang", "name": "n", "gang": {}}},
        {"task": {"kind": "gang", "name": "n", "gang": {"members": [{}]}}},
        {"task": {**JOB, "actor": {"ray_name": "a"}}},
        {"task": {**JOB, "requirements": {"CPU": float("nan")}}},
        {"task": {**JOB, "runtime_env": {"env_vars": {"A": 1}}}},
        {"task": {**JOB, "runtime_env": {"env_vars": ["A"]}}},
    ],
)
def test_items_that_are_none(service: HttpService, output: dict[str, Any]) -> None:
    refused(service, "POST", "/api/v1/items", output)
    refused(service, "POST", "/api/v1/plan", output)
    (reported,) = service.post("/api/v1/items/batch", {"items": [output]})["items"]
    assert reported["problem"]["next_step"]


def test_a_payload_that_is_missing(service: HttpService) -> None:
    assert "no payload" in refused(service, "POST", "/api/v1/items", {"task": {"kind": "task", "name": "n"}})["message"]


def test_fields_of_a_submission_that_mean_nothing(service: HttpService) -> None:
    assert "'foo'" in refused(service, "POST", "/api/v1/items", {"task": JOB, "foo": 3})["message"]
    assert "'foo'" in refused(service, "POST", "/api/v1/items/batch", {"items": [], "foo": 3})["message"]
    (reported,) = service.post("/api/v1/items/batch", {"items": [{"task": JOB, "client": "me"}]})["items"]
    assert "'client'" in reported["problem"]["message"]
    refused(service, "POST", "/api/v1/items", {"task": JOB, "client": 5})


def test_a_plan_needs_no_id(service: HttpService) -> None:
    assert service.post("/api/v1/plan", {"task": JOB})["cluster"] == "mac"


@pytest.mark.parametrize("verb", ["hold", "release", "priority"])
def test_finished_items_are_not_changed(service: HttpService, verb: str) -> None:
    output = {"priority": 5} if verb == "priority" else {}
    answer = refused(service, "POST", f"/api/v1/items/over/{verb}", output, status=409)
    assert answer["message"] == "over has ended: SUCCEEDED."


def test_the_end_of_a_finished_item_is_reported(service: HttpService) -> None:
    assert service.post("/api/v1/items/over/cancel") == {"id": "over", "state": "SUCCEEDED", "changed": False}


def test_verbs_report_their_change(service: HttpService) -> None:
    service.post("/api/v1/items", body(a_task("later", 0, start_after=5e9)))
    now = {"id": "later", "state": "PENDING", "changed": True}
    assert service.post("/api/v1/items/later/hold") == {**now, "held": True}
    assert service.post("/api/v1/items/later/release") == {**now, "held": False}
    reported = service.post("/api/v1/items/later/priority", {"priority": 5})
    assert reported == {**now, "held": False, "priority": 5}


def test_a_program_does_nothing_to_what_is_over(service: HttpService) -> None:
    with UnifiedScheduler(address=service.address) as scheduler:
        scheduler.hold("over")
        scheduler.release("over")
        scheduler.set_priority("over", 5)


def test_an_amount_is_shown_as_it_was_sent(service: HttpService) -> None:
    output = {"task": {**JOB, "requirements": {"CPU": float("nan")}}}
    assert refused(service, "POST", "/api/v1/items", output)["message"] == 'requirements is {"CPU": NaN}.'


def test_jobs_come_in_pages_and_a_program_has_all_of_them(
    service: HttpService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_runtime, "JOBS_AT_ONCE", 50)
    items = [{"task": a_job(f"j{number}", start_after=5e9).to_dict()} for number in range(120)]
    service.post("/api/v1/items/batch", {"items": items})
    until(lambda: len(service.get("/api/v1/items?kind=job&limit=1000")["items"]) >= 120)
    first = service.get("/api/v1/jobs")
    assert [row["job_id"] for row in first["jobs"]] == [f"j{number}" for number in range(119, 19, -1)]
    rest = service.get(f"/api/v1/jobs?after={first['after']}")
    assert rest["jobs"][-1]["job_id"] == "j0"
    with UnifiedScheduler(address=service.address) as scheduler:
        assert [row["job_id"] for row in scheduler.list_jobs()] == [f"j{number}" for number in range(120)]


def test_half_a_character_in_one_of_many_refuses_that_one_alone(service: HttpService) -> None:
    def a_job(name: str) -> dict[str, object]:
        return {"task": {"kind": "job", "name": name, "job": {"entrypoint": "true"}}}

    bad, good = service.post("/api/v1/items/batch", {"items": [a_job("caf\udce9"), a_job("café")]})["items"]
    assert bad["problem"]["status"] == 422
    assert "half of a character" in bad["problem"]["message"]
    assert good["id"]
