"""What clients who mean no good, or are just slow, can take from a service: over real sockets."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import websockets.exceptions
from websockets.sync.client import connect

from ray_multicluster_scheduler.control_plane.admin_api.http import http_server
from ray_multicluster_scheduler.control_plane.admin_api.http.uvicorn_protocols import HttpLimits
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import MAX_BYTES
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService
from tests.unit.service.raw_client import RawClient

SOON = HttpLimits(head_s=1.5, body_s=1.5, body_bytes=100)
ASK = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = "POST /api/v1/items HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpService]:
    with HttpService(tmp_path_factory.mktemp("bounds") / "state") as service:
        yield service


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpService]:
    with HttpService(tmp_path_factory.mktemp("impatient") / "state", http_limits=SOON) as service:
        yield service


@pytest.fixture
def client(service: HttpService) -> Iterator[RawClient]:
    with RawClient(service) as client:
        yield client


@pytest.fixture
def slow(impatient: HttpService) -> Iterator[RawClient]:
    with RawClient(impatient) as client:
        yield client


def problem(client: RawClient, status: int) -> None:
    """Is that the answer, as a problem document, and the end?"""
    found, output = client.answer()
    assert found == status, output
    assert output["status"] == status
    assert output["code"]
    assert output["next_step"]
    assert client.is_cut_off()


# ---- headers


def test_a_body_whose_declared_length_is_too_large_is_refused_before_it_is_sent(client: RawClient) -> None:
    client.say("POST /api/v1/items HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
    status, output = client.answer()
    assert (status, output["code"]) == (413, "TOO_LARGE")


def test_as_many_headers_as_anybody_needs(client: RawClient) -> None:
    client.say(ASK + "".join(f"X-{number}: {number}\r\n" for number in range(90)) + "\r\n")
    assert client.answer()[0] == 200
    client.say(ASK + f"X-Long: {'x' * 60_000}\r\n\r\n")
    assert client.answer()[0] == 200


def test_too_many_headers(client: RawClient) -> None:
    client.say(ASK + "".join(f"X-{number}: {number}\r\n" for number in range(200)) + "\r\n")
    problem(client, 431)


def test_headers_that_are_too_large(client: RawClient) -> None:
    client.say(ASK + f"X-Long: {'x' * 100_000}\r\n\r\n")
    problem(client, 431)


def test_an_address_that_is_too_long(client: RawClient) -> None:
    client.say(f"GET /{'x' * 100_000} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    problem(client, 431)


def test_a_header_that_does_not_end(client: RawClient) -> None:
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)  # little is under way that nobody has read
    client.say(ASK + "X-Long: ")
    sent = 0
    try:
        while sent < 2**22:
            client.say(b"x" * 8_192)
            sent += 8_192
            time.sleep(0.002)
    except OSError:
        pass
    assert sent < 2**20
    assert client.is_cut_off()


def test_malformed_http_is_rejected(client: RawClient) -> None:
    client.say(b"\x16\x03\x01\x02\x00\x01\x00\xff\r\n\r\n")
    problem(client, 400)


def test_one_that_asks_too_much_disturbs_nobody(service: HttpService) -> None:
    with RawClient(service) as bad, RawClient(service) as good:
        bad.say(ASK + "".join(f"X-{number}: {number}\r\n" for number in range(200)) + "\r\n")
        good.say(ASK + "\r\n")
        assert good.answer()[0] == 200
        bad_one = bad.answer()[0]
        good.say(ASK + "\r\n")
        assert (bad_one, good.answer()[0]) == (431, 200)


# ---- what comes slowly


def test_headers_byte_by_byte(slow: RawClient) -> None:
    slow.say(ASK)
    assert slow.trickle(b"X-A: b\r\n", 0.05, 60) < 30
    problem(slow, 408)


def test_headers_of_a_later_request_byte_by_byte(slow: RawClient) -> None:
    slow.say(ASK + "\r\n")
    assert slow.answer()[0] == 200
    slow.say(ASK)
    assert slow.trickle(b"X-A: b\r\n", 0.05, 60) < 30
    problem(slow, 408)


def test_empty_lines_byte_by_byte(slow: RawClient) -> None:
    assert slow.trickle(b"\r\n", 0.05, 60) < 30
    assert slow.is_cut_off()


def test_a_silent_connection_is_closed(slow: RawClient) -> None:
    assert slow.is_cut_off()


def test_a_body_that_does_not_come(slow: RawClient) -> None:
    slow.say(POST + "Content-Length: 100\r\n\r\n")
    problem(slow, 408)


def test_a_body_byte_by_byte(slow: RawClient) -> None:
    slow.say(POST + "Content-Length: 100000\r\n\r\n")
    assert slow.trickle(b" ", 0.05, 60) < 30
    problem(slow, 408)


def test_a_body_in_pieces_that_come(slow: RawClient) -> None:
    body = json.dumps({"client": "me", "timeout": 0, "add": [], "fill": "x" * 2_000}).encode()
    slow.say(POST.replace("items", "wait") + f"Content-Length: {len(body)}\r\n\r\n")
    for at in range(0, len(body), 200):
        slow.say(body[at : at + 200])
        time.sleep(0.18)
    status, output = slow.answer()
    assert status in (200, 422), output
    slow.say(ASK + "\r\n")  # longer ago than any limit, and idle is not slow
    time.sleep(1.7)
    assert slow.answer()[0] == 200


def test_long_poll_is_not_closed_as_slow(slow: RawClient) -> None:
    body = b'{"client": "patient", "add": [], "timeout": 2.0}'
    slow.say(POST.replace("items", "wait") + f"Content-Length: {len(body)}\r\n\r\n")
    slow.say(body)
    assert slow.answer()[0] == 200


def test_readers_of_events_are_not_slow(impatient: HttpService) -> None:
    with connect(f"ws://127.0.0.1:{impatient.port}/api/v1/ws") as socket_:
        with RawClient(impatient) as stream:
            stream.say("GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert not stream.is_cut_off(within=2.0)
        socket_.send("ping")
        assert socket_.recv(timeout=60) == '{"type":"pong"}'


# ---- many


def test_a_thousand_idle_connections(service: HttpService) -> None:
    http_server.possible_connections(2_600)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2_600:
        pytest.skip("this machine lets nobody open so many files")
    idle = [socket.create_connection(("127.0.0.1", service.port), 20) for _ in range(1_000)]
    try:
        until(lambda: len(service._server.server_state.connections) >= 1_000)
        begun = time.monotonic()
        for number in range(20):
            service.submit(f"among-many-{number}", 0)
            assert service.get(f"/api/v1/items/among-many-{number}")["id"] == f"among-many-{number}"
        assert time.monotonic() - begun < 30
    finally:
        for one in idle:
            one.close()
    until(lambda: len(service._server.server_state.connections) < 50)


def test_more_connections_than_are_allowed(tmp_path: Path) -> None:
    with HttpService(tmp_path / "state", http_limits=HttpLimits(connections=3)) as service:
        few = [RawClient(service) for _ in range(3)]
        for one in few:
            one.say(ASK + "\r\n")
            assert one.answer()[0] == 200
        with RawClient(service) as late:
            late.say(ASK + "\r\n")
            problem(late, 503)
        few[0].say(ASK + "\r\n")
        assert few[0].answer()[0] == 200
        few.pop().socket.close()
        until(lambda: len(service._server.server_state.connections) < 3)
        assert service.get("/healthz")
        for one in few:
            one.socket.close()


def test_as_many_connections_as_files(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1_024, 4_096)]
    fake = SimpleNamespace(
        RLIMIT_NOFILE=resource.RLIMIT_NOFILE,
        RLIM_INFINITY=resource.RLIM_INFINITY,
        getrlimit=lambda _: limits[-1],
        setrlimit=lambda _, both: limits.append(both),
    )
    monkeypatch.setattr(http_server, "resource", fake)
    assert http_server.possible_connections(2_000) == 2_000
    assert limits[-1] == (2_500, 4_096)
    assert http_server.possible_connections(10_000) == 4_096 - 500
    assert limits[-1] == (4_096, 4_096)


# ---- bodies


def test_a_body_that_is_too_large(client: RawClient) -> None:
    client.say(POST + f"Content-Length: {MAX_BYTES + 10_000_000}\r\n\r\n")
    try:
        for _ in range(MAX_BYTES // 2**20 + 2):
            client.say(b" " * 2**20)
    except OSError:
        pass
    status, output = client.answer()
    assert status in (413, 0), output


def test_a_body_that_is_too_deep_or_no_text(service: HttpService) -> None:
    for data in (b"[" * 100_000, b'{"a":' * 50_000 + b"1" + b"}" * 50_000, b'{"a": "\xff\xfe"}', b"\xff" * 10):
        status, output = service.ask("POST", "/api/v1/items", data=data)
        assert status == 422, output
        assert output["code"]


def test_a_number_with_very_many_digits(service: HttpService) -> None:
    many = "9" * 5_000
    for path in (f"/api/v1/items?limit={many}", f"/api/v1/items?after={many}"):
        assert service.ask("GET", path)[0] in (200, 422)
    assert service.ask("GET", f"/api/v1/events?since={many}")[0] == 422
    with RawClient(service) as stream:
        stream.say(f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nLast-Event-ID: {many}\r\n\r\n")
        assert stream.answer()[0] == 200
    with connect(f"ws://127.0.0.1:{service.port}/api/v1/ws?since={many}") as socket_:
        socket_.send(json.dumps({"type": "subscribe", "since": many}))
        socket_.send("ping")
        reported = ""
        while reported != "pong":
            reported = json.loads(socket_.recv(timeout=60))["type"]
            assert reported in ("reset", "pong")


# ---- paths


@pytest.mark.parametrize(
    "name",
    [
        "..%2f..%2fetc%2fpasswd",
        "..%2ftoken",
        "..%2frmcs.db",
        "../token",
        "../../../../etc/passwd",
        "%2e%2e/%2e%2e/token",
        "..%5c..%5ctoken",
        "%2fetc%2fpasswd",
        "....//token",
        "..%00",
        "%c0%ae%c0%ae%2ftoken",
    ],
)
@pytest.mark.parametrize("before", ["/api/v1/blobs/", "/api/v1/items/", "/api/v1/clusters/", "/api/v1/jobs/"])
def test_nothing_outside_is_read(service: HttpService, before: str, name: str) -> None:
    secret = service.plane.folder / "token"
    secret.write_text("very-secret")
    with RawClient(service) as client:
        client.say(f"GET {before}{name} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        status, output = client.answer()
    assert status in (400, 404, 422), output
    assert "very-secret" not in str(output)
    assert "root:" not in str(output)


@pytest.mark.parametrize("name", ["..%2f..%2fescaped", "%2ftmp%2fescaped", "..%2ftoken"])
def test_nothing_outside_is_written(service: HttpService, name: str) -> None:
    before = sorted(service.plane.folder.parent.rglob("*escaped*"))
    assert service.ask("PUT", f"/api/v1/blobs/{name}", data=b"payload")[0] in (404, 422)
    assert sorted(service.plane.folder.parent.rglob("*escaped*")) == before


# ---- web sockets


def test_a_message_that_is_too_large(service: HttpService) -> None:
    with connect(f"ws://127.0.0.1:{service.port}/api/v1/ws") as socket_:
        socket_.send("x" * 60_000)
        assert json.loads(socket_.recv(timeout=60))["type"] == "error"
        socket_.send("x" * 70_000)
        with pytest.raises(websockets.exceptions.ConnectionClosed) as closed:
            socket_.recv(timeout=60)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
    until(lambda: len(service.plane.runtime.event_publisher.hub) == 0)


# ---- readers who do not read


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has it")
def test_a_client_that_reads_nothing_is_disconnected_in_the_end(service: HttpService) -> None:
    with RawClient(service) as client:
        client.say(ASK + "\r\n")
        assert client.answer()[0] == 200

        def options() -> list[int]:
            found = [one.transport.get_extra_info("socket") for one in service._server.server_state.connections]
            return [one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) for one in found]

        assert set(service.plane.runtime.call_and_wait(options)) == {60_000}


def test_a_stream_reset_leaves_nothing_behind(service: HttpService) -> None:
    for _ in range(20):
        with RawClient(service) as client:
            client.say("GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert client.answer()[0] == 200
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: len(service.plane.runtime.event_publisher.hub) == 0)
    loop = service.plane.runtime._loop
    until(lambda: service.plane.runtime.call_and_wait(lambda: len(asyncio.all_tasks(loop))) < 10)
