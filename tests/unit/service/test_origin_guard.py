"""A web page in a user's browser must not run code on the clusters, although it has the address of that machine."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.unit.service.http_service import HttpService, body
from tests.unit.service.service_plane import a_task


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpService]:
    with HttpService(tmp_path_factory.mktemp("local") / "state", origins=["https://page.example"]) as one:
        yield one


def ask(service: HttpService, headers: dict[str, str], name: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
    try:
        connection.request("POST", "/api/v1/items", json.dumps(body(a_task(name))), headers)
        answer = connection.getresponse()
        output = json.loads(answer.read())
        assert answer.status == 200 or output["next_step"]
        return answer.status
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json"}, 200),
        ({"Content-Type": "application/json; charset=utf-8", "Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Content-Type": "application/json", "Origin": "http://localhost:3000"}, 403),
        ({"Content-Type": "application/json", "Origin": "http://127.0.0.1:9"}, 403),
        ({"Content-Type": "application/json", "Origin": "https://127.0.0.1:{port}"}, 403),
        ({"Content-Type": "application/json", "Origin": "https://page.example"}, 200),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json", "Origin": "http://evil.example"}, 403),
        ({"Content-Type": "application/json", "Origin": "null"}, 403),
        ({"Content-Type": "application/json", "Origin": "http://[::1"}, 403),
        ({"Content-Type": "application/json", "Host": "evil.example"}, 403),
        ({"Content-Type": "application/json", "Host": "[::1]:8000"}, 200),
        ({"Origin": "http://127.0.0.1"}, 403),
    ],
)
def test_origins_that_may_submit(service: HttpService, headers: dict[str, str], status: int) -> None:
    name = f"t-{abs(hash(tuple(headers.items())))}"
    headers = {key: value.replace("{port}", str(service.port)) for key, value in headers.items()}
    assert ask(service, headers, name) == status
    assert (service.plane.store.item(name) is not None) is (status == 200)


@pytest.mark.parametrize("verb", ["POST", "PUT", "DELETE"])
def test_pages_of_another_port_change_nothing(service: HttpService, verb: str) -> None:
    status, output = service.ask(verb, "/api/v1/items/x", {}, headers={"Origin": "http://127.0.0.1:9"})
    assert (status, output["code"]) == (403, "CONFIGURATION")


def test_nor_do_they_get_a_socket(service: HttpService) -> None:
    address = f"ws://127.0.0.1:{service.port}/api/v1/ws"
    with pytest.raises(InvalidStatus, match="403"):
        connect(address, origin=Origin("http://127.0.0.1:9"))
    for origin in (service.address, "https://page.example", None):
        with connect(address, origin=None if origin is None else Origin(origin)) as line:
            assert line.request is not None


def test_a_time_that_was_not_given_is_that_of_acceptance(service: HttpService, tmp_path: Path) -> None:
    output = body(a_task("untimed"))
    output["task"].pop("submitted_at")
    service.post("/api/v1/items", output)
    stored = service.plane.store.item("untimed")
    assert stored is not None
    assert stored.new.submitted_at > 1e9
