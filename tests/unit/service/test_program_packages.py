"""Folders and modules of a program go to the service as packages: it need not be able to read them."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler import TaskSubmissionError, UnifiedScheduler
from ray_multicluster_scheduler.common.blob_names import digest_and_name, is_package_uri, package_digests_in
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import decode_task
from tests.unit.service.http_service import HttpService, body
from tests.unit.service.service_plane import a_task


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    with HttpService(tmp_path / "state", works=False) as service:
        yield service


@pytest.fixture
def scheduler(service: HttpService) -> Iterator[UnifiedScheduler]:
    with UnifiedScheduler(address=service.address) as scheduler:
        yield scheduler


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "data.txt").write_text("hello")
    (folder / "large.bin").write_text("not this")
    return folder


def env_of(service: HttpService, item_id: str) -> dict[str, Any]:
    """As it was written."""
    stored = service.plane.store.item(item_id)
    assert stored is not None
    return dict(decode_task(stored)[0].runtime_env)


def names_in(service: HttpService, uri: str) -> list[str]:
    data = service.plane.store.blob(digest_and_name(uri)[0])
    assert data is not None
    return sorted(zipfile.ZipFile(io.BytesIO(data)).namelist())


def submitted(scheduler: UnifiedScheduler, **env: Any) -> Any:
    handle = scheduler.submit_task_async(len, ("abc",), runtime_env=env)
    assert handle._item.wait_accepted(30)
    return handle


def test_a_folder_becomes_a_package_that_the_service_keeps(
    scheduler: UnifiedScheduler, service: HttpService, folder: Path
) -> None:
    handle = submitted(scheduler, working_dir=str(folder), excludes=["large.bin"], env_vars={"A": "1"})
    shutil.rmtree(folder)
    env = env_of(service, handle.id)
    assert env["env_vars"] == {"A": "1"}
    assert "excludes" not in env
    assert is_package_uri(env["working_dir"])
    assert names_in(service, env["working_dir"]) == ["data.txt"]
    stored = service.plane.store.item(handle.id)
    assert stored is not None
    assert package_digests_in(env)[0] in stored.new.blobs, "as long as the item needs it, it is kept"


def test_modules_too_and_uris_stay_what_they_are(
    scheduler: UnifiedScheduler, service: HttpService, tmp_path: Path
) -> None:
    module = tmp_path / "mine"
    module.mkdir()
    (module / "__init__.py").write_text("")
    handle = submitted(scheduler, py_modules=[str(module), "s3://bucket/other.zip"])
    mine, other = env_of(service, handle.id)["py_modules"]
    assert other == "s3://bucket/other.zip"
    assert names_in(service, mine) == ["mine/__init__.py"]


def test_what_cannot_be_packed_is_reported_to_its_program(scheduler: UnifiedScheduler, folder: Path) -> None:
    handle = scheduler.submit_task_async(len, ("abc",), runtime_env={"working_dir": str(folder / "data.txt")})
    with pytest.raises(TaskSubmissionError, match="of a kind that cannot be shipped"):
        handle.result(30)


def test_a_package_that_is_too_large_is_named(tmp_path: Path, folder: Path) -> None:
    (folder / "more.bin").write_bytes(os.urandom(50_000))
    with (
        HttpService(tmp_path / "small", max_payload_bytes=20_000) as service,
        UnifiedScheduler(address=service.address) as scheduler,
    ):
        handle = scheduler.submit_task_async(len, ("abc",), runtime_env={"working_dir": str(folder)})
        with pytest.raises(TaskSubmissionError, match=r"A package of the runtime_env .* 5\d,\d{3} bytes"):
            handle.result(30)


def test_what_changed_is_packed_again(
    scheduler: UnifiedScheduler, service: HttpService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray_multicluster_scheduler.app.client_api.remote import program_packages

    monkeypatch.setattr(program_packages, "SEEN_TTL_S", 0.0)
    first = env_of(service, submitted(scheduler, working_dir=str(folder)).id)["working_dir"]
    assert env_of(service, submitted(scheduler, working_dir=str(folder)).id)["working_dir"] == first
    (folder / "more.txt").write_text("more")
    second = env_of(service, submitted(scheduler, working_dir=str(folder)).id)["working_dir"]
    assert names_in(service, second) == ["data.txt", "large.bin", "more.txt"]
    assert second != first


def test_a_package_that_the_service_forgot_is_given_again(
    scheduler: UnifiedScheduler, service: HttpService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = submitted(scheduler, working_dir=str(folder))
    digest = package_digests_in(env_of(service, first.id))[0]
    store = service.plane.store
    held = store.pin_blobs
    missed: list[list[str]] = []

    def hold(digests: Any) -> list[str]:
        asked = list(digests)
        if digest in asked and not missed:  # as if retention had been there
            missed.append(asked)
            return [digest]
        return held(asked)

    monkeypatch.setattr(store, "pin_blobs", hold)
    many = [scheduler.submit_task_async(len, ("abc",), runtime_env={"working_dir": str(folder)}) for _ in range(3)]
    assert all(handle._item.wait_accepted(30) for handle in many)
    assert missed
    assert [package_digests_in(env_of(service, handle.id)) for handle in many] == [[digest]] * 3


def test_an_environment_for_everything_is_below_each_items_own(service: HttpService, folder: Path) -> None:
    with UnifiedScheduler(address=service.address) as scheduler:
        scheduler.use_runtime_env({"env_vars": {"A": "1", "B": "1"}, "working_dir": str(folder)})
        handle = submitted(scheduler, env_vars={"B": "2"})
        env = env_of(service, handle.id)
        assert env["env_vars"] == {"A": "1", "B": "2"}
        assert names_in(service, env["working_dir"]) == ["data.txt", "large.bin"]


@pytest.mark.parametrize("named", [{"working_dir": "/etc"}, {"py_modules": ["s3://b/x.zip", "~/secret"]}])
def test_nothing_is_read_from_the_disk_of_the_service_for_a_submission(
    service: HttpService, named: dict[str, Any]
) -> None:
    status, answer = service.ask("POST", "/api/v1/items", body(a_task("t", 0, runtime_env=named)))
    assert status == 422
    assert "does not read its own" in answer["message"]
    uris = {"working_dir": "gcs://x.zip"}
    assert service.ask("POST", "/api/v1/items", body(a_task("u", 0, runtime_env=uris)))[0] == 200
