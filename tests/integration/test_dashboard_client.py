"""Jobs, packages and snapshots over HTTP, on a real cluster with a token of its own."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, load_config
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_client import DashboardClient
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem
from ray_multicluster_scheduler.scheduler.connection.job_client_pool import JobClientPool
from ray_multicluster_scheduler.scheduler.connection.packages.runtime_env_upload import (
    PackageCache,
    resolve_runtime_env,
)

OVER = ("SUCCEEDED", "FAILED", "STOPPED")


@pytest.fixture
def cluster(config_path: Path) -> ClusterConfig:
    return load_config(config_path, environ={}).clusters[0]


@pytest.fixture
async def client(cluster: ClusterConfig) -> AsyncIterator[DashboardClient]:
    pool = JobClientPool({cluster.name: cluster})
    yield pool.client(cluster.name)
    await pool.close()


def owner(task: str) -> dict[str, str]:
    return {"rmcs_control_plane": "test", "rmcs_task": task, "rmcs_attempt": "1"}


def new_id() -> str:
    return f"it-{uuid.uuid4().hex[:12]}"


async def until_over(client: DashboardClient, job: str, limit_s: float = 60) -> dict[str, Any]:
    async with asyncio.timeout(limit_s):
        while True:
            info = await client.job_info(job)
            assert info is not None
            if info["status"] in OVER:
                return info
            await asyncio.sleep(0.2)


async def test_version_and_snapshot(client: DashboardClient) -> None:
    version = await client.version()
    before = time.time()
    snapshot = await client.snapshot(before)
    assert snapshot.ray_version == version["ray_version"]
    assert snapshot.session_id == version["session_name"]
    assert (snapshot.cluster, snapshot.source, snapshot.taken_at) == (client.name, "http", before)
    (node,) = snapshot.nodes
    assert node.is_head
    assert node.total["CPU"] == 2
    assert node.total["memory"] > 0
    assert (snapshot.python_version, snapshot.os, snapshot.arch) == (None, None, None)


async def test_snapshot_shows_what_a_job_holds(client: DashboardClient) -> None:
    job = new_id()
    await client.submit_job(job, "sleep 60", metadata=owner(job), entrypoint_num_cpus=1)
    try:
        async with asyncio.timeout(40):
            while True:
                free = (await client.snapshot(time.time())).free()
                if free is not None and free["CPU"] == 1:
                    break
                await asyncio.sleep(0.3)
        assert set(free) == set((await client.snapshot(time.time())).total())
    finally:
        assert await client.stop_job(job)
    assert (await until_over(client, job))["status"] == "STOPPED"


async def test_job_with_files_output_and_a_second_submit(client: DashboardClient, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "main.py").write_text(
        "import os, time, mylib\n"
        "print('first', mylib.NAME, os.environ['MARK'], os.path.exists('big.pkl'), flush=True)\n"
        "time.sleep(2)\n"
        "print('last', flush=True)\n"
    )
    (tmp_path / "work" / "big.pkl").write_text("x")
    (tmp_path / "mylib").mkdir()
    (tmp_path / "mylib" / "__init__.py").write_text("NAME = 'shipped'\n")
    cache = PackageCache()
    given = {
        "working_dir": "work",
        "py_modules": ["mylib"],
        "excludes": ["*.pkl"],
        "env_vars": {"MARK": "m1"},
    }
    env = await resolve_runtime_env(given, tmp_path, client, cache)
    cache.close()
    assert await client.package_exists(env["working_dir"])

    job = new_id()
    assert await client.submit_job(job, "python main.py", runtime_env=env, metadata=owner(job)) == job
    assert await client.submit_job(job, "python other.py", runtime_env=env, metadata=owner(job)) == job
    with pytest.raises(TaskSubmissionError, match="not ours"):
        await client.submit_job(job, "python main.py", metadata=owner("another"))

    async with asyncio.timeout(90):
        followed = "".join([piece async for piece in client.tail_job_logs(job)])
    info = await until_over(client, job)
    assert info["status"] == "SUCCEEDED", info["message"]
    assert "first shipped m1 False\nlast\n" in followed
    assert followed == await client.job_logs(job)
    assert job in [row["submission_id"] for row in await client.list_jobs()]


async def test_an_unknown_job(client: DashboardClient) -> None:
    job = new_id()
    assert await client.job_info(job) is None
    assert await client.stop_job(job) is False
    with pytest.raises(TaskSubmissionError, match=job):
        await client.job_logs(job)


async def test_a_job_refused_by_ray(client: DashboardClient) -> None:
    job = new_id()
    with pytest.raises(TaskSubmissionError, match="metadata values must be strings") as caught:
        await client.submit_job(job, "true", metadata={"a": 1})  # the point of the test
    assert (caught.value.task_id, caught.value.cluster) == (job, client.name)


async def test_an_unknown_package(client: DashboardClient) -> None:
    assert await client.package_exists("gcs://_ray_pkg_0000000000000000.zip") is False


@pytest.mark.parametrize("token", ["wrong-token", None])
async def test_wrong_or_missing_token(token: str | None, cluster: ClusterConfig) -> None:
    assert cluster.dashboard is not None
    client = DashboardClient(cluster.name, cluster.dashboard, token=lambda: token)
    for call in (client.version(), client.snapshot(0.0), client.submit_job(new_id(), "true"), client.job_info("x")):
        with pytest.raises(DashboardProblem) as caught:
            await call
        assert (caught.value.code, caught.value.permanent) == ("WRONG_TOKEN", True)
        assert caught.value.cluster == cluster.name
    await client.close()
