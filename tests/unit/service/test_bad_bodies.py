"""Whatever is sent to a service, it answers with a sentence, and goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ray_multicluster_scheduler.control_plane.runtime import wire
from tests.unit.service.http_service import HttpService, body
from tests.unit.service.service_plane import BLOBS, a_job, a_task, running

HUGE = 10**30
NAN, INFINITE = float("nan"), float("inf")
LONE = "caf\udce9"
POSTS = (
    "/api/v1/items",
    "/api/v1/items/batch",
    "/api/v1/wait",
    "/api/v1/plan",
    "/api/v1/items/t/priority",
)
ALSO_EMPTY = (
    "/api/v1/items/t/cancel",
    "/api/v1/items/t/hold",
    "/api/v1/clusters/mac/declare-dead",
    "/api/v1/queue/owner/ann/pause",
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpService]:
    with HttpService(tmp_path_factory.mktemp("bad") / "state") as service:
        service.submit("t")
        yield service
        # After all of it, it works.
        assert service.get("/readyz")["status"] == "ready"
        assert service.plane.store.write_problem is None
        service.submit("another", 0)
        item = service.plane.runtime.item("another")
        assert item is not None
        service.plane.finish(running(item))


DIGESTS = {"function_digest": "a", "arguments_digest": "b"}


def refused(service: HttpService, path: str, data: bytes) -> dict[str, Any]:
    status, answer = service.ask("POST", path, data=data)
    assert 400 <= status < 500, (status, answer)
    assert answer["detail"], answer
    assert service.ask("GET", "/readyz")[0] == 200, "it does not work any more"
    found: dict[str, Any] = answer
    return found


@pytest.mark.parametrize("path", [*POSTS, *ALSO_EMPTY])
@pytest.mark.parametrize("data", [b"{", b"[]", b"5", b'"x"', b"null", b"\xff\xfe", b"[" * 100_000, b"1" * 5000])
def test_body_that_is_no_object(service: HttpService, path: str, data: bytes) -> None:
    refused(service, path, data)


@pytest.mark.parametrize(
    "output",
    [
        {},
        {"task": None},
        {"task": []},
        {"task": {}},
        {"task": {"id": "x"}},
        {"task": {"id": "x", "kind": "task", "name": "n", "colour": "red"}},
        {"task": {"id": "x", "kind": "task", "name": "n"}},
        {"task": {"id": "x", "kind": "job", "name": "n"}},
        {"task": {"id": "x", "kind": "job", "name": "n", "job": {}}},
        {"task": {"id": "x", "kind": "job", "name": "n", "job": "ls"}},
        {"task": {"id": "x", "kind": "job", "name": "n", "job": {"entrypoint": 5}}},
        {"task": {"id": "x", "kind": "gang", "name": "n", "gang": {"members": 5}}},
        {"task": {"id": "x", "kind": "planet", "name": "n"}},
        body(a_task("x", function_digest=None)),
        body(a_task("x", arguments_digest="")),
        {**body(a_task("x")), "objects": "abc"},
        {**body(a_task("x")), "objects": [5]},
        {**body(a_task("x")), "objects": [LONE]},
        {**body(a_task("x")), "blobs": [5]},
        {**body(a_task("x")), "blobs": {"x": 5}},
        {**body(a_task("x")), "blobs": {"x": "no base64!"}},
        {**body(a_task("x")), "blobs": {"x": LONE}},
    ],
)
def test_body_that_is_no_item(service: HttpService, output: dict[str, Any]) -> None:
    refused(service, "/api/v1/items", json.dumps(output).encode())


@pytest.mark.parametrize(
    "output", [{"kind": "job", "entrypoint": "ls"}, {"job": {"entrypoint": "ls"}}, {"items": [{"kind": "job"}]}, {}]
)
def test_an_item_outside_of_its_task_is_shown_where_it_belongs(service: HttpService, output: dict[str, Any]) -> None:
    answers = [refused(service, "/api/v1/items", json.dumps(output).encode())]
    answers.append(service.post("/api/v1/items/batch", {"items": [output]})["items"][0]["problem"])
    for answer in answers:
        assert answer["next_step"] == 'send {"task": {"kind": "job", "job": {"entrypoint": …}}}'


def test_the_name_of_a_job_is_its_command_unless_it_is_given(service: HttpService) -> None:
    for task, name in (({}, "echo hi"), ({"name": "n"}, "n")):
        answer = service.post("/api/v1/items", {"task": {"kind": "job", "job": {"entrypoint": "echo hi"}, **task}})
        assert service.get(f"/api/v1/items/{answer['id']}")["name"] == name


def test_a_refusal_names_all_that_is_missing(service: HttpService) -> None:
    for gang in ({"members": [{}]}, {"members": [{"requirements": {}, **DIGESTS}, {}]}):
        answer = refused(service, "/api/v1/items", json.dumps({"task": {"kind": "gang", "gang": gang}}).encode())
        for key in ("requirements", "function_digest", "arguments_digest"):
            assert key in answer["message"]
            assert f"{key} as " in answer["next_step"]


FIELDS: dict[str, list[Any]] = {
    "id": [5, None, "", "x" * 257, LONE, ["x"], ".", "..", "a/b"],
    "name": [5, None, ["n"]],
    "kind": [5, None, ["task"]],
    "owner": [5, None, LONE, {}],
    "requirements": [5, [], "CPU", {"CPU": "1"}, {"CPU": True}, {"CPU": NAN}, {"CPU": INFINITE}, {"CPU": -1}],
    "tags": [5, "abc", [5], [[]], {"a": 1}],
    "require_tags": [5, "abc", [5], [{}]],
    "preferred_cluster": [5, [], {}],
    "fallback": [5, [], "never"],
    "allow_clusters": [5, "mac", [5], [[]]],
    "deny_clusters": [5, "mac", [[]]],
    "priority": ["5", NAN, INFINITE, HUGE, 1e6 + 0.5, None, True, []],
    "retries": ["5", NAN, 1.5, -1, None, HUGE],
    "crash_retries": ["5", None, INFINITE],
    "lost_retries": ["5", None, []],
    "retry_on": [5, "ValueError", [5]],
    "no_retry_on": [5, "ValueError", [[]]],
    "retry_lost": [5, "yes", None],
    "run_timeout": ["5", NAN, INFINITE, -1, HUGE, True, 10**400],
    "queue_timeout": ["5", NAN, INFINITE, 0, []],
    "idempotency_key": [5, [], {}, LONE],
    "content_key": [5, [], LONE],
    "after": [5, "t", [5], [[]], [LONE]],
    "start_after": ["5", NAN, INFINITE, [], True],
    "runtime_env": [5, [], "x"],
    "labels": [
        5,
        [],
        {"a": 5},
        {"": "a"},
        {"a": "x" * 257},
        {"x" * 257: ""},
        {str(one): "" for one in range(65)},
        None,
    ],
    "pool": [5, "", [], LONE],
    "preemptible": [5, "yes", []],
    "min_runtime_s": ["5", NAN, INFINITE, 0, True, HUGE],
    "function_digest": [5, [], LONE],
    "arguments_digest": [5, {}],
    "arguments_bytes": ["5", NAN, None, -1, HUGE],
    "home_paths": [5, "x", [5]],
    "submitted_at": ["5", NAN, INFINITE, None, HUGE, True],
    "actor": [5, {}, []],
    "gang": [5, {}, []],
    "job": [5, []],
}


@pytest.mark.parametrize("path", ["/api/v1/items", "/api/v1/plan"])
@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in FIELDS.items() for value in values])
def test_a_field_that_is_not_what_it_should_be(service: HttpService, path: str, key: str, value: object) -> None:
    task = {**a_task(f"{key}-{str(value)[:20]}", 0).to_dict(), key: value}
    refused(service, path, json.dumps({"task": task, "blobs": wire.bytes_to_wire(BLOBS)}).encode())


@pytest.mark.parametrize(
    "job",
    [
        {"entrypoint": "ls", "metadata": 5},
        {"entrypoint": "ls", "metadata": {"a": 5}},
        {"entrypoint": "ls", "entrypoint_resources": {"CPU": "x"}},
        {"entrypoint": "ls", "entrypoint_resources": {"CPU": NAN}},
        {"entrypoint": "ls", "entrypoint_resources": []},
        {"entrypoint": "", "colour": "red"},
        {"entrypoint": "a\0b"},
    ],
)
def test_a_job_that_is_none(service: HttpService, job: dict[str, Any]) -> None:
    task = {**a_job("j").to_dict(), "job": job}
    refused(service, "/api/v1/items", json.dumps({"task": task}).encode())


@pytest.mark.parametrize(
    "output",
    [
        {"client": 5},
        {"client": ""},
        {"client": "c", "add": "t"},
        {"client": "c", "add": [5]},
        {"client": "c", "heard": {}},
        {"client": "c", "timeout": "5"},
        {"client": "c", "timeout": NAN},
        {"client": "c", "timeout": -1},
        {"client": "c", "timeout": True},
        {"client": "c", "add": [LONE]},
    ],
)
def test_a_malformed_poll_is_refused(service: HttpService, output: dict[str, Any]) -> None:
    refused(service, "/api/v1/wait", json.dumps(output).encode())


def test_any_time_that_is_a_number_is_taken(service: HttpService) -> None:
    service.post("/api/v1/items", {**body(a_task("t")), "client": "timeouts"})
    for timeout in (INFINITE, HUGE, 10**400):  # its items are reported at once
        output = {"client": f"c{timeout}", "add": ["never"], "timeout": timeout}
        assert service.post("/api/v1/wait", output)["problems"]


@pytest.mark.parametrize("priority", [None, "5", NAN, INFINITE, HUGE, True, [], {}])
def test_a_priority_that_is_none(service: HttpService, priority: object) -> None:
    refused(service, "/api/v1/items/t/priority", json.dumps({"priority": priority}).encode())


@pytest.mark.parametrize("path", ALSO_EMPTY)
def test_a_reason_that_is_none(service: HttpService, path: str) -> None:
    for reason in (5, [], {}, None):
        refused(service, path, json.dumps({"reason": reason}).encode())


def test_words_that_are_no_text_do_no_harm(service: HttpService) -> None:
    """As paths they can come out of a file system; everything else is refused, wherever it stands."""
    service.submit("lone", 0, home_paths=(LONE,))
    service.get("/api/v1/items/lone/explain")
    job = a_job("j").to_dict()
    for path, output in {
        "/api/v1/items/t/hold": {"reason": LONE},
        "/api/v1/items/t/cancel": {"reason": [{"a": LONE}]},
        "/api/v1/queue/owner/ann/pause": {"reason": LONE},
        "/api/v1/clusters/mac/declare-dead": {"reason": LONE},
        "/api/v1/wait": {"client": LONE, "add": ["lone"], "timeout": 0},
    }.items():
        assert "lone surrogate" in refused(service, path, json.dumps(output).encode())["message"]
    for output in (
        body(a_task("l1", 0, name=LONE)),
        body(a_task("l1", 0, runtime_env={"env_vars": {"A": LONE}})),
        body(a_task("l1", 0, runtime_env={LONE: 1})),
        body(a_task("l1", 0), client=LONE),
        {"task": {**job, "job": {"entrypoint": LONE}}},
        {"task": {**job, "job": {"entrypoint": "ls", "metadata": {"a": LONE}}}},
    ):
        assert "lone surrogate" in refused(service, "/api/v1/items", json.dumps(output).encode())["message"]
    raw = b'{"reason": "\xed\xb3\xa9"}'  # the same as bytes
    assert "lone surrogate" in refused(service, "/api/v1/items/t/hold", raw)["message"]
    service.post("/api/v1/queue/owner/ann/pause", {"reason": "\U0001f680 caf\xe9"})
    service.post("/api/v1/queue/owner/ann/resume")


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain; charset=utf-8", "json"])
def test_a_body_with_another_content_type(service: HttpService, kind: str) -> None:
    status, answer = service.ask("POST", "/api/v1/items/t/hold", {}, headers={"Content-Type": kind})
    assert (status, answer["title"], answer["error"]) == (415, "Unsupported Media Type", "ConfigurationError")
    assert "application/json" in answer["next_step"]


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
def test_a_body_that_is_json_in_other_words(service: HttpService, kind: str) -> None:
    assert (
        service.ask("POST", "/api/v1/plan", {"task": a_task("p").to_dict()}, headers={"Content-Type": kind})[0] == 200
    )


@pytest.mark.parametrize(
    "path",
    [
        f"/api/v1/items?after={HUGE}",
        f"/api/v1/items?limit={HUGE}",
        "/api/v1/items?limit=-5",
        f"/api/v1/items/t/logs?attempt={HUGE}",
        "/api/v1/items/t/logs?attempt=-1",
        "/api/v1/items/t/logs?stream=%00",
        "/api/v1/items/%00",
        "/api/v1/items/%FF/explain",
        "/api/v1/blobs/..%2F..%2Fx",
        "/api/v1/blobs/%00",
        "/api/v1/jobs/%FF",
        "/api/v1/clusters/%FF",
        "/api/v1/items?owner=%FF&kind=%00&cluster=%FF",
    ],
)
def test_questions_that_make_no_sense(service: HttpService, path: str) -> None:
    status, answer = service.ask("GET", path)
    assert status < 500, answer
