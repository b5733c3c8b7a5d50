"""Preemption on real clusters: an urgent task gets the place of a preemptible one, which runs again afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler import TaskState, UnifiedScheduler
from ray_multicluster_scheduler.app.client_api.handles.handle import TaskHandle
from tests.support.eventually import until
from tests.support.running_service import RunningService

WAIT_S = 60
CPU = {"CPU": 1}


@pytest.fixture
def service(config_path: Path, tmp_path: Path) -> Iterator[RunningService]:
    rules = '{"min_runtime_s": 0, "cool_down_s": 0, "grace_s": 5}'
    with RunningService(config_path, tmp_path / "state", preemption=rules, resource_threshold=1) as running:
        yield running
        running.stop()


@pytest.mark.parametrize("killed", [False, True], ids=["", "the service is killed meanwhile"])
def test_an_urgent_task_gets_its_place(service: RunningService, tmp_path: Path, killed: bool) -> None:
    def wait_for(path: str, mark: str) -> str:  # local, so that it is sent by value
        import os
        import time

        with open(mark, "a") as file:
            file.write("begun\n")
        while not os.path.exists(path):
            time.sleep(0.05)
        return path

    go, urgent_go = tmp_path / "go", tmp_path / "urgent_go"
    with UnifiedScheduler(address=service.address, token=service.token) as client:
        cluster = client.list_clusters()[0]["name"]

        def submit(name: str, path: Path, **options: object) -> TaskHandle[str]:
            arguments = (str(path), str(tmp_path / name))
            only = {"allow_clusters": [cluster], "resource_requirements": CPU, **options}
            return client.submit_task_async(wait_for, arguments, **only)  # type: ignore[arg-type]

        room = int(client.cluster_info(cluster)["total"]["CPU"])
        low = [submit(f"low{number}", go, preemptible=True) for number in range(room)]
        until(lambda: all(one.state is TaskState.RUNNING for one in low), WAIT_S)
        urgent = submit("urgent", urgent_go, priority=5)
        until(lambda: any(one.state is not TaskState.RUNNING for one in low), WAIT_S)
        if killed:
            service.kill()
            service.start()
        until(lambda: urgent.state is TaskState.RUNNING, WAIT_S)
        (victim,) = (one for one in low if one.state is TaskState.QUEUED)
        codes = [step["code"] for step in victim.explain()["history"]]
        assert codes.count("PREEMPTED") >= 1
        urgent_go.touch()
        assert urgent.result(WAIT_S) == str(urgent_go)
        until(lambda: victim.state is TaskState.RUNNING, WAIT_S)
        go.touch()
        assert [one.result(WAIT_S) for one in low] == [str(go)] * room
        assert victim.attempt == 2
        assert sorted(one.attempt for one in low)[:-1] == [1] * (room - 1)
        marks = [(tmp_path / f"low{number}").read_text().count("begun") for number in range(room)]
        assert sorted(marks) == [1] * (room - 1) + [2]
