"""`rmcs doctor`: each common problem is found and named, and nothing else is complained about."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from ray_multicluster_scheduler.cli.doctor import cluster_checks, local_checks
from ray_multicluster_scheduler.cli.doctor.findings import Finding, Verdict
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, FleetConfig
from tests.unit.cli.conftest import Rmcs
from tests.unit.connection.test_response_parser_snapshot import answers
from tests.unit.service.http_service import HttpService


class Dashboard(BaseHTTPRequestHandler):
    """Of a cluster of Ray's, as recorded; its clock and its jobs are the test's."""

    off_s: ClassVar[float] = 0.0
    jobs: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        output = answers()
        bodies = {"/api/version": output.version, "/api/v0/nodes": output.nodes, "/api/cluster_status": output.status}
        data = json.dumps(
            {**bodies, "/nodes": output.summary, "/api/jobs/": self.jobs}[self.path.partition("?")[0]]
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(time.time() + self.off_s, usegmt=True)

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def dashboard() -> Iterator[str]:
    Dashboard.off_s, Dashboard.jobs = 0.0, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Dashboard) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def look(**entry: Any) -> list[Finding]:
    return asyncio.run(cluster_checks.check_clusters((ClusterConfig(name="mac", **entry),), "ours"))


def problems_of(found: list[Finding]) -> list[str]:
    return [f"{one.verdict} {one.code}" for one in found if one.verdict is not Verdict.ok]


def agent(of: str, status: str = "RUNNING") -> dict[str, Any]:
    return {"status": status, "metadata": {"rmcs_agent": "mac", "rmcs_control_plane": of}}


def test_a_cluster_that_is_well(dashboard: str) -> None:
    Dashboard.jobs = [agent("ours"), agent("theirs", "STOPPED"), {"status": "RUNNING", "metadata": None}]
    found = look(dashboard=dashboard, head_address=dashboard.removeprefix("http://"))
    assert problems_of(found) == []
    assert "Ray 2.60.0, 2 nodes" in " ".join(one.says for one in found)


@pytest.mark.parametrize(("off_s", "words"), [(120, "120 s ahead of"), (-60, "60 s behind")])
def test_a_clock_that_is_wrong(dashboard: str, off_s: float, words: str) -> None:
    Dashboard.off_s = off_s
    (one,) = [one for one in look(dashboard=dashboard) if one.verdict is Verdict.warning]
    number, rest = words.split(" ", 1)
    assert rest in one.says
    assert any(f" {int(number) + slack} " in one.says for slack in (-1, 0, 1))


def test_agents_of_others(dashboard: str) -> None:
    Dashboard.jobs = [agent("theirs"), agent("theirs"), agent("ours")]
    (one,) = [one for one in look(dashboard=dashboard) if one.verdict is Verdict.warning]
    assert "1 other control plane has agents there" in one.says
    assert "theirs" in one.says


def test_one_cluster_under_several_names(dashboard: str) -> None:
    """By its address, or else by the session of Ray's that runs there; each is reported once."""
    other = dashboard.replace("127.0.0.1", "localhost")
    addresses = {"mac": dashboard, "again": dashboard, "by-name": other}
    clusters = tuple(ClusterConfig(name=name, dashboard=one) for name, one in addresses.items())
    for some, wanted in ((clusters[:2], 1), (clusters[1:], 1), (clusters, 1), (clusters[:1], 0)):
        found = [
            one for one in asyncio.run(cluster_checks.check_clusters(some, "ours")) if one.verdict is Verdict.warning
        ]
        assert [one.code for one in found] == ["SAME_CLUSTER"] * wanted
    (one,) = [
        one
        for one in asyncio.run(cluster_checks.check_clusters(clusters[1:], "ours"))
        if one.verdict is Verdict.warning
    ]
    assert one.about == "again, by-name"
    assert "Ray's session session_x" in one.says


def test_unreachable_head_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        found = look(dashboard=f"http://{address}", head_address=address)
    assert problems_of(found) == ["warning ", "wrong DASHBOARD_DOWN"]
    assert found[0].says == f"nothing listens at head_address {address}: Connection refused"
    assert all(one.fix for one in found)


def test_no_dashboard_at_all(dashboard: str) -> None:
    found = look(head_address=dashboard.removeprefix("http://"))
    assert problems_of(found) == ["warning NO_CARRIER"]


def test_a_head_that_is_needed_and_does_not_answer() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        assert problems_of(look(head_address=address)) == ["wrong ", "warning NO_CARRIER"]


def test_a_token_that_is_not_set(dashboard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    (one,) = [one for one in look(dashboard=dashboard, auth_token="${NOT_THERE}") if one.verdict is Verdict.wrong]
    assert "NOT_THERE" in one.says


def test_unreadable_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_checks, "rmcs_home", lambda: Path("/" + "x" * 5000))
    (one,) = local_checks.home()
    assert "cannot be read: File name too long" in one.says
    assert one.fix == "set RMCS_HOME to a folder of yours"


def test_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMCS_HOME", str(tmp_path / "none"))
    assert problems_of(list(local_checks.home())) == []
    (tmp_path / "file").touch()
    monkeypatch.setenv("RMCS_HOME", str(tmp_path / "file" / "a" / "b"))
    (one,) = local_checks.home()
    assert one.verdict is Verdict.wrong
    assert one.says.endswith(f"does not exist, and cannot be created: {tmp_path / 'file'} cannot be written")
    (tmp_path / "open").mkdir(mode=0o755)
    monkeypatch.setenv("RMCS_HOME", str(tmp_path / "open"))
    assert "chmod 700" in next(iter(local_checks.home())).fix
    (tmp_path / "open").chmod(0o700)
    assert next(iter(local_checks.home())).verdict is Verdict.ok


@pytest.mark.parametrize(
    ("free", "wanted"), [(9 * 10**9, []), (2 * 10**9, ["warning STORE_FULL"]), (10, ["wrong STORE_FULL"])]
)
def test_the_disk(free: int, wanted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("RMCS_HOME", str(tmp_path))
    monkeypatch.setattr(local_checks.shutil, "disk_usage", lambda _: local_checks.shutil._ntuple_diskusage(0, 0, free))
    assert problems_of(list(local_checks.home())) == wanted


def test_the_port_for_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(local_checks.socket, "getaddrinfo", unknown)  # nobody outside is asked
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = {"agent_listen": where, "agent_advertise": "no-such-host.invalid:80"}
        entry = {"name": "mac", "dashboard": "http://127.0.0.1:1"}
        config = FleetConfig.model_validate({"settings": settings, "clusters": [entry]})
        assert problems_of(list(local_checks.agent_port(config))) == ["wrong AGENT_CANNOT_DIAL"] * 2
    assert problems_of(list(local_checks.agent_port(config)))[:1] == ["wrong AGENT_CANNOT_DIAL"]


def test_with_a_service_and_a_cluster(
    service: HttpService, rmcs: Rmcs, dashboard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    monkeypatch.setenv("RMCS_HOME", str(tmp_path / "home"))
    file = tmp_path / "clusters.yaml"
    file.write_text(yaml.safe_dump({"clusters": [{"name": "mac", "dashboard": dashboard}]}))
    done = rmcs("doctor", "--config", str(file))
    assert done.code == 0, done.out
    assert "it can accept work" in done.out
    assert "0 wrong, 0 warnings" in done.out
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        reported = read(rmcs("doctor", "--config", str(file), "-o", form).out)
        assert {one["verdict"] for one in reported} == {"ok"}


def test_problems_are_printed_with_a_fix(rmcs: Rmcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMCS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RMCS_ADDRESS", "http://127.0.0.1:9")
    monkeypatch.setenv("RMCS_TOKEN", "x")
    file = tmp_path / "clusters.yaml"
    file.write_text("clusters:\n  - nmae: mac\n")
    done = rmcs("doctor", "--config", str(file))
    assert done.code == 100
    assert "does not answer" in done.out
    assert "nmae" in done.out
    assert done.out.count("What to do: ") == 2
    assert "2 wrong" in done.out


def test_a_service_that_does_not_let_us_in(service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMCS_TOKEN", "wrong")
    done = rmcs("doctor", "-o", "json")
    (output,) = [one for one in json.loads(done.out) if one["about"] == "service"]
    assert (done.code, output["verdict"]) == (100, "wrong")
    assert "token" in output["says"]
