"""LocalFleet with a fake Ray: start, stop, pause, faults, and complete removal."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ray_multicluster_scheduler.common.exception import ClusterConnectionError, ConfigurationError
from ray_multicluster_scheduler.local_fleet import LocalCluster, LocalFleet, ray_head
from ray_multicluster_scheduler.local_fleet.ray_head import listening

pytestmark = pytest.mark.usefixtures("leak_check")
PROCESSES_EACH = 4  # the stand-in and its three unruly children


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def eventually(condition: Callable[[], bool], within_s: float = 60.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def fetch(url: str, token: str, timeout_s: float = 60.0) -> bytes:
    return ray_head.fetch(url, token, timeout_s)


def session(fleet: LocalFleet, name: str) -> str:
    return str(json.loads(fetch(fleet.addresses(name).dashboard + "/api/version", fleet.token(name)))["session_name"])


@pytest.fixture
def fleet(fake_python: Path, base: Path) -> Iterator[LocalFleet]:
    with LocalFleet(LocalCluster("a"), LocalCluster("b"), ray_python=fake_python) as fleet:
        yield fleet


def test_stop_leaves_no_process_no_port_and_no_file(fleet: LocalFleet, base: Path) -> None:
    pids = fleet.processes("a") + fleet.processes("b")
    supervisors = [fleet.supervisor("a"), fleet.supervisor("b")]
    published = [int(fleet.addresses(name).head_address.rpartition(":")[2]) for name in "ab"]
    config = fleet.config_path
    assert len(pids) == 2 * PROCESSES_EACH
    assert config.exists()
    assert all(map(listening, published))

    fleet.stop()

    assert alive(pids + supervisors) == []
    assert not any(map(listening, published))
    assert list(base.iterdir()) == []
    fleet.stop()  # harmless


def test_each_cluster_has_its_own_token_home_and_environment(fleet: LocalFleet, fake_python: Path) -> None:
    assert fleet.token("a") != fleet.token("b")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        fetch(fleet.addresses("a").dashboard + "/api/version", fleet.token("b"))
    env = json.loads(fetch(fleet.addresses("a").dashboard + "/environ", fleet.token("a")))
    assert env["HOME"] == str(fleet.home("a")) != str(fleet.home("b"))
    assert env["PATH"].startswith(f"{fake_python.parent}:")
    assert "PYTHONPATH" not in env
    assert "PYTEST_CURRENT_TEST" not in env


def test_a_cluster_may_have_an_interpreter_of_its_own(fake_python: Path, base: Path, tmp_path: Path) -> None:
    other = tmp_path / "other-venv" / "bin" / "python"
    other.parent.mkdir(parents=True)
    other.symlink_to(fake_python)
    with LocalFleet(LocalCluster("a"), LocalCluster("b", ray_python=other), ray_python=fake_python) as fleet:
        first_on_path = {
            name: json.loads(fetch(fleet.addresses(name).dashboard + "/environ", fleet.token(name)))["PATH"].split(":")[
                0
            ]
            for name in "ab"
        }
    assert first_on_path == {"a": str(fake_python.parent), "b": str(other.parent)}


def test_a_missing_interpreter_of_a_cluster_is_an_error(fake_python: Path, base: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"names .*nowhere, which is not a program"):
        LocalFleet(LocalCluster("a", ray_python=tmp_path / "nowhere"), ray_python=fake_python).start_all()


def test_a_killed_cluster_restarts_at_the_same_addresses(fleet: LocalFleet) -> None:
    before, addresses, others = fleet.processes("a"), fleet.addresses("a"), fleet.processes("b")
    old_session, token = session(fleet, "a"), fleet.token("a")

    fleet.kill("a")

    assert alive(before) == []
    assert fleet.state("a") == "down"
    assert fleet.processes("a") == []
    with pytest.raises(urllib.error.URLError, match="refused"):
        session(fleet, "a")
    with pytest.raises(ClusterConnectionError, match="is down"):
        fleet.direct_dashboard("a")
    with pytest.raises(ClusterConnectionError, match="is down"):
        fleet.pause("a")
    assert alive(others) == others

    fleet.start("a")

    assert fleet.addresses("a") == addresses
    assert fleet.token("a") == token
    assert session(fleet, "a") != old_session
    fleet.start("a")  # harmless when up
    assert session(fleet, "b")


def test_pause_stops_every_process_and_resume_continues_them(fleet: LocalFleet) -> None:
    fleet.pause("a")
    assert fleet.state("a") == "paused"
    assert {psutil.Process(pid).status() for pid in fleet.processes("a")} == {psutil.STATUS_STOPPED}
    with pytest.raises(OSError, match="timed out"):
        fetch(fleet.addresses("a").dashboard + "/api/version", fleet.token("a"), timeout_s=0.5)
    with pytest.raises(ClusterConnectionError, match="paused"):
        fleet.start("a")
    assert session(fleet, "b")

    fleet.resume("a")
    assert psutil.STATUS_STOPPED not in {psutil.Process(pid).status() for pid in fleet.processes("a")}
    assert session(fleet, "a")
    fleet.pause("a")
    fleet.kill("a")  # also ends what is stopped
    assert fleet.state("a") == "down"


def test_the_network_of_one_cluster_can_be_cut_frozen_delayed_and_restored(fleet: LocalFleet) -> None:
    fleet.cut("a")
    with pytest.raises(urllib.error.URLError, match="refused"):
        session(fleet, "a")
    assert fetch(fleet.direct_dashboard("a") + "/api/version", fleet.token("a"))
    assert session(fleet, "b")
    fleet.restore_network("a")
    assert session(fleet, "a")

    fleet.freeze("a")
    with pytest.raises(OSError, match="timed out"):
        fetch(fleet.addresses("a").dashboard + "/api/version", fleet.token("a"), timeout_s=0.5)
    fleet.restore_network("a")

    fleet.delay("a", 0.2)
    begin = time.monotonic()
    session(fleet, "a")
    assert time.monotonic() - begin >= 0.4
    fleet.throttle("a", 2000)
    begin = time.monotonic()
    fetch(fleet.addresses("a").dashboard + "/environ", fleet.token("a"))
    assert time.monotonic() - begin >= 0.5
    with pytest.raises(ConfigurationError, match="bytes_per_s"):
        fleet.throttle("a", 0)
    with pytest.raises(ConfigurationError, match="seconds"):
        fleet.delay("a", -1)


def test_a_local_port_can_be_exposed_over_the_network_of_a_cluster(fleet: LocalFleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, _, port = fleet.expose("a", server.getsockname()[1]).rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as caller:
            accepted, _ = server.accept()
            with accepted:
                caller.sendall(b"hello")
                assert accepted.recv(5) == b"hello"
                fleet.cut("a")
                with pytest.raises(ConnectionResetError):
                    caller.recv(1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), timeout=60)


def test_some_connections_to_a_cluster_are_cut_or_half_open_and_new_ones_work(fleet: LocalFleet) -> None:
    host, _, port = fleet.addresses("a").head_address.rpartition(":")

    def line() -> socket.socket:
        return socket.create_connection((host, int(port)), timeout=60)

    def echo(of: socket.socket) -> bytes:
        of.sendall(b"x")
        return of.recv(1)

    with line() as cut:
        assert echo(cut) == b"x"
        assert fleet.cut_some("b", 1) == 0
        assert fleet.cut_some("a", 1) == 1
        with pytest.raises(ConnectionResetError):
            echo(cut)
    with line() as lost, line() as other:
        assert echo(lost) == echo(other) == b"x"
        assert fleet.blackhole("a") == 2
        lost.settimeout(0.3)
        with pytest.raises(TimeoutError):
            echo(lost)
        with line() as new:
            assert echo(new) == b"x"
    with pytest.raises(ConfigurationError, match="probability"):
        fleet.cut_some("a", 1.5)


def test_a_cluster_that_ends_by_itself_is_down(fleet: LocalFleet) -> None:
    pids = fleet.processes("a")
    head = min(pids)  # the first one that was started
    os.kill(head, signal.SIGKILL)
    assert eventually(lambda: alive(pids) == [])
    assert eventually(lambda: fleet.state("a") == "down")
    fleet.start("a")
    assert session(fleet, "a")


def test_stop_ends_a_cluster_whose_supervisor_was_killed(fleet: LocalFleet, base: Path) -> None:
    pids = fleet.processes("a")
    record = fleet.folder("a").record
    assert eventually(lambda: all(f'"pid": {pid},' in record.read_text() for pid in pids)), "the supervisor notes all"
    os.kill(fleet.supervisor("a"), signal.SIGKILL)
    with pytest.raises(ClusterConnectionError, match=r"supervisor of local cluster 'a' .* has ended"):
        fleet.kill("a")
    assert session(fleet, "b")

    fleet.stop()

    assert alive(pids) == []
    assert list(base.iterdir()) == []


def test_a_foreign_process_is_untouched(fleet: LocalFleet) -> None:
    foreign = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        fleet.kill("a")
        fleet.stop()
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()


def test_leftover_shared_memory_is_removed(fake_python: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(f"/dev/shm/rmcs-test-{os.getpid()}")
    monkeypatch.setenv("FAKE_RAY_SHM", str(file))
    with LocalFleet(LocalCluster("a"), ray_python=fake_python):
        assert file.exists()
    assert not file.exists()


class TestStart:
    def test_a_failed_start_is_retried_and_reported(
        self, fake_python: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAKE_RAY_FAIL_ONCE", str(tmp_path / "failed"))
        output: list[str] = []
        with LocalFleet(
            LocalCluster("a"), ray_python=fake_python, progress=lambda name, text: output.append(f"{name}: {text}")
        ) as fleet:
            assert fleet.state("a") == "up"
        assert any("attempt 1 failed" in text for text in output)
        first, second = (text for text in output if "starting; Ray's own ports" in text)
        assert first.split(",")[0] != second.split(",")[0], "new ports each time"

    def test_a_cluster_that_never_starts_reports_its_log_and_is_removed(
        self, fake_python: Path, base: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAKE_RAY_FAIL", "1")
        with pytest.raises(ClusterConnectionError, match="no luck today") as caught:
            LocalFleet(LocalCluster("a"), ray_python=fake_python).start_all()
        assert caught.value.cluster == "a"
        assert list(base.iterdir()) == []

    def test_a_home_dir_that_is_missing_is_refused(self, fake_python: Path, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="not a folder") as caught:
            LocalFleet(LocalCluster("a", home_dir=tmp_path / "x"), ray_python=fake_python).start_all()
        assert caught.value.cluster == "a"

    def test_a_given_home_dir_is_used_and_kept(self, fake_python: Path, base: Path, tmp_path: Path) -> None:
        home = tmp_path / "alice"
        home.mkdir()
        with LocalFleet(LocalCluster("a", home_dir=home), ray_python=fake_python) as fleet:
            env = json.loads(fetch(fleet.addresses("a").dashboard + "/environ", fleet.token("a")))
            assert env["HOME"] == str(home)
            assert f"home_dir: {home}" in fleet.config_path.read_text()
        assert home.is_dir()

    def test_the_config_is_written_to_state_dir_and_removed(
        self, fake_python: Path, base: Path, tmp_path: Path
    ) -> None:
        with LocalFleet(LocalCluster("a"), ray_python=fake_python, state_dir=tmp_path / "state") as fleet:
            assert fleet.config_path == tmp_path / "state" / "clusters.yaml"
            assert fleet.config_path.exists()
            with pytest.raises(ConfigurationError, match="already up"):
                fleet.start_all()
        assert list((tmp_path / "state").iterdir()) == []
