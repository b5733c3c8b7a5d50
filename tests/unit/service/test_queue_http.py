"""What waits and whose it is, over HTTP; and items by more than their states."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Caller, Role
from ray_multicluster_scheduler.control_plane.admin_api.routes import queue
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService
from tests.unit.service.service_plane import CPUS, a_job, running

pytestmark = pytest.mark.usefixtures("leak_check")
LIMITS = {"ann": {"max_running": 5, "weight": 2}, "eve": {"max_queued": 0}}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    with HttpService(tmp_path / "state", submission_interval_s=0, owners=LIMITS) as service:
        yield service


def full(service: HttpService) -> None:
    """Bob's item has all CPUs; three of ann's and one of bob's wait."""
    service.submit("a-whole", CPUS, owner="bob")
    item = service.plane.runtime.item("a-whole")
    assert item is not None
    running(item)
    for number in range(3):
        service.submit(f"a{number}", owner="ann", name=f"work {number}")
    service.submit("b", owner="bob", preferred_cluster="mac", fallback="wait")
    until(lambda: all(record.code == "NO_CAPACITY" for record in waiting(service)))


def waiting(service: HttpService) -> list[Any]:
    runtime = service.plane.runtime
    return [runtime.record(one) for one in ("a0", "a1", "a2", "b")]


def test_what_waits_is_counted_and_shown_with_its_reason(service: HttpService) -> None:
    assert service.get("/api/v1/queue")["depth"] == 0
    full(service)
    output = service.get("/api/v1/queue?limit=3")
    assert (output["depth"], output["states"], output["kinds"]) == (4, {"QUEUED": 4}, {"task": 4})
    assert output["owners"] == {"ann": 3, "bob": 1}
    assert output["on_clusters"] == {"RUNNING": 1}
    assert service.get("/api/v1/queue?owner=ann")["on_clusters"] == {}, "it is bob's"
    lanes = {(one["queue"], one["cluster"]): one["waiting"] for one in output["lanes"]}
    assert lanes == {("task", None): 3, ("task", "mac"): 1}
    assert [one["id"] for one in output["waiting"]] == ["a0", "a1", "a2"], "the longest wait comes first"
    assert output["waiting"][1]["code"] == "NO_CAPACITY"
    assert "1 CPU is not free" in output["waiting"][1]["sentence"]
    rest = service.get(f"/api/v1/queue?limit=3&after={output['after']}")
    assert ([one["id"] for one in rest["waiting"]], rest["after"]) == (["b"], None)


def test_seconds_are_as_of_now_wherever_they_are_shown(tmp_path: Path) -> None:
    with HttpService(tmp_path / "state", submission_interval_s=40, snapshot_interval_s=60) as service:
        for job_id in ("first", "second"):
            service.plane.taken(a_job(job_id))
        runtime = service.plane.runtime
        until(lambda: runtime.call_and_wait(lambda: runtime.machine.record("second").code) == "SUBMISSION_INTERVAL")
        runtime.clock._offset += 10  # type: ignore[attr-defined]  # some time passes, and nothing happens
        output = {
            service.get("/api/v1/queue")["waiting"][0]["sentence"],
            service.get("/api/v1/items/second")["sentence"],
            service.get("/api/v1/items/second/explain")["sentence"],
            service.get("/api/v1/jobs/second")["message"],
            service.get("/api/v1/jobs")["jobs"][0]["message"],
        }
        (left,) = {int(sentence.split()[-2]) for sentence in output}
        assert 20 < left <= 30


def test_of_one_owner(service: HttpService) -> None:
    full(service)
    output = service.get("/api/v1/queue?owner=bob")
    assert (output["depth"], output["owners"], output["lanes"]) == (1, {"bob": 1}, [])
    assert [one["id"] for one in output["waiting"]] == ["b"]


def test_what_is_held_or_comes_after_another_waits_too(service: HttpService) -> None:
    full(service)
    service.submit("later", after=["a0"])
    service.post("/api/v1/items/a1/hold")
    rows = {one["id"]: one for one in service.get("/api/v1/queue")["waiting"]}
    assert "a0" in rows["later"]["sentence"]
    assert (rows["a1"]["held"], rows["a2"]["held"]) == (True, False)


def test_an_owner_whose_work_is_over_is_still_known(service: HttpService) -> None:
    service.submit("done", 0, owner="zoe")
    item = service.plane.runtime.item("done")
    assert item is not None
    service.plane.finish(item)
    assert service.get("/api/v1/owners/zoe")["running"] == 0
    assert service.ask("GET", "/api/v1/owners/nobody")[0] == 404


def test_owners_and_their_limits(service: HttpService) -> None:
    full(service)
    service.post("/api/v1/queue/owner/eve/pause", {"reason": "on holiday"})
    rows = {one["owner"]: one for one in service.get("/api/v1/owners")["owners"]}
    assert list(rows) == ["ann", "bob", "eve"]
    assert (rows["ann"]["waiting"], rows["ann"]["running"]) == (3, 0)
    limits = {"weight": 2, "max_queued": None, "max_running": 5, "max_gpus": None, "max_priority": None}
    assert rows["ann"]["limits"] == limits
    assert (rows["bob"]["waiting"], rows["bob"]["running"], rows["bob"]["limits"]["max_running"]) == (1, 1, None)
    assert (rows["eve"]["paused"], rows["eve"]["limits"]["max_queued"]) == ("on holiday", 0)
    assert service.get("/api/v1/owners/ann") == rows["ann"]
    assert service.ask("GET", "/api/v1/owners/nobody")[0] == 404


def test_a_submitter_sees_what_is_its_own(service: HttpService, monkeypatch: pytest.MonkeyPatch) -> None:
    full(service)
    ann = Caller("ann", frozenset({Role.SUBMITTER}), "t1")
    monkeypatch.setattr(
        "ray_multicluster_scheduler.control_plane.admin_api.access.permissions.caller_of", lambda _: ann
    )
    monkeypatch.setattr(queue, "caller_of", lambda _: ann)
    assert {one["owner"] for one in service.get("/api/v1/queue")["waiting"]} == {"ann"}
    assert service.get("/api/v1/queue")["owners"] == {"ann": 3}
    assert [one["owner"] for one in service.get("/api/v1/owners")["owners"]] == ["ann"]
    assert service.ask("GET", "/api/v1/queue?owner=bob")[0] == 403
    assert service.ask("GET", "/api/v1/owners/bob")[0] == 403


# ---- lists


def ids(service: HttpService, question: str) -> list[str]:
    return [one["id"] for one in service.get(f"/api/v1/items?{question}")["items"]]


def test_items_are_found_by_name_time_and_the_beginning_of_their_ids(service: HttpService) -> None:
    full(service)
    assert ids(service, "name=work%201") == ["a1"]
    assert ids(service, "begins=a") == ["a2", "a1", "a0", "a-whole"]
    assert ids(service, "begins=a&owner=ann&limit=2") == ["a2", "a1"]
    assert ids(service, "begins=%25") == []
    at = {row["id"]: row["submitted_at"] for row in service.get("/api/v1/items")["items"]}
    assert ids(service, f"since={at['a1']!r}&until={at['b']!r}") == ["a2", "a1"]
    assert service.ask("GET", "/api/v1/items?since=nan")[0] == 422
    assert service.ask("GET", "/api/v1/items?since=yesterday")[0] == 422


def test_jobs_and_actors_come_in_pages(service: HttpService) -> None:
    for number in range(3):
        service.post("/api/v1/items", {"task": a_job(f"j{number}").to_dict()})
    assert [one["job_id"] for one in service.get("/api/v1/jobs")["jobs"]] == ["j2", "j1", "j0"]
    first = service.get("/api/v1/jobs?limit=2")
    assert [one["job_id"] for one in first["jobs"]] == ["j2", "j1"]
    rest = service.get(f"/api/v1/jobs?limit=2&after={first['after']}")
    assert ([one["job_id"] for one in rest["jobs"]], rest["after"]) == (["j0"], None)
    assert service.get("/api/v1/actors?limit=2") == {"actors": [], "after": None}
    assert service.ask("GET", "/api/v1/actors?after=nobody")[0] == 422


def test_rows_are_cut_at_the_cursor() -> None:
    from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import page_of

    rows = [{"id": str(number)} for number in range(5)]
    assert page_of(rows, None, None) == (rows, None)
    assert page_of(rows, None, 2) == (rows[:2], "1")
    assert page_of(rows, "1", 2) == (rows[2:4], "3")
    assert page_of(rows, "3", 2) == (rows[4:], None)


def test_what_began_since_the_page_was_read_does_not_wait_any_more(
    service: HttpService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store tells what was written; the brain may be further."""
    full(service)
    store = service.plane.runtime.store
    page = store.items

    def late(query: Any) -> Any:
        found = page(query)
        one = service.plane.runtime.item("a-whole")
        if one is not None and not one.done():
            service.plane.finish(one, b"v")
            until(lambda: any(record.state == "RUNNING" for record in waiting(service)))
        return found

    monkeypatch.setattr(store, "items", late)
    reported = service.get("/api/v1/queue")["waiting"]
    assert {row["state"] for row in reported} <= {"PENDING", "QUEUED", "RETRYING"}
    assert len(reported) < 4


def test_reasons_of_many_jobs_are_found_once_for_each_shape(
    service: HttpService, monkeypatch: pytest.MonkeyPatch
) -> None:
    full(service)
    for number in range(5):
        service.post("/api/v1/items", {"task": a_job(f"j{number}", owner="ann", requirements={"CPU": 1.0}).to_dict()})
    until(lambda: len(service.get("/api/v1/queue")["waiting"]) == 9)
    asked: list[Any] = []
    machine = service.plane.runtime.machine
    why = machine.explain_wait
    monkeypatch.setattr(machine, "explain_wait", lambda *words: (asked.append(words), why(*words))[1])
    rows = service.get("/api/v1/jobs")["jobs"]
    assert len(rows) == 5
    assert len(asked) <= 1
