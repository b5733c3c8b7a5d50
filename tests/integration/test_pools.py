"""Two pools of one cohort on real clusters: quota, borrowing, a restart after kill -9, and deletion."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler import TaskState, UnifiedScheduler
from ray_multicluster_scheduler.app.client_api.handles.handle import TaskHandle
from tests.support.eventually import until
from tests.support.running_service import RunningService


@pytest.fixture
def service(config_path: Path, tmp_path: Path) -> Iterator[RunningService]:
    """Its "train" is configured; "serve" is created."""
    config = tmp_path / "clusters.yaml"
    pools = "pools:\n- {name: train, quota: {CPU: 1}, cohort: c, labels: {team: nlp}, borrow_limit: {CPU: 1}}\n"
    config.write_text(config_path.read_text() + pools)
    with RunningService(config, tmp_path / "state") as running:
        yield running
        running.stop()


class Commands:
    """`rmcs pool` for one service."""

    def __init__(self, service: RunningService) -> None:
        self._service = service

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ray_multicluster_scheduler.main", "pool", *words, "-o", "json"]
        environ = {"RMCS_HOME": str(self._service.state), "PATH": "/usr/bin:/bin"}
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)

    def answer(self, *words: str) -> Any:
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def use(self, name: str) -> tuple[int, int, float, float]:
        """Numbers of running and waiting items, borrowed and lent CPUs."""
        row = self.answer("show", name)
        return row["running"], row["waiting"], row["use"][0]["borrowed"], row["use"][0]["lent"]


def test_quota_borrowing_restart_and_deletion(service: RunningService, tmp_path: Path) -> None:
    pool = Commands(service)
    assert (
        pool.answer("create", "serve", "--quota", "CPU=2", "--cohort", "c", "--lend-limit", "CPU=1")["quota"]["CPU"]
        == 2
    )
    go = {name: tmp_path / name for name in ("first", "others", "serve")}

    def wait_for(path: str) -> str:
        import os
        import time

        while not os.path.exists(path):
            time.sleep(0.05)
        return path

    with UnifiedScheduler(address=service.address, token=service.token) as client:

        def submit(path: Path, **options: Any) -> TaskHandle[str]:
            return client.submit_task_async(wait_for, (str(path),), resource_requirements={"CPU": 1}, **options)

        def waits(handle: TaskHandle[str], code: str) -> bool:
            return handle.state is TaskState.QUEUED and handle.explain()["code"] == code

        busy = [submit(go["serve"], pool="serve") for _ in range(2)]
        until(lambda: pool.use("serve") == (2, 0, 0, 0), 60)
        train = [submit(go["first"], labels={"team": "nlp"}), *(submit(go["others"], pool="train") for _ in range(2))]
        until(lambda: pool.use("train") == (1, 2, 0, 0), 60)
        until(lambda: waits(train[1], "POOL_FULL"), 60)
        explained = train[1].explain()
        assert (explained["pool"], train[0].explain()["pool"]) == ("train", "train")
        assert "pool train uses 1 CPU of its 1 CPU" in explained["sentence"]
        assert "1 CPU of 1 CPU used" in str(explained)
        assert client.plan({"CPU": 1}, pool="train").code == "POOL_FULL"

        service.kill()
        service.start()
        until(lambda: pool.use("serve") == (2, 0, 0, 0) and pool.use("train") == (1, 2, 0, 0), 60)
        assert [row["source"] for row in pool.answer("list")] == ["created", "configured"]

        go["serve"].touch()
        assert [one.result(60) for one in busy] == [str(go["serve"])] * 2
        until(lambda: pool.use("train") == (2, 1, 1, 0) and pool.use("serve")[3] == 1, 60)
        until(lambda: waits(train[2], "BORROW_LIMIT"), 60)

        refused = pool.run("delete", "train")
        assert (refused.returncode, "has 3 unfinished items" in refused.stderr) == (1, True)
        assert pool.answer("delete", "train", "--drain") == {"name": "train", "deleted": False, "unfinished": 3}
        late = submit(go["first"], pool="train")
        assert "is being deleted" in str(late.exception(60))
        go["first"].touch()
        go["others"].touch()
        assert [one.attempt for one in train if one.result(60)] == [1, 1, 1]
        until(lambda: [row["name"] for row in pool.answer("list")] == ["serve"], 60)
