"""Every refusal, and every defect, is answered with a problem document: what happened, a code, and what to do."""

from __future__ import annotations

import http.client
import importlib
import json
import logging
import pkgutil
import re
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

import ray_multicluster_scheduler
from ray_multicluster_scheduler.app.client_api.remote.credentials import Credentials
from ray_multicluster_scheduler.app.client_api.remote.service_errors import refusal
from ray_multicluster_scheduler.common.exception import (
    ClusterConnectionError,
    SchedulerError,
    code_of,
    error_from_problem,
)
from ray_multicluster_scheduler.control_plane.admin_api.http.middleware import ErrorMiddleware
from ray_multicluster_scheduler.control_plane.admin_api.http.problems import problem_of
from ray_multicluster_scheduler.control_plane.admin_api.routes import request_parsing
from ray_multicluster_scheduler.control_plane.runtime import wire
from ray_multicluster_scheduler.control_plane.runtime.service.stored_arguments import MissingBlobs
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import LinkProblem
from tests.unit.service.http_service import HttpService, body
from tests.unit.service.service_plane import a_task


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpService]:
    with HttpService(tmp_path_factory.mktemp("problems") / "state") as one:
        yield one


def ask(service: HttpService, verb: str, path: str, sent: bytes | None = None) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
    try:
        connection.request(verb, path, sent, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.headers["content-type"] == "application/problem+json"
        output: dict[str, Any] = json.loads(answer.read())
    finally:
        connection.close()
    assert output["status"] == answer.status
    assert output["title"] == http.HTTPStatus(answer.status).phrase, "RFC 9457 asks for it, with about:blank"
    assert all(output[key] for key in ("type", "title", "detail", "code", "error", "message", "next_step")), output
    return answer.status, output


@pytest.mark.parametrize(
    ("verb", "path", "sent", "status", "code"),
    [
        ("GET", "/api/v1/nowhere", None, 404, "NOT_FOUND"),
        ("GET", "/%ff%fe", None, 404, "NOT_FOUND"),
        ("GET", "/../../etc/passwd", None, 404, "NOT_FOUND"),
        ("DELETE", "/api/v1/items", None, 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/api/v1/items?limit=many", None, 422, "CONFIGURATION"),
        ("GET", "/api/v1/items?after=x", None, 422, "CONFIGURATION"),
        ("GET", "/api/v1/items?after=%C2%B2", None, 422, "CONFIGURATION"),
        ("GET", "/api/v1/items/nobody", None, 404, "UNKNOWN_ITEM"),
        ("POST", "/api/v1/items", b"{", 422, "CONFIGURATION"),
        ("POST", "/api/v1/items", b'{"task": "\xff"}', 422, "CONFIGURATION"),
        ("POST", "/api/v1/items", b'{"task": ' + b"[" * 100_000, 422, "CONFIGURATION"),
        ("POST", "/api/v1/items/nobody/cancel", b"{}", 404, "UNKNOWN_ITEM"),
        ("POST", "/api/v1/plan", b"[1]", 422, "CONFIGURATION"),
    ],
)
def test_a_refusal(service: HttpService, verb: str, path: str, sent: bytes | None, status: int, code: str) -> None:
    found, output = ask(service, verb, path, sent)
    assert (found, output["code"]) == (status, code)


@pytest.mark.parametrize("key", ["id", "runtime_env", "job", "tags"])
@pytest.mark.parametrize("depth", [100, 850, 950])
def test_what_is_deep_is_refused_wherever_it_is(service: HttpService, key: str, depth: int) -> None:
    task = {"id": "deep", "kind": "job", "name": "n", "job": {"entrypoint": "ls"}, key: "HERE"}
    deep = '{"a":' * depth + "1" + "}" * depth
    sent = json.dumps({"task": task}).replace('"HERE"', deep).encode()
    assert ask(service, "POST", "/api/v1/items", sent)[0] == 422
    assert ask(service, "POST", "/api/v1/plan", sent)[0] == 422


def test_a_runtime_env_of_a_few_levels_is_taken(service: HttpService) -> None:
    env = {"pip": {"packages": ["a", {"b": ["c"]}]}}
    assert service.post("/api/v1/items", body(a_task("env", 0, runtime_env=env)))["id"] == "env"


def test_a_body_that_is_too_large(service: HttpService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_parsing.bytes_of, "__defaults__", (1000,))
    for path in ("/api/v1/items", "/api/v1/items/t/cancel"):
        status, output = ask(service, "POST", path, b"[" + b" " * 2000 + b"]")
        assert (status, output["code"], output["error"]) == (413, "TOO_LARGE", "TaskSubmissionError")


@pytest.mark.parametrize(("verb", "path"), [("POST", "/api/v1/items"), ("GET", "/api/v1/fleet")])
def test_a_defect_is_in_the_log_and_not_in_the_answer(
    service: HttpService,
    verb: str,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def defect(*_: object) -> object:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(type(service.plane.runtime), "accept", defect)
    monkeypatch.setattr(type(service.plane.runtime), "homes", property(defect))
    with caplog.at_level(logging.ERROR, "ray_multicluster_scheduler"):
        status, output = ask(service, verb, path, json.dumps(body(a_task("t"))).encode())
    assert (status, output["code"]) == (500, "DEFECT")
    assert "secret" not in json.dumps(output)
    assert "ZeroDivision" not in json.dumps(output)
    (record,) = [one for one in caplog.records if output["id"] in one.getMessage()]
    assert record.exc_info is not None
    assert "a secret" in str(record.exc_info[1])


async def test_half_an_answer_is_not_finished_as_if_it_were_whole() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        raise ZeroDivisionError

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await StreamingResponse(pieces())({**scope, "asgi": {"spec_version": "2.4"}}, receive, send)

    reported = []

    async def send(message: Any) -> None:
        reported.append(message["type"])

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    with pytest.raises(ZeroDivisionError):
        await ErrorMiddleware(app)({"type": "http", "method": "GET", "path": "/"}, receive, send)
    assert reported == ["http.response.start", "http.response.body"]


async def test_a_disconnect_in_the_middle_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Request(scope, receive).body()

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None:
        raise AssertionError("nobody listens")

    with caplog.at_level(logging.INFO):
        await ErrorMiddleware(app)({"type": "http", "method": "POST", "path": "/", "headers": []}, receive, send)
    assert not caplog.records


def test_what_is_no_http_at_all_is_refused(service: HttpService) -> None:
    with socket.create_connection(("127.0.0.1", service.port), 20) as connection:
        connection.sendall(b"\xff\xfe nonsense\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 400")
    assert service.get("/readyz")["status"] == "ready"


def test_codes_are_named_as_errors_are() -> None:
    assert [code_of(name) for name in ("UnknownItemError", "SchedulerError", "MissingBlobs", "TooLarge")] == [
        "UNKNOWN_ITEM",
        "SCHEDULER",
        "MISSING_BLOBS",
        "TOO_LARGE",
    ]


def _kinds(base: type[SchedulerError]) -> Iterator[type[SchedulerError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


def test_every_error_arrives_as_one_that_its_reader_can_catch() -> None:
    package = ray_multicluster_scheduler
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not re.search(
            r"__main__|\.gateway|\.connector|\.native|\.mesh", module.name
        ):  # those are for Ray's processes
            importlib.import_module(module.name)
    kinds = [kind for kind in _kinds(SchedulerError) if kind.__module__.startswith(package.__name__)]
    assert {DashboardProblem, LinkProblem, MissingBlobs} <= set(kinds)
    for kind in kinds:
        back = type(error_from_problem({"error": wire.public_error_name(kind), "message": "m"}))
        assert issubclass(kind, back)
        assert back is not SchedulerError or kind.__bases__ == (SchedulerError,), f"{kind} is reported as nothing"


def test_a_cluster_that_does_not_answer_raises_the_documented_error() -> None:
    error = DashboardProblem("the dashboard is down", code="DASHBOARD_DOWN", cluster="mac", next_step="look at it")
    output = problem_of(error)
    assert (output["status"], output["error"], output["code"]) == (502, "ClusterConnectionError", "DASHBOARD_DOWN")
    back = refusal("http://127.0.0.1:8000", Credentials(), 502, json.dumps(output).encode())
    assert type(back) is ClusterConnectionError
    assert (back.message, back.cluster, back.next_step) == ("the dashboard is down", "mac", "look at it")
