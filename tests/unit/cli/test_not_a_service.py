"""What is said of an address where somebody else listens, nobody, or one who says nothing."""

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

import pytest

from ray_multicluster_scheduler.app.client_api.remote.credentials import Credentials
from ray_multicluster_scheduler.app.client_api.remote.refusals import refusal
from ray_multicluster_scheduler.cli import service as cli_service
from ray_multicluster_scheduler.cli import silence
from ray_multicluster_scheduler.common.exception import NotAllowedError, ServiceUnavailableError
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
]


@contextmanager
def stranger(status: int, kind: str, data: bytes) -> Iterator[str]:
    """A server of somebody else's, and its address; it answers everything like this."""

    class Strange(http.server.BaseHTTPRequestHandler):
        server_version, sys_version = "nginx/1.24", ""

        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *args: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Strange) as server:
        thread = threading.Thread(target=server.serve_forever)
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
def test_a_page_is_not_shown_but_told_of(
    rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, status: int, kind: str
) -> None:
    with stranger(status, kind, PAGE) as address:
        monkeypatch.setenv("RMCS_ADDRESS", address)
        done = rmcs(*words.format(folder=tmp_path).split())
    assert (done.code, done.out) == (1, "")
    first, step, *_ = done.err.splitlines()
    assert first.startswith(f"rmcs: error: {address} answers, but not as a ray_multicluster_scheduler service: it said")
    assert f"it said {status} " in first
    assert "a page of HTML called 'Welcome to \\x1b[31mnginx!'" in first
    assert "from nginx/1.24" in first
    assert step.startswith("What to do: see whether that is the address of a service")
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
    assert f"{address} answers, but not as a ray_multicluster_scheduler service: it said {status} " in done.err


def test_what_speaks_no_http(rmcs: Rmcs) -> None:
    with listener(lambda line: line.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")) as address:
        done = rmcs("status", "--address", address)
    assert done.code == 1
    assert "answers, but not as a ray_multicluster_scheduler service: it said 'SSH-2.0-OpenSSH_9.6" in done.err


def test_what_speaks_no_tls(service: HttpService, rmcs: Rmcs) -> None:
    done = rmcs("status", "--address", service.address.replace("http:", "https:"))
    assert done.code == 1
    assert "does not speak TLS" in done.err
    assert f"write {service.address}" in done.err


class TestSilence:
    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (silence, cli_service):
            monkeypatch.setattr(module, "SILENT_S", 0.4)
            monkeypatch.setattr(module, "LOOK_S", 0.6)

    def test_who_takes_a_connection_and_says_nothing(self, rmcs: Rmcs) -> None:
        with listener(lambda _: None) as address:
            began = time.monotonic()
            done = rmcs("status", "--address", address)
            took = time.monotonic() - began
        assert (done.code, done.out) == (1, "")
        assert f"rmcs: error: {address} takes connections, and said nothing in 1 s.\n" in done.err
        assert "What to do: see whether a service listens there" in done.err
        assert 0.9 < took < 20

    def test_who_says_nothing_in_tls(self, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cli_service, "_CONNECT_S", 0.5)
        with listener(lambda _: None) as address:
            done = rmcs("status", "--address", address.replace("http:", "https:"))
        assert done.code == 1
        assert "does not answer" in done.err

    def test_a_service_that_takes_long_is_waited_for(self, rmcs: Rmcs) -> None:
        """As long as it says to others that it lives."""
        asked: list[bytes] = []

        def hear(line: socket.socket) -> None:
            asked.append(line.recv(65536))
            if b"/healthz" in asked[-1]:
                answer(line, b'{"status": "ok"}')
                answer(first[0], b'{"level": "INFO"}')
            else:
                first.append(line)

        def answer(line: socket.socket, data: bytes) -> None:
            line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))

        first: list[socket.socket] = []
        with listener(hear) as address:
            done = rmcs("config", "log-level", "--address", address)
        assert (done.code, done.out, len(asked)) == (0, "INFO\n", 2)


def test_a_service_whose_process_is_stopped(rmcs: Rmcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "clusters.yaml"
    config.write_text("clusters:\n- {name: mac, dashboard: 'http://127.0.0.1:9'}\n")
    for module in (silence, cli_service):
        monkeypatch.setattr(module, "SILENT_S", 0.5)
        monkeypatch.setattr(module, "LOOK_S", 0.5)
    with RunningService(config, tmp_path / "state") as running:
        monkeypatch.setenv("RMCS_HOME", str(running.state))
        os.kill(running.process.pid, signal.SIGSTOP)
        try:
            done = rmcs("status")
        finally:
            os.kill(running.process.pid, signal.SIGCONT)
        assert done.code == 1
        assert f"{running.address} takes connections, and said nothing in 1 s." in done.err
        assert "stopped or hangs" in done.err


def test_a_proxy_before_a_service_that_is_away_is_asked_again() -> None:
    error = refusal("http://x", Credentials(), 502, b"<html><title>502 Bad Gateway</title></html>", "nginx")
    assert isinstance(error, ServiceUnavailableError)
    assert "does not reach the service behind it" in error.message
    not_ready = refusal("http://x", Credentials(), 503, b'{"status": "not ready", "reason": "its disk is full"}')
    assert (type(not_ready), not_ready.message) == (
        ServiceUnavailableError,
        "The service http://x is not ready: its disk is full.",
    )


def test_a_token_that_is_refused_by_a_service_is_told_as_such(service: HttpService) -> None:
    status, said = service.ask("GET", "/api/v1/fleet", token="rubbish")
    error = refusal(service.address, Credentials("rubbish", "RMCS_TOKEN"), status, json.dumps(said).encode())
    assert isinstance(error, NotAllowedError)
    assert "does not take the token from RMCS_TOKEN" in error.message
