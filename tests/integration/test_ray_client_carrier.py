"""Tasks and actors through Ray Client on real clusters: connector failures, and errors of misconfiguration."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from ray_multicluster_scheduler import NoFeasibleClusterError, TaskState, UnifiedScheduler
from ray_multicluster_scheduler.local_fleet import LocalCluster, LocalFleet
from ray_multicluster_scheduler.scheduler.connection.connector import protocol
from ray_multicluster_scheduler.scheduler.connection.packages.runtime_env_upload import OWN_EXCLUDES, OWN_PACKAGE
from ray_multicluster_scheduler.scheduler.connection.ray_client.client_carrier import connector_environment
from tests.support.mac_cluster import until
from tests.support.running_service import RunningService

CONNECTOR = "connector/boot.py"
BOOT = OWN_PACKAGE / "scheduler" / "connection" / CONNECTOR
GATEWAY = "ray::GatewayHost"
LEASE = {"heartbeat_s": 1, "lease_s": 30, "lost_after_s": 45, "breaker_recovery_s": 5}


@pytest.fixture(scope="module")
def alone(ray_python: Path) -> Iterator[LocalFleet]:
    """One cluster without a dashboard."""
    with LocalFleet(
        LocalCluster("bare", num_cpus=2, with_dashboard=False),
        settings={"submission_interval_s": 0, "resource_threshold": 1, "connector_python": str(ray_python), **LEASE},
        ray_python=ray_python,
    ) as running:
        yield running


@pytest.fixture
def scheduler(alone: LocalFleet) -> Iterator[UnifiedScheduler]:
    with UnifiedScheduler(alone.config_path) as made:
        yield made
    assert connectors() == [], "ending leaves no process"
    until(lambda: not gateways(alone), 60)


def connectors() -> list[psutil.Process]:
    """Ours: the children of this process and of theirs."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if any(CONNECTOR in word for word in child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def gateways(fleet: LocalFleet, name: str = "bare") -> list[int]:
    found = []
    for pid in fleet.processes(name):
        try:
            if any(GATEWAY in word for word in psutil.Process(pid).cmdline()):
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found


def changed(fleet: LocalFleet, folder: Path, settings: dict[str, Any] | None = None, **keys: Any) -> Path:
    """The fleet's configuration with other keys for its one cluster; None takes one away."""
    whole = yaml.safe_load(Path(fleet.config_path).read_text())
    entry = {**whole["clusters"][0], **keys}
    entry = {key: value for key, value in entry.items() if value is not None}
    path = folder / "clusters.yaml"
    path.write_text(yaml.safe_dump({"settings": {**whole["settings"], **(settings or {})}, "clusters": [entry]}))
    return path


def test_tasks_actors_and_their_values_without_a_dashboard(scheduler: UnifiedScheduler) -> None:
    assert scheduler.submit_task(sum, ([1, 2, 3],)) == 6
    big = os.urandom(3_000_000)
    assert scheduler.submit_task(lambda data: data[::-1], (big,)) == big[::-1], "more than one chunk, both ways"

    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self, number: int) -> int:
            self.count += number
            return self.count

    actor = scheduler.submit_actor(Counter)
    refs = [actor.add.remote(1) for _ in range(20)]
    assert [ref.result(30) for ref in refs] == list(range(1, 21))
    actor.kill()
    with pytest.raises(ZeroDivisionError):
        scheduler.submit_task(lambda: 1 / 0)
    (row,) = scheduler.list_clusters()
    assert (row["state"], row["carrier"]) == ("UP", "ray_client")
    assert row["tasks_by"] == "ray_client: it has no dashboard to start an agent with"
    with pytest.raises(NoFeasibleClusterError, match="dashboard"):
        scheduler.submit_job("echo never")


def test_the_gateway_is_on_the_head_and_survives_the_loss_of_another_node(
    scheduler: UnifiedScheduler,
) -> None:
    def free() -> dict[str, float]:
        import ray

        free: dict[str, float] = ray.available_resources()
        return free

    assert scheduler.submit_task(free)["node:__internal_head__"] == pytest.approx(0.999)


def test_packages_go_through_the_connector_without_a_dashboard(scheduler: UnifiedScheduler, tmp_path: Path) -> None:
    (tmp_path / "greeting.txt").write_text("hello")

    def greeting() -> str:
        with open("greeting.txt") as file:
            return file.read()

    assert scheduler.submit_task(greeting, runtime_env={"working_dir": str(tmp_path)}) == "hello"


MAKE = """
import asyncio, sys
from ray_multicluster_scheduler.scheduler.connection.connector import protocol
from ray_multicluster_scheduler.scheduler.connection.connector import session
config = protocol.ConnectorConfig.from_line(sys.stdin.readline())
session.connect(config)
gateway = session.GatewayActor(config)
gateway.create()
print(asyncio.run(gateway.call("close", "", patience_s=60)), flush=True)
"""


def test_a_gateway_without_connections_ends_by_itself(alone: LocalFleet, ray_python: Path) -> None:
    """As when its connector dies right after the start."""
    join = {"cluster": "bare", "agent": "left-alone", "addresses": [["its connector", 0]], "token": "t"}
    order = protocol.ConnectorConfig(
        cluster="bare",
        agent="left-alone",
        head=f"127.0.0.1:{alone.direct_ports('bare').client}",
        listener=("127.0.0.1", 1),
        patience_s=30.0,
        join={**join, "carrier": "ray_client", "first_join_s": 3.0},
        package=str(OWN_PACKAGE),
        excludes=OWN_EXCLUDES,
        inside="RMCS_INSIDE",
    )
    environment = connector_environment(os.environ, alone.token("bare").strip()) | {
        "PYTHONPATH": str(OWN_PACKAGE.parent)
    }
    made = subprocess.run(
        [ray_python, "-c", MAKE], input=order.line(), env=environment, capture_output=True, timeout=120, check=False
    )
    assert made.stdout.decode().strip() == "None", made.stderr.decode()[-2000:]
    until(lambda: not gateways(alone), 20)
    # One that never called it, as after a restart of the service, learns from the cluster how it ended.
    with subprocess.Popen(
        [ray_python, "-u", BOOT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as looking:
        assert looking.stdin is not None
        assert looking.stdout is not None
        looking.stdin.write(replace(order, join=None).line())
        looking.stdin.flush()
        output = [json.loads(line) for line in looking.stdout]
    assert (output[-1]["event"], output[-1].get("dead")) == (protocol.GONE, True), output
    assert "its worker process has died" in output[-1]["why"]


def noting() -> Callable[[str, float], int]:
    """A function inside a function is pickled by value: nothing has to be shipped for it."""

    def note(path: str, seconds: float) -> int:
        import time

        from ray_multicluster_scheduler import current

        with open(path, "a") as file:
            file.write("ran ")
        time.sleep(seconds)
        return current().attempt

    return note


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_hanging_connector_is_replaced_without_loss_or_repetition(
    scheduler: UnifiedScheduler, tmp_path: Path, how: signal.Signals
) -> None:
    path = tmp_path / "runs"
    during = scheduler.submit_task_async(noting(), (str(path), 12.0))
    until(lambda: during.state is TaskState.RUNNING, 60)
    (first,) = connectors()
    first.send_signal(how)
    assert during.result(90) == 1
    assert path.read_text() == "ran "
    (second,) = connectors()
    assert second.pid != first.pid
    assert not psutil.pid_exists(first.pid)
    assert scheduler.submit_task(len, ("again",)) == 5


def test_results_finished_without_a_connector_are_collected_by_the_next(
    scheduler: UnifiedScheduler, tmp_path: Path
) -> None:
    path = tmp_path / "runs"
    handle = scheduler.submit_task_async(noting(), (str(path), 1.0))
    until(lambda: handle.state is TaskState.RUNNING, 60)
    for one in connectors():
        one.kill()
    assert handle.result(60) == 1, "it ended before any new connector could be there"
    assert path.read_text() == "ran "


def test_a_killed_gateway_is_detected_and_its_task_runs_again(
    scheduler: UnifiedScheduler, alone: LocalFleet, tmp_path: Path
) -> None:
    path = tmp_path / "runs"
    handle = scheduler.submit_task_async(noting(), (str(path), 4.0))
    until(lambda: handle.state is TaskState.RUNNING, 60)
    (gateway,) = gateways(alone)
    began = time.monotonic()
    os.kill(gateway, signal.SIGKILL)
    assert handle.result(90) == 2
    assert path.read_text() == "ran ran "
    assert time.monotonic() - began < 40, "not by the lease"


@contextmanager
def an_http_server() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def _at(keys: dict[str, Any], port: int) -> dict[str, Any]:
    return {"head_address": f"127.0.0.1:{port}"} if keys.get("head_address") == "HTTP" else keys


@pytest.mark.parametrize(
    ("keys", "state", "says"),
    [
        ({"auth_token_path": None, "auth_token": "wrong" * 8}, "CLUSTER_MISCONFIGURED", "does not accept the token"),
        ({"auth_token_path": None}, "CLUSTER_MISCONFIGURED", "requires a token"),
        ({"head_address": "127.0.0.1:1"}, "CLUSTER_UNREACHABLE", "nothing listens at head_address 127.0.0.1:1"),
        ({"head_address": "HTTP"}, "CLUSTER_MISCONFIGURED", "is not a Ray Client server (a dashboard?)"),
        ({"head_address": "GCS"}, "CLUSTER_MISCONFIGURED", "is not a Ray Client server"),
        ({"connector_python": "/bin/false"}, "CLUSTER_UNREACHABLE", "the connector ended (status 1)"),
    ],
)
def test_each_misconfiguration_is_reported_within_seconds(
    alone: LocalFleet, tmp_path: Path, keys: dict[str, Any], state: str, says: str
) -> None:
    if keys.get("head_address") == "GCS":
        keys = {"head_address": f"127.0.0.1:{alone.direct_ports('bare').gcs}"}
    with an_http_server() as port, UnifiedScheduler(changed(alone, tmp_path, **_at(keys, port))) as scheduler:
        began = time.monotonic()
        (row,) = scheduler.list_clusters(refresh=True)
        took = time.monotonic() - began
    assert row["state"] == state, row
    assert says in row["sentence"]
    assert took < 45
    assert connectors() == []


def test_ray_client_is_used_if_the_agent_cannot_be_connected(
    fleet: LocalFleet, ray_python: Path, tmp_path: Path
) -> None:
    whole = yaml.safe_load(Path(fleet.config_path).read_text())
    entry = next(one for one in whole["clusters"] if one["name"] == "mac") | {"agent_address": "127.0.0.1:1"}
    settings = {**whole["settings"], **LEASE, "connector_python": str(ray_python), "agent_advertise": "127.0.0.1:1"}
    path = tmp_path / "clusters.yaml"
    path.write_text(yaml.safe_dump({"settings": settings, "clusters": [entry]}))
    with UnifiedScheduler(path) as scheduler:
        assert scheduler.submit_task(len, ("there",)) == 5
        (row,) = scheduler.list_clusters()
    assert row["carrier"] == "ray_client"
    assert "cannot dial back to 127.0.0.1:1" in row["tasks_by"]
    assert "cannot be reached from here: 127.0.0.1:1" in row["tasks_by"]


def test_a_restarted_cluster_is_detected_and_used(
    alone: LocalFleet, scheduler: UnifiedScheduler, tmp_path: Path
) -> None:
    path = tmp_path / "runs"
    handle = scheduler.submit_task_async(noting(), (str(path), 5.0))
    until(lambda: handle.state is TaskState.RUNNING, 60)
    alone.kill("bare")
    until(lambda: scheduler.list_clusters()[0]["state"] != "UP", 60)
    alone.start("bare")
    assert handle.result(120) == 2
    codes = {step["code"] for step in handle.explain()["history"]}
    assert codes & {"CLUSTER_RESTARTED", "PROCESSES_DEAD"}, "whichever evidence is complete first"


def test_a_restarted_service_readopts_its_gateway(alone: LocalFleet, tmp_path: Path) -> None:
    path = tmp_path / "runs"
    config = changed(alone, tmp_path, {"agent_idle_s": 1})
    with RunningService(config, tmp_path / "state") as service:
        with UnifiedScheduler(address=service.address, token=service.token) as program:
            handle = program.submit_task_async(noting(), (str(path), 8.0))
            until(lambda: handle.state is TaskState.RUNNING, 60)
            waits = program.submit_task_async(len, ("waits",), resource_requirements={"CPU": 2})
            service.kill()
            until(lambda: connectors() == [], 60)
            service.start()
            assert handle.result(90) == 1
            assert waits.result(90) == 5, "what waited goes on waiting until the gateway is back"
        assert path.read_text() == "ran "
        until(lambda: not gateways(alone), 60)  # it is idle for a second
        assert service.stop() == 0


def test_a_lost_cluster_is_suspect_in_time_and_blocks_no_caller(alone: LocalFleet, scheduler: UnifiedScheduler) -> None:
    assert scheduler.submit_task(len, ("warm",)) == 4
    alone.freeze("bare")
    try:
        until(lambda: scheduler.list_clusters()[0]["state"] != "UP", 30)
    finally:
        alone.restore_network("bare")
    assert scheduler.submit_task(len, ("again",)) == 5
