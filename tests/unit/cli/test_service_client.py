"""Errors for an address where another program listens, nothing listens, or no answer comes."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.remote.credentials import Credentials
from ray_multicluster_scheduler.app.client_api.remote.service_errors import refusal
from ray_multicluster_scheduler.cli.service import client as cli_service
from ray_multicluster_scheduler.common.exception import NotAllowedError, ServiceUnavailableError
from ray_multicluster_scheduler.control_plane.admin_api.http import http_server
from tests.support.running_service import RunningService
from tests.unit.cli.conftest import Rmcs
from tests.unit.service.http_service import HttpService

PAGE = b"<html><head><title>Welcome to \x1b[31mnginx!</title></head><body>It works</body></html>"
ASK = [
    "status",
    "events",
    "task list",
    "task logs -f last",
    "job submit --no-wait -- true",
    "clusters",
    "plan --cpus 1",
    "trace {folder}/out.csv",
    "config show",
    "queue -o json",
    "explain t1 -o json",
]


ACTIONS = [
    "queue pause --cluster mac",
    "queue resume --owner ann",
    "clusters cordon mac",
    "clusters drain mac",
    "clusters declare-dead mac",
    "task cancel t1",
    "task priority t1 3",
    "job stop j1",
    "job delete j1",
    "owner set ann --max-running 5",
    "token revoke abc",
    "config log-level debug",
    "queue pause --owner ann -o json",
]


@contextmanager
def stranger(status: int, kind: str, data: bytes) -> Iterator[str]:
    """A server of another user's, and its address; it answers everything like this."""

    class Strange(http.server.BaseHTTPRequestHandler):
        server_version, sys_version = "nginx/1.24", ""

        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))  # who closes before may cut the answer off
            self.do_GET()

        do_PUT, do_DELETE = do_POST, do_GET  # noqa: N815 - as the server calls them

        def log_message(self, *args: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Strange) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def listener(hear: Callable[[socket.socket], object]) -> Iterator[str]:
    """Takes connections, each of which is given to ``hear``."""
    taken: list[socket.socket] = []

    def take() -> None:
        while True:
            try:
                taken.append(door.accept()[0])
            except OSError:  # it was closed
                return
            hear(taken[-1])

    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=take)
        thread.start()
        yield f"http://127.0.0.1:{door.getsockname()[1]}"
        door.shutdown(socket.SHUT_RDWR)
    thread.join()
    for one in taken:
        one.close()


@pytest.mark.parametrize("words", ASK)
@pytest.mark.parametrize(
    ("status", "kind"), [(200, "text/html"), (404, "text/html; charset=utf-8"), (302, "text/plain")]
)
def test_an_html_page_is_reported_not_printed(
    rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, status: int, kind: str
) -> None:
    with stranger(status, kind, PAGE) as address:
        monkeypatch.setenv("RMCS_ADDRESS", address)
        done = rmcs(*words.format(folder=tmp_path).split())
    assert (done.code, done.out) == (1, "")
    first, step, *_ = done.err.splitlines()
    assert first.startswith(
        f"rmcs: error: {address} answers, but not as a ray_multicluster_scheduler service: it answered"
    )
    assert f"it answered {status} " in first
    assert "an HTML page titled 'Welcome to \\x1b[31mnginx!'" in first
    assert "from nginx/1.24" in first
    assert step.startswith("What to do: check that this is the address of a service")
    assert "It works" not in done.err
    assert not list(tmp_path.iterdir()), "nothing of it is written, either"


@pytest.mark.parametrize(
    ("status", "data"),
    [(200, b'["a list"]'), (200, b"plain"), (404, b'{"message": "Not Found"}'), (401, b"no"), (500, b"")],
)
def test_other_answers_of_others(rmcs: Rmcs, status: int, data: bytes) -> None:
    with stranger(status, "application/json", data) as address:
        done = rmcs("task", "list", "--address", address)
    assert (done.code, done.out) == (1, "")
    assert f"{address} answers, but not as a ray_multicluster_scheduler service: it answered {status} " in done.err


@pytest.mark.parametrize("words", [*ASK, *ACTIONS])
@pytest.mark.parametrize("data", [b"{}", b'{"status": "ok", "changed": true, "items": []}'])
def test_a_json_object_of_another_server_is_no_answer(
    rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, data: bytes
) -> None:
    with stranger(200, "application/json", data) as address:
        monkeypatch.setenv("RMCS_ADDRESS", address)
        done = rmcs(*words.format(folder=tmp_path).split())
    assert (done.code, done.out) == (1, "")
    assert f"{address} answers, but not as a ray_multicluster_scheduler service: it answered 200 OK" in done.err
    assert not list(tmp_path.iterdir()), "nothing of it is written, either"


def test_a_change_without_changed_in_its_answer(rmcs: Rmcs) -> None:
    with stranger(200, "application/json", b'{"control_plane": "1a2b", "cluster": "mac"}') as address:
        done = rmcs("queue", "pause", "--cluster", "mac", "--address", address)
    assert (done.code, done.out) == (1, "")
    assert "The request may have been applied all the same." in done.err


def test_an_older_service_without_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rmcs: Rmcs) -> None:
    monkeypatch.setattr(http_server, "SERVICE_HEADER", "Another")
    with HttpService(tmp_path / "state") as older:
        monkeypatch.setenv("RMCS_ADDRESS", older.address)
        assert rmcs("queue", "pause", "--cluster", "mac").err == "rmcs: the queue of cluster mac is paused\n"
        assert rmcs("status").code == 0


def test_server_without_http(rmcs: Rmcs) -> None:
    with listener(lambda line: line.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")) as address:
        done = rmcs("status", "--address", address)
    assert done.code == 1
    assert "answers, but not as a ray_multicluster_scheduler service: it answered 'SSH-2.0-OpenSSH_9.6" in done.err


def test_server_without_tls(service: HttpService, rmcs: Rmcs) -> None:
    done = rmcs("status", "--address", service.address.replace("http:", "https:"))
    assert done.code == 1
    assert "does not use TLS" in done.err
    assert f"use {service.address}" in done.err


class TestSilence:
    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cli_service, "PROBE_AFTER_S", 0.4)
        monkeypatch.setattr(cli_service, "PROBE_S", 0.6)

    def test_a_server_that_accepts_and_never_answers(self, rmcs: Rmcs) -> None:
        with listener(lambda _: None) as address:
            began = time.monotonic()
            done = rmcs("status", "--address", address)
            took = time.monotonic() - began
        assert (done.code, done.out) == (1, "")
        assert f"rmcs: error: {address} accepts connections, but sent no answer within 1 s.\n" in done.err
        assert "What to do: check that a service listens there" in done.err
        assert 0.9 < took < 20

    @pytest.mark.parametrize(
        ("words", "look"),
        [
            ("queue pause --owner ann", "rmcs status"),
            ("clusters cordon mac", "rmcs clusters show mac"),
            ("config log-level debug", "rmcs config log-level"),
            ("token revoke k3v9", "rmcs token list"),
        ],
    )
    def test_an_order_that_is_not_answered_may_have_been_taken(self, rmcs: Rmcs, words: str, look: str) -> None:
        with listener(lambda _: None) as address:
            done = rmcs(*words.split(), "--address", address)
        assert (done.code, done.out) == (1, "")
        assert "sent no answer within 1 s. The request may have been applied all the same.\n" in done.err
        assert f"What to do: check its effect before you repeat it (`{look}`); else check that" in done.err

    def test_a_tls_server_that_never_answers(self, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cli_service, "_CONNECT_S", 0.5)
        with listener(lambda _: None) as address:
            done = rmcs("status", "--address", address.replace("http:", "https:"))
        assert done.code == 1
        assert "does not answer" in done.err

    def test_a_service_that_takes_long_is_waited_for(self, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
        """As long as it says to others that it lives."""
        monkeypatch.setattr(cli_service, "PROBE_S", 60.0)
        asked: list[bytes] = []

        def hear(line: socket.socket) -> None:
            asked.append(line.recv(65536))
            if b"/healthz" in asked[-1]:
                answer(line, b'{"status": "ok"}')
                answer(first[0], b'{"level": "INFO"}')
            else:
                first.append(line)

        def answer(line: socket.socket, data: bytes) -> None:
            line.sendall(b"HTTP/1.1 200 OK\r\nRmcs-Api: v1\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))

        first: list[socket.socket] = []
        with listener(hear) as address:
            done = rmcs("config", "log-level", "--address", address)
        assert (done.code, done.out, len(asked)) == (0, "INFO\n", 2)


def test_a_late_probe_does_not_cut_off_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_service, "PROBE_AFTER_S", 0.01)
    looks, late = threading.Event(), threading.Event()

    class Slow:
        def request(self, *_: str) -> None:
            looks.set()
            late.wait(60)
            raise TimeoutError

        def close(self) -> None: ...

    line, service = socket.socketpair()
    with line, service:
        with cli_service._Watchdog(line, lambda _: Slow(), "/healthz") as watch:  # type: ignore[arg-type, return-value]
            assert looks.wait(60)
        service.sendall(b"the rest")
        late.set()
        watch._timer.join()
        assert not watch.silent
        assert line.recv(100) == b"the rest"


def test_a_service_whose_process_is_stopped(rmcs: Rmcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "clusters.yaml"
    config.write_text("clusters:\n- {name: mac, dashboard: 'http://127.0.0.1:9'}\n")
    monkeypatch.setattr(cli_service, "PROBE_AFTER_S", 0.5)
    monkeypatch.setattr(cli_service, "PROBE_S", 0.5)
    with RunningService(config, tmp_path / "state") as running:
        monkeypatch.setenv("RMCS_HOME", str(running.state))
        os.kill(running.process.pid, signal.SIGSTOP)
        try:
            done = rmcs("status")
        finally:
            os.kill(running.process.pid, signal.SIGCONT)
        assert done.code == 1
        assert f"{running.address} accepts connections, but sent no answer within 1 s." in done.err
        assert "is not stopped" in done.err


def test_a_line_that_dies_without_a_word_is_noticed(service: HttpService, monkeypatch: pytest.MonkeyPatch) -> None:
    """By TCP, also while nothing is sent for long."""
    seen: list[int] = []

    class Watch(cli_service._Watchdog):
        def __init__(self, line: socket.socket, *rest: Any) -> None:
            super().__init__(line, *rest)
            seen.append(line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
            for name, most in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 5)):
                if hasattr(socket, name):
                    assert line.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) <= most

    monkeypatch.setattr(cli_service, "_Watchdog", Watch)
    cli_service.connect(service.address).get(cli_service.api_path("fleet"))
    assert seen
    assert all(seen)


def test_an_order_that_is_cut_off(rmcs: Rmcs) -> None:
    def hear(line: socket.socket) -> None:
        line.recv(65536)
        line.shutdown(socket.SHUT_RDWR)

    with listener(hear) as address:
        with pytest.raises(ServiceUnavailableError) as caught:
            cli_service.connect(address).post(cli_service.api_path("items", "a b", "cancel"))
        asked = rmcs("status", "--address", address)
    assert "may have been applied all the same" in caught.value.message
    assert "`rmcs task show a b`" in str(caught.value.next_step)
    assert "may have been applied" not in asked.err, "a question does nothing"


def test_a_request_that_was_not_sent(rmcs: Rmcs) -> None:
    done = rmcs("clusters", "cordon", "mac", "--address", "http://127.0.0.1:9")
    assert done.code == 1
    assert "may have been applied" not in done.err


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_without_an_upstream_answer(rmcs: Rmcs, status: int) -> None:
    """A service that closes a connection when it has taken an order, since it stops, is a 502."""
    with stranger(status, "text/html", PAGE) as address:
        done = rmcs("clusters", "cordon", "mac", "--address", address)
    assert "may have been applied all the same" in done.err


def test_a_refusal_of_the_service_itself(rmcs: Rmcs) -> None:
    no = {"error": "StoreFullError", "code": "STORE_FULL", "message": "There is no room."}
    with stranger(503, "application/problem+json", json.dumps(no).encode()) as address:
        done = rmcs("clusters", "cordon", "mac", "--address", address)
    assert "There is no room." in done.err
    assert "may have been applied" not in done.err


def test_a_proxy_before_a_service_that_is_away_is_asked_again() -> None:
    error = refusal("http://x", Credentials(), 502, b"<html><title>502 Bad Gateway</title></html>", "nginx")
    assert isinstance(error, ServiceUnavailableError)
    assert "does not reach the service behind it" in error.message
    not_ready = refusal("http://x", Credentials(), 503, b'{"status": "not ready", "reason": "its disk is full"}')
    assert (type(not_ready), not_ready.message) == (
        ServiceUnavailableError,
        "The service http://x is not ready: its disk is full.",
    )
    draining = refusal("http://x", Credentials(), 503, b'{"status": "not ready", "reason": "is draining"}')
    assert draining.message == "The service http://x is draining."
    assert "stderr of `rmcs up`" in str(draining.next_step)


def test_a_path_in_the_address_is_questioned(service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RMCS_TOKEN")
    done = rmcs("status", "--address", f"{service.address}/foo")
    assert (
        "What to do: leave /foo out of the address, unless the service is behind a proxy; else set RMCS_TOKEN"
        in done.err
    )
    assert "out of the address" not in rmcs("status", "--address", service.address).err


def test_a_refused_token_is_reported(service: HttpService) -> None:
    status, output = service.ask("GET", "/api/v1/fleet", token="rubbish")
    error = refusal(service.address, Credentials("rubbish", "RMCS_TOKEN"), status, json.dumps(output).encode())
    assert isinstance(error, NotAllowedError)
    assert "rejects the token from RMCS_TOKEN" in error.message
