"""Makes a runtime_env usable in a cluster: packs local paths, uploads the packages that the cluster lacks, and replaces
the paths by package URIs. Also ships our own package, for agents and for jobs that use the API."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import ray_multicluster_scheduler
from ray_multicluster_scheduler.common.blob_names import digest_and_name, is_package_uri
from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.common.process import is_alive
from ray_multicluster_scheduler.scheduler.connection.packages.packaging import (
    MAX_PACKAGE_BYTES,
    Package,
    PackageKind,
    plan_package,
    write_package,
)

OWN_PACKAGE = Path(ray_multicluster_scheduler.__file__).parent
OWN_EXCLUDES = ("*.pyc", "*.typed", "*.md")
MAX_KEPT = 32
SEEN_TTL_S = 5.0
"""A package that was seen in a cluster's store is assumed to be there for this time, which saves a check per task. Ray
keeps it for ten minutes after each check, and no cluster restarts in less than this."""

_PREFIX = "rmcs-packages-"

_LOST = re.compile(r"file package (gcs://[\w-]+\.zip) from the GCS")
"""Ray's message. A wheel is not renamed, because pip reads its name."""
_NUMBERED = re.compile(r"(.*?)(?:-(\d+))?\.zip")

_Key = tuple[str, PackageKind, tuple[str, ...]]


class PackageStore(Protocol):
    """The package store of a cluster: its DashboardClient or its connector."""

    @property
    def name(self) -> str: ...

    async def package_exists(self, uri: str) -> bool: ...

    async def upload_package(self, uri: str, source: Path | bytes) -> None: ...


@dataclass(slots=True)
class _Slot:
    """The last package of one path, and how many use it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    fingerprint: str = ""
    package: Package | None = None
    users: int = 0


class PackageCache:
    """Packs a path once, and again only after a file under it has changed. Lives on one event loop."""

    def __init__(
        self, *, max_bytes: int = MAX_PACKAGE_BYTES, stored: Callable[[str], bytes | None] = lambda _: None
    ) -> None:
        """``stored`` returns packages that programs uploaded, by their digests; it may block."""
        self._max_bytes, self._stored = max_bytes, stored
        self._folder: Path | None = None
        self._slots: OrderedDict[_Key, _Slot] = OrderedDict()
        self._uploads: dict[tuple[str, str], asyncio.Lock] = {}
        self._in_use: Counter[Path] = Counter()
        self._seen: dict[tuple[str, str], float] = {}
        self._renamed: dict[str, str] = {}

    async def ship(self, path: Path, kind: PackageKind, excludes: Sequence[str], store: PackageStore) -> str:
        """Pack ``path`` and upload the package to ``store`` if it lacks it. Returns its URI."""
        async with self._package(path, kind, tuple(excludes)) as package:
            return await self._upload(package.uri, store, lambda: package.path)

    async def ship_stored(self, stored: str, store: PackageStore) -> str:
        """Ship a package that a program uploaded to its service. Raises TaskSubmissionError if it is gone."""
        digest, name = digest_and_name(stored)

        def content() -> bytes:
            data = self._stored(digest)
            if data is None:
                raise TaskSubmissionError(
                    f"The service does not have the package {name} of the runtime_env.",
                    cluster=store.name,
                    next_step="submit it again, with the folder itself",
                )
            return data

        return await self._upload(f"gcs://{name}", store, content)

    async def _upload(self, uri: str, store: PackageStore, content: Callable[[], Path | bytes]) -> str:
        uri = self._renamed.get(uri, uri)
        # If many items need the same package at once, one of them uploads it.
        async with self._uploads.setdefault((store.name, uri), asyncio.Lock()):
            if not self._recently_seen((store.name, uri)):
                checked = asyncio.get_running_loop().time()
                if not await store.package_exists(uri):
                    await store.upload_package(uri, await asyncio.to_thread(content))
                self._seen[store.name, uri] = checked
        return uri

    def report_missing(self, sentence: str) -> None:
        """Rename the packages that a cluster lacks according to ``sentence``, an error of Ray's.

        An upload under the old name would not help: Ray caches for ten minutes that an environment cannot be created.
        """
        for uri in _LOST.findall(sentence):
            stem, number = _NUMBERED.fullmatch(uri).groups()  # type: ignore[union-attr]  # every zip has such a name
            self._renamed[f"{stem}.zip"] = f"{stem}-{int(number or 1) + 1}.zip"
        self._seen.clear()

    def _recently_seen(self, key: tuple[str, str]) -> bool:
        now = asyncio.get_running_loop().time()
        self._seen = {one: at for one, at in self._seen.items() if now - at < SEEN_TTL_S}
        return key in self._seen

    def forget_seen(self) -> None:
        """Check again before the next use, because clusters may have lost packages."""
        self._seen.clear()

    def close(self) -> None:
        """Remove the packed files. Idempotent."""
        self._slots.clear()
        self._uploads.clear()
        self._seen.clear()
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    @asynccontextmanager
    async def _package(self, path: Path, kind: PackageKind, excludes: tuple[str, ...]) -> AsyncIterator[Package]:
        """The package, which stays on disk until the block ends."""
        key = (str(path), kind, excludes)
        slot = self._slots.setdefault(key, _Slot())
        self._slots.move_to_end(key)
        slot.users += 1
        try:
            async with slot.lock:
                plan = await asyncio.to_thread(plan_package, path, kind, excludes)
                if slot.package is None or slot.fingerprint != plan.fingerprint():
                    slot.package = await asyncio.to_thread(
                        write_package, plan, self._temporary_folder(), max_bytes=self._max_bytes
                    )
                    slot.fingerprint = plan.fingerprint()
                package = slot.package
            self._in_use[package.path] += 1
            try:
                yield package
            finally:
                self._in_use[package.path] -= 1
        finally:
            slot.users -= 1
            self._evict()

    def _temporary_folder(self) -> Path:
        if self._folder is None:
            _remove_abandoned()
            self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        return self._folder

    def _evict(self) -> None:
        """Drop the least recently used paths, and remove the files that are not used any more."""
        if self._folder is None or any(slot.lock.locked() for slot in self._slots.values()):
            return  # the package that is being written now evicts when it is done
        idle = [key for key, slot in self._slots.items() if not slot.users]
        for key in idle[: max(0, len(self._slots) - MAX_KEPT)]:
            del self._slots[key]
        self._uploads = {key: lock for key, lock in self._uploads.items() if lock.locked()}
        self._in_use = +self._in_use
        kept = {slot.package.path for slot in self._slots.values() if slot.package is not None}
        for file in self._folder.iterdir():
            if file not in kept and file not in self._in_use:
                file.unlink(missing_ok=True)


async def ship_own_package(packages: PackageCache, store: PackageStore) -> str:
    """Upload our own package if ``store`` lacks it; returns its URI. Raises TaskSubmissionError, DashboardProblem."""
    return await packages.ship(OWN_PACKAGE, "py_module", OWN_EXCLUDES, store)


def own_package_fingerprint() -> str:
    """Changes with every change of our own package. Blocks."""
    return plan_package(OWN_PACKAGE, "py_module", OWN_EXCLUDES).fingerprint()


async def resolve_runtime_env(
    runtime_env: Mapping[str, Any], base_dir: str | Path | None, client: PackageStore, cache: PackageCache
) -> dict[str, Any]:
    """Return a copy for the cluster of ``client``, with package URIs instead of local paths.

    Relative paths start at ``base_dir``. Raises TaskSubmissionError with the path that cannot be used, and
    DashboardProblem.
    """
    env = dict(runtime_env)
    excludes = [str(pattern) for pattern in env.pop("excludes", None) or ()]
    base = Path(base_dir) if base_dir is not None else Path.cwd()
    if env.get("working_dir") is not None:
        env["working_dir"] = await _ship(env["working_dir"], "working_dir", excludes, base, client, cache)
    if env.get("py_modules") is not None:
        modules = [await _ship(module, "py_module", excludes, base, client, cache) for module in env["py_modules"]]
        env["py_modules"] = list(dict.fromkeys(modules))
    return env


async def _ship(
    value: object, kind: PackageKind, excludes: Sequence[str], base: Path, client: PackageStore, cache: PackageCache
) -> str:
    if not isinstance(value, (str, Path)):
        raise TaskSubmissionError(
            f"The runtime_env names {value!r} as {kind}, which is neither a path nor a URI.",
            cluster=client.name,
            next_step="give a path, or a URI such as s3://…",
        )
    if is_package_uri(value):
        return await cache.ship_stored(str(value), client)
    if "://" in str(value):
        return str(value)
    return await cache.ship(_local_path(value, base), kind, excludes, client)


def _local_path(value: str | Path, base: Path) -> Path:
    return base / Path(value).expanduser()


def _remove_abandoned() -> None:
    """Remove the folders of killed programs: a folder's name has the pid of its process."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not is_alive(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)
