"""What a job is sent with: its own environment, who it is, and our package beside its own modules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.control_plane.config import ClusterConfig
from ray_multicluster_scheduler.scheduler.connection.packages.runtime_env_upload import PackageCache
from ray_multicluster_scheduler.scheduler.scheduler_core.attempt_preparation import AttemptPreparation
from tests.unit.lifecycle.driver import job


class Store:
    """Packages of one cluster, in memory."""

    name = "mac"

    def __init__(self) -> None:
        self.uploads: list[str] = []

    async def package_exists(self, uri: str) -> bool:
        return uri in self.uploads

    async def upload_package(self, uri: str, source: Path | bytes) -> None:
        self.uploads.append(uri)


class Pool:
    """Only one cluster."""

    def __init__(self) -> None:
        self.store = Store()

    def client(self, cluster: str) -> Any:
        return self.store


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def preparation(pool: Pool) -> Iterator[AttemptPreparation]:
    packages = PackageCache()
    preparation = AttemptPreparation(pool.client, packages, "/home/me")
    preparation.update({"mac": ClusterConfig(name="mac", dashboard="http://127.0.0.1:9")})
    yield preparation
    packages.close()


async def test_our_package_comes_after_the_users_modules(
    preparation: AttemptPreparation, pool: Pool, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("VALUE = 1")
    env = {"py_modules": ["s3://bucket/theirs.zip", str(tmp_path / "mine.py")], "working_dir": "s3://bucket/work.zip"}
    prepared = await preparation.job(job("j1", runtime_env=env), "mac", 1, 7)
    theirs, mine, own = prepared.runtime_env["py_modules"]
    assert theirs == "s3://bucket/theirs.zip"
    assert [mine, own] == pool.store.uploads
    assert prepared.runtime_env["working_dir"] == "s3://bucket/work.zip"
    assert prepared.runtime_env["env_vars"]["RMCS_FENCE"] == "7"


async def test_it_is_uploaded_once(preparation: AttemptPreparation, pool: Pool) -> None:
    first = await preparation.job(job("j1"), "mac", 1, 1)
    second = await preparation.job(job("j2"), "mac", 1, 2)
    assert first.runtime_env["py_modules"] == second.runtime_env["py_modules"] == pool.store.uploads
    assert len(pool.store.uploads) == 1


@pytest.mark.parametrize("key", ["image_uri", "container"])
async def test_a_job_in_a_container_gets_no_modules(preparation: AttemptPreparation, pool: Pool, key: str) -> None:
    """Ray refuses them there."""
    prepared = await preparation.job(job("j1", runtime_env={key: "an image"}), "mac", 1, 1)
    assert "py_modules" not in prepared.runtime_env
    assert pool.store.uploads == []
