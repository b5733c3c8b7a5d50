"""Agents that listen for connections (dial_in), on a real cluster, also when the connection breaks."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ray_multicluster_scheduler import NoHealthyClusterError, TaskState, UnifiedScheduler, get
from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.mac_cluster import agents_of_mac, config_of_mac, until
from tests.support.running_service import RunningService

NOWHERE = "127.0.0.1:1"
LEASE = {"heartbeat_s": 0.5, "lease_s": 6, "lost_after_s": 16}


def _config(fleet: LocalFleet, folder: Path, keys: dict[str, object], **settings: object) -> Path:
    path = config_of_mac(fleet, folder, **{**LEASE, **settings})
    document = yaml.safe_load(path.read_text())
    document["clusters"][0].update(keys)
    path.write_text(yaml.safe_dump(document))
    return path


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(autouse=True)
def _nothing_stays(fleet: LocalFleet) -> Iterator[None]:
    """Other tests' agents may be there, too."""
    before = {process.pid for process in agents_of_mac(fleet)}
    yield
    until(lambda: {process.pid for process in agents_of_mac(fleet)} <= before)


@pytest.fixture
def line(fleet: LocalFleet, tmp_path: Path) -> Iterator[UnifiedScheduler]:
    """Its agent is dialled through the cluster's forwarder, so that the connection can be cut."""
    port = _free_port()
    keys = {"carrier": "dial_in", "agent_port": port, "agent_address": fleet.expose("mac", port)}
    with UnifiedScheduler(_config(fleet, tmp_path, keys, agent_advertise=NOWHERE)) as scheduler:
        assert scheduler.submit_task(len, ("warm",)) == 4
        yield scheduler


def test_tasks_and_actors_through_a_listening_agent(line: UnifiedScheduler) -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def inc(self) -> int:
            self.count += 1
            return self.count

    assert get([line.submit_task_async(pow, (number, 2)) for number in range(50)]) == [n * n for n in range(50)]
    with pytest.raises(ZeroDivisionError):
        line.submit_task(divmod, (1, 0))
    counter = line.submit_actor(Counter)
    assert get([counter.inc.remote() for _ in range(20)]) == list(range(1, 21))
    counter.kill()
    data = b"x" * 5_000_000
    assert line.submit_task(bytes.upper, (data,)) == data.upper()
    assert line.list_clusters()[0]["carrier"] == "dial_in"


def test_the_agent_configuration_has_no_key_and_does_not_leak_into_workers(
    line: UnifiedScheduler, fleet: LocalFleet
) -> None:
    def environment() -> list[str]:
        import os

        return [f"{key}={value}" for key, value in os.environ.items()]

    there = line.submit_task(environment)
    assert "RMCS_INSIDE=mac" in there, "it is one of ours"
    assert not [one for one in there if "RMCS_AGENT_JOIN" in one]
    reported = [
        job["runtime_env"]["env_vars"]["RMCS_AGENT_JOIN"]
        for job in _jobs(fleet)
        if "listen" in job.get("runtime_env", {}).get("env_vars", {}).get("RMCS_AGENT_JOIN", "")
    ]
    assert reported
    assert all("BEGIN CERTIFICATE" in one and "PRIVATE KEY" not in one for one in reported)


def _jobs(fleet: LocalFleet) -> list[dict[str, Any]]:
    """As the dashboard shows them to any user."""
    url = f"{fleet.direct_dashboard('mac')}/api/jobs/"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {fleet.token('mac')}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        jobs: list[dict[str, Any]] = json.load(answer)
        return jobs


def test_a_cut_connection_is_redialled_without_loss_or_repetition(
    line: UnifiedScheduler, fleet: LocalFleet, tmp_path: Path
) -> None:
    def note(path: str, number: int) -> int:
        import time

        with open(path, "a") as file:
            file.write(f"{number} ")
        time.sleep(0.3)
        return number

    path = tmp_path / "done"
    handles = [line.submit_task_async(note, (str(path), number)) for number in range(20)]
    for harm in (fleet.cut, fleet.freeze):
        until(lambda: any(handle.state is TaskState.RUNNING for handle in handles))
        harm("mac")
        until(lambda: line.list_clusters()[0]["state"] != "UP", 30)
        fleet.restore_network("mac")
        until(lambda: line.list_clusters()[0]["state"] == "UP", 60)
    assert get(handles, timeout=60) == list(range(20))
    assert sorted(map(int, path.read_text().split())) == list(range(20)), "each ran exactly once"
    assert all(handle.attempt == 1 for handle in handles)


def test_an_agent_that_cannot_dial_back_is_dialled_and_reported(fleet: LocalFleet, tmp_path: Path) -> None:
    with UnifiedScheduler(_config(fleet, tmp_path, {"carrier": "auto"}, agent_advertise=NOWHERE)) as scheduler:
        assert scheduler.submit_task(len, ("warm",)) == 4
        row = scheduler.list_clusters()[0]
        assert row["carrier"] == "dial_in"
        assert row["tasks_by"].startswith("dial_in: ")
        assert f"cannot dial back to {NOWHERE}" in row["tasks_by"]


def test_a_taken_or_unreachable_port_is_reported_within_seconds(fleet: LocalFleet, tmp_path: Path) -> None:
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        keys = {"carrier": "dial_in", "agent_port": number}
        with UnifiedScheduler(_config(fleet, tmp_path, keys)) as scheduler:
            waiting = scheduler.submit_task_async(len, ("warm",))
            until(
                lambda: f"cannot listen at 127.0.0.1:{number}" in (scheduler.list_clusters()[0]["sentence"] or ""), 60
            )
            assert not waiting.done(), "it may be free soon"
            waiting.cancel()
    keys = {"carrier": "dial_in", "agent_address": NOWHERE}
    with (
        UnifiedScheduler(_config(fleet, tmp_path, keys)) as scheduler,
        pytest.raises(NoHealthyClusterError, match=rf"cannot be reached from here: {NOWHERE}.*agent_address"),
    ):
        scheduler.submit_task(len, ("warm",))
    assert time.monotonic() - began < 90


def test_a_restarted_service_redials_its_agent(fleet: LocalFleet, tmp_path: Path) -> None:
    def note(path: str) -> str:
        import time

        with open(path, "a") as file:
            file.write("ran ")
        time.sleep(8)
        return "done"

    path = tmp_path / "runs"
    before = {process.pid for process in agents_of_mac(fleet)}
    config = _config(fleet, tmp_path, {"carrier": "dial_in"}, lease_s=30, lost_after_s=45, agent_idle_s=1)
    with RunningService(config, tmp_path / "state") as service:
        with UnifiedScheduler(address=service.address, token=service.token) as program:
            handle = program.submit_task_async(note, (str(path),))
            until(lambda: handle.state is TaskState.RUNNING, 60)
            service.kill()
            service.start()
            assert handle.result(90) == "done"
            assert (handle.attempt, path.read_text()) == (1, "ran ")
            assert program.submit_task(len, ("again",)) == 5
        until(lambda: {process.pid for process in agents_of_mac(fleet)} <= before)  # it is idle for a second
        assert service.stop() == 0
