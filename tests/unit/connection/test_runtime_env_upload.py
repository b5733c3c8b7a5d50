"""A runtime_env made usable in a cluster: packed once, uploaded if missing, named by URI."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.common.blob_names import package_uri
from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.scheduler.connection.packages.runtime_env_upload import (
    SEEN_TTL_S,
    PackageCache,
    resolve_runtime_env,
)


class Store:
    """A cluster's package store, in memory."""

    def __init__(self, name: str = "mac") -> None:
        self.name = name
        self.packages: dict[str, bytes] = {}
        self.uploads: list[str] = []
        self.looks = 0
        self.broken = False

    async def package_exists(self, uri: str) -> bool:
        self.looks += 1
        await asyncio.sleep(0)
        return uri in self.packages

    async def upload_package(self, uri: str, source: Path | bytes) -> None:
        await asyncio.sleep(0.01)
        if self.broken:
            raise OSError("cut")
        self.packages[uri] = source if isinstance(source, bytes) else source.read_bytes()
        self.uploads.append(uri)


@pytest.fixture
def cache() -> Iterator[PackageCache]:
    cache = PackageCache()
    yield cache
    cache.close()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.py").write_text("print(1)")
    (folder / "b.pkl").write_text("big")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("")
    return folder


async def test_local_paths_become_uris(work: Path, cache: PackageCache) -> None:
    store = Store()
    given = {"working_dir": "work", "py_modules": ["lib", "s3://b/x.zip"], "excludes": ["*.pkl"], "pip": ["numpy"]}
    resolved = await resolve_runtime_env(given, work.parent, store, cache)
    assert set(resolved) == {"working_dir", "py_modules", "pip"}
    assert resolved["working_dir"] in store.packages
    assert resolved["py_modules"][0] in store.packages
    assert resolved["py_modules"][1] == "s3://b/x.zip"
    assert b"b.pkl" not in store.packages[resolved["working_dir"]]
    assert given["working_dir"] == "work", "the caller's own dict is left alone"


@pytest.mark.parametrize("uri", ["gcs://_ray_pkg_x.zip", "s3://b/w.zip", "https://h/w.zip"])
async def test_uris_are_left_alone(uri: str, cache: PackageCache) -> None:
    store = Store()
    assert await resolve_runtime_env({"working_dir": uri}, None, store, cache) == {"working_dir": uri}
    assert store.uploads == []


async def test_uploaded_again_when_the_cluster_dropped_it(
    work: Path, cache: PackageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    env = {"working_dir": str(work)}
    first = await resolve_runtime_env(env, None, store, cache)
    assert await resolve_runtime_env(env, None, store, cache) == first
    assert len(store.uploads) == 1
    store.packages.clear()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda real=loop.time: real() + SEEN_TTL_S + 1)
    assert await resolve_runtime_env(env, None, store, cache) == first
    assert len(store.uploads) == 2
    assert first["working_dir"] in store.packages


async def test_many_small_tasks_do_not_ask_each_time(work: Path, cache: PackageCache) -> None:
    store, other = Store(), Store("linux")
    for _ in range(10):
        await resolve_runtime_env({"working_dir": str(work)}, None, store, cache)
    assert store.looks == 1
    (work / "a.py").write_text("print(2)")
    await resolve_runtime_env({"working_dir": str(work)}, None, store, cache)
    assert store.looks == 2, "other content is another package"
    await resolve_runtime_env({"working_dir": str(work)}, None, other, cache)
    assert other.looks == 1, "and so is another cluster"


async def test_a_failed_upload_is_not_taken_for_done(work: Path, cache: PackageCache) -> None:
    store = Store()
    store.broken = True
    with pytest.raises(OSError, match="cut"):
        await resolve_runtime_env({"working_dir": str(work)}, None, store, cache)
    store.broken = False
    resolved = await resolve_runtime_env({"working_dir": str(work)}, None, store, cache)
    assert resolved["working_dir"] in store.packages


async def test_a_package_that_a_cluster_misses_gets_another_name(work: Path, cache: PackageCache) -> None:
    store, env = Store(), {"working_dir": str(work), "py_modules": [str(work.parent / "lib")]}
    first = await resolve_runtime_env(env, None, store, cache)
    for number in (2, 3):
        now = await resolve_runtime_env(env, None, store, cache)
        words = (
            f"OSError: Failed to download runtime_env file package {now['working_dir']} from the GCS to the Ray worker"
        )
        cache.report_missing(words)
        again = await resolve_runtime_env(env, None, store, cache)
        assert again["working_dir"] == first["working_dir"].replace(".zip", f"-{number}.zip")
        assert store.packages[again["working_dir"]] == store.packages[first["working_dir"]]
        assert again["py_modules"] == first["py_modules"], "only the one that is missing"


async def test_equal_modules_are_named_once(tmp_path: Path, cache: PackageCache) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder / "same").mkdir(parents=True)
        (tmp_path / folder / "same" / "__init__.py").write_text("")
    modules = [str(tmp_path / folder / "same") for folder in ("one", "two")]
    resolved = await resolve_runtime_env({"py_modules": modules}, None, Store(), cache)
    assert len(resolved["py_modules"]) == 1


async def test_unchanged_folder_is_packed_once(work: Path, cache: PackageCache) -> None:
    def files() -> list[int]:
        assert cache._folder is not None
        return [file.stat().st_ino for file in cache._folder.iterdir()]

    env = {"working_dir": str(work)}
    first = await resolve_runtime_env(env, None, Store("a"), cache)
    packed = files()
    assert await resolve_runtime_env(env, None, Store("b"), cache) == first
    assert files() == packed, "the very same file was uploaded to both"
    (work / "a.py").write_text("print(2)")
    assert await resolve_runtime_env(env, None, Store("a"), cache) != first


async def test_many_at_once_upload_once(work: Path, cache: PackageCache) -> None:
    store = Store()
    env = {"working_dir": str(work)}
    answers = await asyncio.gather(*(resolve_runtime_env(env, None, store, cache) for _ in range(20)))
    assert len(store.uploads) == 1
    assert all(answer == answers[0] for answer in answers)


async def test_old_packages_are_removed(work: Path, cache: PackageCache) -> None:
    env = {"working_dir": str(work)}
    for number in range(5):
        (work / "a.py").write_text(f"print({number})")
        await resolve_runtime_env(env, None, Store(), cache)
    assert cache._folder is not None
    assert len(list(cache._folder.iterdir())) == 1


async def test_close_removes_the_folder_and_it_can_go_on(work: Path, cache: PackageCache) -> None:
    env = {"working_dir": str(work)}
    first = await resolve_runtime_env(env, None, Store(), cache)
    folder = cache._folder
    assert folder is not None
    cache.close()
    assert not folder.exists()
    assert await resolve_runtime_env(env, None, Store(), cache) == first


async def test_missing_path_is_named(tmp_path: Path, cache: PackageCache) -> None:
    with pytest.raises(TaskSubmissionError, match=str(tmp_path / "nowhere")):
        await resolve_runtime_env({"working_dir": "nowhere"}, tmp_path, Store(), cache)


async def test_something_that_is_no_path_is_refused(cache: PackageCache) -> None:
    with pytest.raises(TaskSubmissionError, match="neither a path nor a URI") as caught:
        await resolve_runtime_env({"py_modules": [3]}, None, Store(), cache)
    assert caught.value.cluster == "mac"


async def test_a_package_that_a_program_gave_is_uploaded_where_it_is_missing() -> None:
    kept = {"abc": b"zip"}
    cache, store = PackageCache(stored=kept.get), Store()
    env = {"working_dir": package_uri("abc", "_ray_pkg_1.zip"), "py_modules": [package_uri("abc", "x.zip")]}
    resolved = await resolve_runtime_env(env, None, store, cache)
    assert resolved == {"working_dir": "gcs://_ray_pkg_1.zip", "py_modules": ["gcs://x.zip"]}
    assert store.packages == {"gcs://_ray_pkg_1.zip": b"zip", "gcs://x.zip": b"zip"}
    await resolve_runtime_env(env, None, store, cache)
    assert len(store.uploads) == 2


async def test_a_missing_stored_package_raises() -> None:
    with pytest.raises(TaskSubmissionError, match=r"package x\.zip"):
        await resolve_runtime_env({"working_dir": package_uri("abc", "x.zip")}, None, Store(), PackageCache())
