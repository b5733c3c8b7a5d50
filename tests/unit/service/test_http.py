"""The HTTP face of a service: what each question answers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.runtime import wire
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService, body
from tests.unit.service.service_plane import BLOBS, CPUS, A, F, a_job, a_task, running

pytestmark = pytest.mark.usefixtures("leak_check")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    with HttpService(tmp_path / "state", kept_finished=0) as service:
        yield service


# ---- items


def test_one_is_submitted_looked_at_and_over(service: HttpService) -> None:
    assert service.submit("t", owner="ann")["id"] == "t"
    running(service.item("t"))
    now = service.get("/api/v1/items/t")
    assert (now["state"], now["cluster"], now["attempt"], now["owner"]) == ("RUNNING", "mac", 1, "ann")
    assert service.ask("GET", "/api/v1/items/t/result")[0] == 409
    service.plane.finish(service.item("t"), b"pickled")
    over = service.get("/api/v1/items/t")
    assert over["state"] == "SUCCEEDED"
    assert wire.outcome_from_wire(over["outcome"], {}).result.payload == b"pickled"  # type: ignore[union-attr]
    assert service.get("/api/v1/items/t/result") == b"pickled"
    assert service.get("/api/v1/items/t/explain")["state"] == "SUCCEEDED"
    assert service.submit("t")["state"] == "SUCCEEDED"


def test_a_batch_is_answered_one_by_one_and_in_order(service: HttpService) -> None:
    items = [{"task": a_task("t1").to_dict()}, {"task": {"id": "bad"}}, 5, {"task": a_task("t2").to_dict()}]
    answer = service.post("/api/v1/items/batch", {"items": items, "blobs": wire.bytes_to_wire(BLOBS)})["items"]
    assert [one.get("id") for one in answer] == ["t1", None, None, "t2"]
    for one in answer[1:3]:
        assert one["problem"]["status"] == 422
        assert one["problem"]["error"] == "ConfigurationError"
    assert {one.new.id for one in service.plane.store.open_items()} == {"t1", "t2"}


def test_a_batch_of_ten_thousand_is_taken_and_one_more_is_not(service: HttpService) -> None:
    too_many = [{"task": {}}] * 10_001
    status, answer = service.ask("POST", "/api/v1/items/batch", {"items": too_many})
    assert (status, answer["error"]) == (422, "ConfigurationError")
    answer = service.post("/api/v1/items/batch", {"items": too_many[1:]})
    assert len(answer["items"]) == 10_000


def test_missing_payloads_are_named(service: HttpService) -> None:
    output = {"task": a_task("t").to_dict(), "blobs": wire.bytes_to_wire({F: b"f"})}
    status, answer = service.ask("POST", "/api/v1/items", output)
    assert (status, answer["missing"], answer["error"]) == (424, [A], "TaskSubmissionError")


def test_items_are_listed_in_pages_newest_first(service: HttpService) -> None:
    for number in range(5):
        service.submit(f"t{number}", owner="ann" if number % 2 else "bob")
    first = service.get("/api/v1/items?limit=3")
    assert [one["id"] for one in first["items"]] == ["t4", "t3", "t2"]
    rest = service.get(f"/api/v1/items?limit=3&after={first['after']}")
    assert [one["id"] for one in rest["items"]] == ["t1", "t0"]
    assert rest["after"] is None
    assert [one["id"] for one in service.get("/api/v1/items?owner=ann")["items"]] == ["t3", "t1"]
    until(lambda: len(service.get("/api/v1/items?state=RUNNING")["items"]) == 5)
    assert service.get("/api/v1/items?state=FAILED,LOST")["items"] == []
    assert service.ask("GET", "/api/v1/items?state=HAPPY")[0] == 422
    assert service.ask("GET", "/api/v1/items?limit=many")[0] == 422


def test_cancel(service: HttpService) -> None:
    service.submit("t")
    held = running(service.item("t"))
    service.post("/api/v1/items/t/cancel", {"reason": "not wanted"})
    until(held.done)
    assert held.state is TaskState.CANCELLED
    assert service.post("/api/v1/items/t/cancel")["state"] == "CANCELLED"
    assert "not wanted" in str(service.get("/api/v1/items/t/explain"))
    assert service.ask("POST", "/api/v1/items/never/cancel", {})[0] == 404


def test_hold_release_and_priority(service: HttpService) -> None:
    service.submit("wide", CPUS)
    running(service.item("wide"))
    service.submit("t", CPUS)
    service.post("/api/v1/items/t/hold", {"reason": "later"})
    assert service.post("/api/v1/items/t/priority", {"priority": 7})["priority"] == 7
    until(lambda: "later" in str(service.get("/api/v1/items/t/explain")))
    service.plane.finish(service.item("wide"))
    assert service.get("/api/v1/items/t")["state"] != "RUNNING"
    service.post("/api/v1/items/t/release")
    running(service.item("t"))
    assert service.get("/api/v1/items/t/explain")["priority"] == 7
    for verb, output in (("hold", {}), ("release", {}), ("priority", {"priority": 1})):
        assert service.ask("POST", f"/api/v1/items/never/{verb}", output)[0] == 404
        assert service.ask("POST", f"/api/v1/items/wide/{verb}", output)[0] == 409  # it is over
    assert service.ask("POST", "/api/v1/items/t/priority", {"priority": "high"})[0] == 422
    assert service.get("/readyz")["status"] == "ready"


def test_the_fields_of_pools_are_shown_where_they_are_set(service: HttpService) -> None:
    fields = {"labels": {"team": "nlp"}, "pool": "nlp", "preemptible": False, "min_runtime_s": 60.0}
    assert service.ask("PUT", "/api/v1/pools/nlp", {})[0] == 200
    service.submit("plain")
    running(service.item("plain"))
    service.post("/api/v1/items", body(a_task("t", CPUS, priority=2.5, **fields)))
    service.post("/api/v1/items", body(a_job("j", priority=5.0, start_after=5e9, **fields)))
    waiting = {one["id"]: one for one in service.get("/api/v1/queue")["waiting"]}
    rows = {one["id"]: one for one in service.get("/api/v1/items")["items"]}
    for shown in (waiting["t"], rows["t"], service.get("/api/v1/items/t/explain")):
        assert shown.items() >= {**fields, "priority": 2.5}.items()
    for shown in (waiting["j"], rows["j"], service.get("/api/v1/items/j/explain")):
        assert shown.items() >= fields.items()
        assert str(shown["priority"]) == "5"
    for path in ("items/t", "items/j", "jobs/j"):
        assert service.get(f"/api/v1/{path}").items() >= fields.items()
    for plain in (rows["plain"], service.get("/api/v1/items/plain"), service.get("/api/v1/items/plain/explain")):
        assert not fields.keys() & plain.keys()
    answer = service.post("/api/v1/items/t/priority", {"priority": 7.0})
    assert str(answer["priority"]) == "7"
    service.plane.finish(service.item("plain"))
    service.plane.finish(running(service.item("t")))
    again = service.post("/api/v1/items/t/retry", {"anyway": True})["id"]
    for shown in (service.get("/api/v1/items/t/explain"), service.get(f"/api/v1/items/{again}")):
        assert shown.items() >= fields.items()


def test_wait_reports_ends_until_they_are_acknowledged_and_knows_no_client_after_a_restart(
    service: HttpService,
) -> None:
    service.submit("t")
    running(service.item("t"))
    ask = {"client": "c", "add": ["t", "never"], "timeout": 10}
    first = service.post("/api/v1/wait", ask)
    assert set(first["problems"]) == {"never"}
    service.plane.finish(service.item("t"), b"v")
    for _ in range(2):
        reported = service.post("/api/v1/wait", {"client": "c", "mailbox": first["mailbox"], "timeout": 10})
        assert reported["mailbox"] == first["mailbox"]
        assert [one["state"] for one in reported["items"] if "outcome" in one] == ["SUCCEEDED"]
    assert service.post("/api/v1/wait", {"client": "c", "heard": ["t"], "timeout": 0})["items"] == []
    service.restart()
    after = service.post("/api/v1/wait", {"client": "c", "mailbox": first["mailbox"], "timeout": 10})
    assert after["items"] == []
    assert after["mailbox"] != first["mailbox"]
    reported = service.post("/api/v1/wait", {"client": "c", "mailbox": after["mailbox"], "add": ["t"], "timeout": 10})
    assert (reported["mailbox"], reported["items"][0]["id"]) == (after["mailbox"], "t")


def test_output_can_be_read(service: HttpService) -> None:
    service.submit("t")
    running(service.item("t"))
    runtime = service.plane.runtime
    runtime.call_and_wait(lambda: runtime.collector.output("mac", "t", 1, "stdout", "hello\n"))
    runtime.call_and_wait(lambda: runtime.collector.output("mac", "t", 1, "stderr", "oh\n"))
    assert service.get("/api/v1/items/t/logs") == b"hello\noh\n"
    assert service.get("/api/v1/items/t/logs?attempt=1&stream=stderr") == b"oh\n"
    assert service.ask("GET", "/api/v1/items/t/logs?attempt=2")[0] == 422
    service.plane.finish(service.item("t"))
    assert service.ask("GET", "/api/v1/items/never/logs")[0] == 404


def test_output_is_followed_to_the_end(tmp_path: Path) -> None:
    with HttpService(tmp_path / "state") as service:
        service.submit("t")
        running(held := service.item("t"))
        runtime = service.plane.runtime
        runtime.call_and_wait(lambda: runtime.collector.output("mac", "t", 1, "stdout", "hello\n"))
        runtime.call_soon(lambda: runtime._loop.call_later(0.1, service.plane.finish_soon, "t"))
        assert service.get("/api/v1/items/t/logs?follow=true") == b"hello\n"
        assert held.done()


def test_expired_items(service: HttpService) -> None:
    service.submit("t")
    service.plane.finish(running(service.item("t")), b"v")
    service.plane.store.expire_payloads(math.inf)
    status, answer = service.ask("GET", "/api/v1/items/t/result")
    assert (status, answer["error"]) == (409, "ResultLostError")
    service.plane.store.expire(math.inf, 0)
    assert service.get("/api/v1/items/t") == {"id": "t", "state": "EXPIRED"}
    status, refused = service.ask("POST", "/api/v1/items", body(a_task("t")))
    assert (status, refused["code"]) == (422, "TASK_SUBMISSION")
    assert "task t was accepted before" in refused["message"]
    assert service.ask("GET", "/api/v1/items/t/result")[1]["error"] == "ResultLostError"
    assert service.post("/api/v1/items/t/cancel")["state"] == "EXPIRED"
    assert service.get("/api/v1/items/t/explain")["state"] == "EXPIRED"
    assert set(service.post("/api/v1/wait", {"client": "c", "add": ["t"], "timeout": 9})["problems"]) == {"t"}


def test_a_job_in_rays_words(service: HttpService) -> None:
    service.post("/api/v1/items", body(a_job("j")))
    running(service.item("j"))
    assert service.get("/api/v1/jobs/j")["status"] == "RUNNING"
    assert [one["job_id"] for one in service.get("/api/v1/jobs")["jobs"]] == ["j"]
    assert service.ask("GET", "/api/v1/jobs/never")[0] == 404


# ---- payloads


def test_a_payload_is_kept_by_what_is_in_it(service: HttpService) -> None:
    data = b"x" * 100_000
    path = f"/api/v1/blobs/{digest_of(data)}"
    assert service.ask("GET", path)[0] == 404
    assert service.ask("PUT", path, data=data) == (200, {"digest": digest_of(data), "bytes": 100_000})
    assert service.get(path) == data
    status, answer = service.ask("PUT", path, data=b"another one")
    assert (status, answer["error"]) == (422, "ConfigurationError")
    status, answer = service.ask("POST", "/api/v1/items", {**body(a_task("t")), "blobs": {F: "bm8="}})
    assert (status, answer["error"]) == (422, "ConfigurationError")


def test_a_payload_above_max_payload_bytes_is_refused(tmp_path: Path) -> None:
    with HttpService(tmp_path / "state", max_payload_bytes=1000) as service:
        data = b"x" * 1001
        status, answer = service.ask("PUT", f"/api/v1/blobs/{digest_of(data)}", data=data)
        assert (status, answer["error"]) == (413, "TaskSubmissionError")
        assert "1,000 bytes" in answer["detail"]
        assert service.ask("PUT", f"/api/v1/blobs/{digest_of(data[1:])}", data=data[1:])[0] == 200


# ---- the fleet


def test_clusters_nodes_and_a_plan(service: HttpService) -> None:
    assert [row["name"] for row in service.get("/api/v1/clusters?refresh=true")["clusters"]] == ["mac"]
    assert service.get("/api/v1/clusters/mac")["drained"] is None
    assert service.ask("GET", "/api/v1/clusters/moon")[0] == 404
    assert [row["Cluster"] for row in service.get("/api/v1/nodes")["nodes"]] == ["mac"]
    assert service.post("/api/v1/plan", {"task": a_task("t", 2).to_dict()})["cluster"] == "mac"
    assert service.post("/api/v1/plan", {"task": a_task("t", 2 * CPUS).to_dict()})["cluster"] is None
    fleet = service.get("/api/v1/fleet")
    assert (fleet["clusters"], fleet["control_plane"]) == (["mac"], service.plane.store.control_plane)


def test_cordon_pause_and_drained(service: HttpService) -> None:
    service.post("/api/v1/clusters/mac/cordon")
    until(lambda: service.get("/api/v1/clusters/mac/drained")["drained"] is True)
    service.post("/api/v1/clusters/mac/uncordon")
    until(lambda: service.get("/api/v1/clusters/mac/drained")["drained"] is None)
    service.post("/api/v1/queue/owner/ann/pause", {"reason": "holiday"})
    service.submit("t", owner="ann")
    until(lambda: "holiday" in str(service.get("/api/v1/items/t/explain")))
    service.post("/api/v1/queue/owner/ann/resume")
    running(service.item("t"))
    for path in ("clusters/moon/cordon", "queue/cluster/moon/pause", "queue/planet/x/pause", "queue/planet/x/resume"):
        assert service.ask("POST", f"/api/v1/{path}", {})[0] == (404 if "moon" in path else 422), path
    assert service.ask("GET", "/api/v1/clusters/moon/drained")[0] == 404
    assert service.ask("POST", "/api/v1/clusters/moon/declare-dead", {})[0] == 404


def test_alive_and_ready(service: HttpService) -> None:
    assert service.get("/healthz") == {"status": "ok"}
    assert service.get("/readyz") == {"status": "ready"}
    service.plane.runtime.refuse("is draining and takes nothing new")
    status, answer = service.ask("GET", "/readyz")
    assert (status, answer["reason"]) == (503, "is draining and takes nothing new")
    assert service.get("/healthz") == {"status": "ok"}
    status, answer = service.ask("POST", "/api/v1/items", body(a_task("t")))
    assert status >= 400
    assert "draining" in answer["detail"]


def test_the_value_of_one_can_be_unpickled_by_who_asks(service: HttpService) -> None:
    service.submit("t")
    service.plane.finish(running(service.item("t")), pickling.dumps({"a": 1}))
    assert pickling.loads(service.get("/api/v1/items/t/result")) == {"a": 1}


# ---- what the HTTP layer itself refuses


@pytest.mark.parametrize(
    ("method", "path", "status", "output"),
    [
        ("GET", "/api/v1/nowhere", 404, "Not Found"),
        ("DELETE", "/api/v1/items", 405, "Method Not Allowed"),
        ("GET", "/api/v1/items?limit=many", 422, "query.limit"),
        ("GET", "/api/v1/calls/c/result", 422, "query.client"),
    ],
)
def test_no_such_path_verb_or_query_is_a_problem_too(
    service: HttpService, method: str, path: str, status: int, output: str
) -> None:
    found, answer = service.ask(method, path)
    assert (found, answer["status"], answer["error"]) == (status, status, "ConfigurationError")
    assert output in answer["message"]
    assert "docs/service.md" in answer["next_step"]


def test_every_route_refuses_a_parameter_that_it_does_not_know(service: HttpService) -> None:
    asked = 0
    for path, methods in service.app.openapi()["paths"].items():
        if path == "/api/v1/serving/v1/{path}":
            continue  # an inference instance answers, and gets the parameters
        for method in methods:
            whole = re.sub(r"{\w+}", "x", path) + "?limit=5&colour=red"
            status, answer = service.ask(method.upper(), whole, None if method == "get" else {})
            assert (status, answer["error"]) == (422, "ConfigurationError"), (method, path)
            assert "'colour'" in answer["message"], (method, path)
            asked += 1
    assert asked > 30


def test_an_unknown_parameter_is_refused_with_the_known_ones(service: HttpService) -> None:
    status, answer = service.ask("GET", "/api/v1/items?stat=QUEUED&limit=5&%FF")
    assert status == 422
    assert answer["message"].startswith("GET /api/v1/items has no parameter 'stat'")
    assert "use state, kind, owner, cluster, name, begins, since, until, after, limit" in answer["next_step"]
    status, answer = service.ask("GET", "/api/v1/nodes?x=1")
    assert status == 422
    assert service.ask("GET", "/api/v1/nodes?")[0] == 200
