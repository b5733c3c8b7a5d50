"""What is submitted takes a shorter way than other questions, and is answered as if it did not."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.control_plane.runtime import wire
from tests.unit.service.http_service import HttpService, body
from tests.unit.service.service_plane import BLOBS, a_task

WAYS = ("/api/v1/items", "/api/v1/items/batch", "/api/v1/wait", "/api/v1/calls")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpService]:
    with HttpService(tmp_path_factory.mktemp("short") / "state") as one:
        yield one


def ask(service: HttpService, verb: str, path: str, sent: bytes) -> tuple[int, str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
    try:
        connection.request(verb, path, sent, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.headers["content-type"], json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize("path", WAYS)
@pytest.mark.parametrize("sent", [b"{", b"[]", b"\xff", b'{"items": 5}', b'{"items": [], "blobs": {"x": 5}}'])
def test_a_body_that_is_none_is_answered_with_a_problem(service: HttpService, path: str, sent: bytes) -> None:
    status, kind, output = ask(service, "POST", path, sent)
    assert status == output["status"] == 422
    assert output["error"] == "ConfigurationError"
    assert output["next_step"]
    assert kind == "application/problem+json" or (path, sent) == (WAYS[0], b'{"items": 5}')  # it has no task


def test_waiting_callers_are_answered(service: HttpService) -> None:
    status, kind, output = ask(service, "POST", "/api/v1/wait", b'{"client": "me", "timeout": 0}')
    assert (status, kind, output["items"]) == (200, "application/json", [])


@pytest.mark.parametrize("path", WAYS)
def test_other_verbs_take_the_long_way(service: HttpService, path: str) -> None:
    status, kind, output = ask(service, "PUT", path, b"{}")
    assert (status, kind, output["status"]) == (405, "application/problem+json", 405)


@pytest.mark.parametrize("path", WAYS)
def test_parameters_are_refused_here_too(service: HttpService, path: str) -> None:
    status, kind, output = ask(service, "POST", f"{path}?timeout=5", b'{"client": "me", "timeout": 0}')
    assert (status, kind) == (422, "application/problem+json")
    assert "'timeout'" in output["message"]


def test_one_that_is_refused_does_not_harm_the_others(service: HttpService) -> None:
    items = [{"task": a_task("u1").to_dict()}, {"task": {**a_task("u2").to_dict(), "retries": -1}}, {}]
    sent = json.dumps({"items": items, "blobs": wire.bytes_to_wire(BLOBS)}).encode()
    status, _, output = ask(service, "POST", WAYS[1], sent)
    assert (status, [one.get("id") for one in output["items"]]) == (200, ["u1", None, None])
    assert [one["problem"]["status"] for one in output["items"][1:]] == [422, 422]
    assert {one.new.id for one in service.plane.store.open_items()} >= {"u1"}


def test_nothing_is_taken_after_the_end(tmp_path: Path) -> None:
    with HttpService(tmp_path / "state") as service:
        service.plane.runtime.refuse("is draining and takes nothing new")
        status, kind, output = ask(service, "POST", WAYS[0], json.dumps(body(a_task("t"))).encode())
        assert (status, kind, output["error"]) == (503, "application/problem+json", "ServiceUnavailableError")


def test_openapi_describes_fast_path_routes(service: HttpService) -> None:
    paths = service.app.openapi()["paths"]
    assert all("post" in paths[path] and paths[path]["post"]["description"] for path in WAYS)
