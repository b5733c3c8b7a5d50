"""`rmcs up` and `rmcs down`: real processes on a free port; the one cluster is at a port where nobody listens."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.admin_api.http.http_server import listen
from ray_multicluster_scheduler.control_plane.admin_api.http.listen_address import ListenAddress
from ray_multicluster_scheduler.control_plane.admin_api.serve import serve
from ray_multicluster_scheduler.control_plane.config import load_config
from ray_multicluster_scheduler.control_plane.runtime.service.address_changes import store_addresses
from ray_multicluster_scheduler.control_plane.store import SqliteStore
from ray_multicluster_scheduler.control_plane.store.state_folder import StateFolder, StopRequest, holder, request_stop
from tests.unit.client_api.control_plane import fleet, until
from tests.unit.service.service_plane import ServicePlane, a_job, running

ROOT = Path(__file__).resolve().parents[3]
RMCS = ("-m", "ray_multicluster_scheduler")
CLUSTERS = "clusters:\n  - {name: mac, dashboard: 'http://127.0.0.1:9'}\n"


class Folder:
    """A configuration, and a state folder beside it."""

    def __init__(self, path: Path) -> None:
        self.config, self.state = path / "clusters.yaml", path / "state"
        self.config.write_text(CLUSTERS)
        self.processes: list[subprocess.Popen[bytes]] = []

    def rmcs(self, *words: str, program: Sequence[str] = RMCS) -> subprocess.Popen[bytes]:
        command = [sys.executable, *program, *words, "--state", str(self.state)]
        with open(self.log_of(len(self.processes)), "w") as file:
            process = subprocess.Popen(command, cwd=ROOT, stderr=file)
        self.processes.append(process)
        return process

    def log_of(self, number: int) -> Path:
        return self.config.with_name(f"{number}.log")

    def output(self, process: subprocess.Popen[bytes]) -> str:
        """All that it said, when it is over."""
        process.wait(60)
        return self.log_of(self.processes.index(process)).read_text()

    def up(self, *words: str, program: Sequence[str] = RMCS) -> tuple[subprocess.Popen[bytes], str]:
        """A service that is ready, and its address."""
        process = self.rmcs("up", "--config", str(self.config), "--port", "0", *words, program=program)
        until(lambda: process.poll() is not None or "address" in (holder(self.state) or {}), 60)
        output = holder(self.state)
        assert output is not None, self.output(process)
        assert output["pid"] == process.pid
        return process, output["address"]

    @property
    def headers(self) -> dict[str, str]:
        token = (self.state / "token").read_text().strip()
        return {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path)
    yield folder
    for process in folder.processes:
        if process.poll() is None:
            process.kill()
        process.wait(60)


def test_up_and_down_and_up_again(folder: Folder) -> None:
    process, address = folder.up()
    with urlopen(f"{address}/readyz", timeout=10) as response:
        assert json.load(response) == {"status": "ready"}
    second = folder.rmcs("up", "--config", str(folder.config), "--port", "0")
    output = folder.output(second)
    assert second.returncode != 0
    assert str(process.pid) in output
    assert address in output
    assert "Traceback" not in output
    down = folder.rmcs("down")
    assert down.wait(60) == 0
    assert process.wait(60) == 0
    assert "rmcs: stopped; 0 items unfinished" in folder.output(process)
    assert holder(folder.state) is None
    with urlopen(f"{folder.up()[1]}/healthz", timeout=10) as response:
        assert response.status == 200


def test_doubtful_settings_are_reported_at_the_start(folder: Folder) -> None:
    more = "  - {name: also, dashboard: 'http://127.0.0.1:9', auth_token_path: /nowhere/token}\n"
    folder.config.write_text(CLUSTERS + more)
    process, _ = folder.up()
    process.send_signal(signal.SIGTERM)
    output = folder.output(process)
    assert "mac and also are one cluster under several names" in output
    assert "auth_token_path of cluster also is /nowhere/token, which cannot be read: No such file" in output


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load), ("table", str.strip)])
def test_down_reports_what_it_has_stopped_to_programs(folder: Folder, form: str, read: Callable[[str], object]) -> None:
    process, address = folder.up()
    command = [sys.executable, "-m", "ray_multicluster_scheduler", "down", "--state", str(folder.state), "-o", form]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    reported = {"state": str(folder.state), "process": process.pid, "address": address}
    assert read(done.stdout) == (str(folder.state) if form == "table" else reported)
    assert done.stderr == f"rmcs: the service (process {process.pid}) has stopped\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(folder: Folder, number: signal.Signals) -> None:
    process, _ = folder.up("--drain", "5")
    process.send_signal(number)
    assert process.wait(30) == 0
    SqliteStore(folder.state).close()


A_SIGNAL_AT_EVERY_LINE = """
import signal, sys
from ray_multicluster_scheduler.control_plane.admin_api import serve

def tracer(frame, event, arg):
    if event == "line":
        signal.raise_signal(signal.SIGTERM)
    return tracer

with serve._StopSignal() as stop:
    sys.settrace(tracer)
    heard = stop.wait(60)
    sys.settrace(None)
    print(heard)
"""


def test_a_signal_that_comes_as_the_wait_begins_is_handled() -> None:
    command = [sys.executable, "-c", A_SIGNAL_AT_EVERY_LINE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "True\n"


def test_sighup_reads_the_configuration_again(folder: Folder) -> None:
    process, address = folder.up()

    def clusters() -> list[str]:
        with urlopen(Request(f"{address}/api/v1/fleet", headers=folder.headers), timeout=10) as response:
            found: list[str] = json.load(response)["clusters"]
            return found

    assert clusters() == ["mac"]
    folder.config.write_text(f"{CLUSTERS}  - {{name: linux, dashboard: 'http://127.0.0.1:10'}}\n")
    process.send_signal(signal.SIGHUP)
    until(lambda: clusters() == ["mac", "linux"], 30)
    folder.config.write_text("nonsense")
    process.send_signal(signal.SIGHUP)
    until(lambda: "the configuration was not changed" in folder.log_of(0).read_text(), 30)
    assert clusters() == ["mac", "linux"]
    process.terminate()
    assert process.wait(30) == 0


def test_down_lets_it_drain_and_again_stops_it_at_once(folder: Folder) -> None:
    process, address = folder.up()
    job = {"id": "j", "kind": "job", "name": "j", "job": {"entrypoint": "true"}, "start_after": 5e9}
    output = json.dumps({"task": job}).encode()
    request = Request(f"{address}/api/v1/items", output, folder.headers)
    with urlopen(request, timeout=10) as response:
        assert response.status == 200
    first = folder.rmcs("down", "--drain", "600")
    log = folder.log_of(0)
    until(lambda: "draining: 1 items are unfinished; at most 600 s" in log.read_text(), 30)
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    assert "continues to drain, and then stops, within 600 s; see `rmcs status`" in folder.output(first)
    asked = [sys.executable, "-m", "ray_multicluster_scheduler", "status", "--address", address]
    known = {**os.environ, "RMCS_HOME": str(folder.state)}
    status = subprocess.run(asked, cwd=ROOT, env=known, capture_output=True, text=True, timeout=60, check=True)
    assert status.stdout.splitlines()[1] == "The service is draining and accepts no new work."
    second = folder.rmcs("down", "--drain", "600")
    assert (second.wait(60), process.wait(60)) == (0, 0)
    output = folder.output(second)
    assert "the service is draining already; the second request stops it at once" in output
    assert "waits up to" not in output
    assert "rmcs: stopped; 1 item unfinished, which the next start continues" in folder.output(process)


def test_a_cluster_that_was_moved_with_a_job_that_is_not_over(folder: Folder) -> None:
    with ServicePlane(folder.state) as plane:
        store_addresses(plane.store, load_config(folder.config).clusters)
        running(plane.taken(a_job("j1")))
    folder.config.write_text(CLUSTERS.replace(":9", ":10"))
    refused = folder.rmcs("up", "--config", str(folder.config), "--port", "0")
    output = folder.output(refused)
    assert refused.returncode == 2
    assert (
        "was http://127.0.0.1:9 when the service ran last, and is http://127.0.0.1:10 now, but j1 has not ended"
        in output
    )
    assert "Traceback" not in output
    process, _ = folder.up("--moved", "mac")
    process.terminate()
    assert process.wait(30) == 0


TOLD_AGAIN_AS_SOON_AS_IT_DRAINS = """
import os, signal, sys
from ray_multicluster_scheduler.control_plane.store.state_folder import StateFolder
from ray_multicluster_scheduler.main import main

announce = StateFolder.announce

def announce_and_signal(self, **values):
    announce(self, **values)
    if values.get("draining"):
        os.kill(os.getpid(), signal.SIGTERM)

StateFolder.announce = announce_and_signal
sys.exit(main(sys.argv[1:]))
"""


def test_a_second_request_counts_once_the_drain_is_announced(folder: Folder) -> None:
    process, address = folder.up(program=["-c", TOLD_AGAIN_AS_SOON_AS_IT_DRAINS])
    job = {"id": "j", "kind": "job", "name": "j", "job": {"entrypoint": "true"}, "start_after": 5e9}
    request = Request(f"{address}/api/v1/items", json.dumps({"task": job}).encode(), folder.headers)
    with urlopen(request, timeout=10) as response:
        assert response.status == 200
    folder.rmcs("down", "--drain", "600")
    assert process.wait(60) == 0
    assert "rmcs: stopped; 1 item unfinished, which the next start continues" in folder.output(process)


def test_a_stop_request_is_for_one_process_only(tmp_path: Path) -> None:
    request_stop(tmp_path, os.getpid(), StopRequest(5.0, 7.0))  # before it was there: another process with its number
    with StateFolder(tmp_path) as state:
        assert state.stop_request() == StopRequest(None, 0.0)
        request_stop(tmp_path, os.getpid() + 1, StopRequest(5.0, 7.0))
        assert state.stop_request() == StopRequest(None, 0.0)
        request_stop(tmp_path, os.getpid(), StopRequest(-1.0, float("nan")))
        assert state.stop_request() == StopRequest(None, 0.0)
        request_stop(tmp_path, os.getpid(), StopRequest(5.0))
        assert state.stop_request() == StopRequest(5.0, 0.0)
        assert state.stop_request() == StopRequest()
        request_stop(tmp_path, os.getpid(), StopRequest(away_s=7.0))
        assert state.stop_request() == StopRequest(None, 7.0)
        for nonsense in ("nonsense", "[]", '{"pid": 5}'):
            (tmp_path / "stop.json").write_text(nonsense)
            assert state.stop_request() == StopRequest()


def test_down_reports_for_how_long_running_work_goes_on(folder: Folder) -> None:
    process, address = folder.up()
    job = {"id": "j", "kind": "job", "name": "j", "job": {"entrypoint": "true"}, "start_after": 5e9}
    request = Request(f"{address}/api/v1/items", json.dumps({"task": job}).encode(), folder.headers)
    with urlopen(request, timeout=10) as response:
        assert response.status == 200
    assert (folder.rmcs("down", "--away", "600").wait(60), process.wait(60)) == (0, 0)
    output = folder.output(process)
    assert "1 item unfinished, which the next start continues" in output
    assert "no cluster could extend its lease" in output, "there is no agent anywhere"
    for option, number in (("--away", "nan"), ("--away", "inf"), ("--drain", "inf")):
        wrong = folder.rmcs("down", option, number)
        assert wrong.wait(60) == 2
        assert option in folder.output(wrong)


def test_after_a_kill_the_folder_can_be_used_again(folder: Folder) -> None:
    process, _ = folder.up()
    process.kill()
    process.wait(60)
    assert holder(folder.state) is None
    folder.up()


def test_there_is_nothing_to_end(folder: Folder) -> None:
    down = folder.rmcs("down")
    output = folder.output(down)
    assert down.returncode != 0
    assert "No service runs on" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.com", ""])
def test_nobody_from_outside_is_let_in_without_tls(folder: Folder, host: str) -> None:
    process = folder.rmcs("up", "--config", str(folder.config), "--host", host)
    output = folder.output(process)
    assert process.returncode == 2
    assert "cannot listen on" in output
    assert "without TLS" in output
    assert not folder.state.exists()


def test_its_first_start_makes_a_token_and_without_it_nobody_is_let_in(folder: Folder) -> None:
    process, address = folder.up()
    with pytest.raises(HTTPError, match="401"):
        urlopen(f"{address}/api/v1/fleet", timeout=10)
    with urlopen(Request(f"{address}/api/v1/fleet", headers=folder.headers), timeout=10) as response:
        assert json.load(response)["you"]["roles"] == ["admin", "operator", "submitter", "viewer"]
    token = folder.headers["Authorization"].removeprefix("Bearer ")
    assert folder.rmcs("down").wait(60) == 0
    output = folder.output(process)
    assert "has a token for you" in output
    assert token not in output
    process, address = folder.up("--auth", "none")
    with urlopen(f"{address}/api/v1/fleet", timeout=10) as response:
        assert response.status == 200
    process.kill()
    assert "no token is required (auth: none)" in folder.output(process)


def test_a_port_in_use_is_reported_in_a_sentence(folder: Folder, tmp_path: Path) -> None:
    _, address = folder.up()
    with pytest.raises(ConfigurationError, match=r"cannot listen on 127.0.0.1:\d+.*--port"):
        serve(fleet(), tmp_path / "other", ListenAddress(port=int(address.rpartition(":")[2])))


def test_there_are_no_more_connections_than_max_connections(folder: Folder) -> None:
    folder.config.write_text(f"settings: {{max_connections: 2}}\n{CLUSTERS}")
    _, address = folder.up()
    place = ("127.0.0.1", int(address.rpartition(":")[2]))
    with socket.create_connection(place, 10), socket.create_connection(place, 10):
        with pytest.raises(HTTPError, match="503") as refused:
            urlopen(f"{address}/healthz", timeout=10)
        with refused.value:
            assert json.load(refused.value)["error"] == "ServiceUnavailableError"
    until(lambda: _is_alive(address), 30)


def _is_alive(address: str) -> bool:
    try:
        with urlopen(f"{address}/healthz", timeout=10):
            return True
    except HTTPError as error:
        error.close()
        return False


def test_small_answers_are_sent_without_delay() -> None:
    """Small answers must not wait for the reader to confirm what came before: 40 ms, by the book."""
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]

        async def delay() -> int:
            came: asyncio.Future[int] = asyncio.get_running_loop().create_future()

            def look(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                sock = writer.get_extra_info("socket")
                came.set_result(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                writer.close()

            async with await asyncio.start_server(look, sock=listener):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return await asyncio.wait_for(came, 30)

        assert asyncio.run(delay()) != 0
