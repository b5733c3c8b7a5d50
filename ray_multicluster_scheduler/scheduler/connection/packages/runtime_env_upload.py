"""Make a runtime_env usable on a cluster: local folders are packed, uploaded when missing, and named by URI."""

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

import psutil

from ray_multicluster_scheduler.common.blob_names import digest_and_name, is_package_uri
from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.scheduler.connection.packages.packaging import (
    MAX_PACKAGE_BYTES,
    Package,
    PackageKind,
    plan_package,
    write_package,
)

MAX_KEPT = 32
SURE_S = 5.0
"""How long a package that was seen in a cluster's store is taken to be there. Ray keeps it for ten minutes after each
look, and no cluster restarts in less than this; without it each of a thousand small tasks would cost a look."""

_PREFIX = "rmcs-packages-"

_LOST = re.compile(r"file package (gcs://[\w-]+\.zip) from the GCS")
"""As Ray words it; a wheel keeps its name, which pip reads."""
_NUMBERED = re.compile(r"(.*?)(?:-(\d+))?\.zip")

_Key = tuple[str, PackageKind, tuple[str, ...]]


class PackageStore(Protocol):
    """Where packages go: a DashboardClient."""

    @property
    def name(self) -> str: ...

    async def package_exists(self, uri: str) -> bool: ...

    async def upload_package(self, uri: str, source: Path | bytes) -> None: ...


@dataclass(slots=True)
class _Slot:
    """The last package of one path, and who is busy with it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    fingerprint: str = ""
    package: Package | None = None
    users: int = 0


class PackageCache:
    """Packs a path once, and again only when a file under it was touched. Lives on one event loop."""

    def __init__(
        self, *, max_bytes: int = MAX_PACKAGE_BYTES, stored: Callable[[str], bytes | None] = lambda _: None
    ) -> None:
        """``stored`` has the packages that programs gave, by their digests; it may take a while."""
        self._max_bytes, self._stored = max_bytes, stored
        self._folder: Path | None = None
        self._slots: OrderedDict[_Key, _Slot] = OrderedDict()
        self._uploads: dict[tuple[str, str], asyncio.Lock] = {}
        self._in_use: Counter[Path] = Counter()
        self._seen: dict[tuple[str, str], float] = {}
        self._renamed: dict[str, str] = {}

    async def ship(self, path: Path, kind: PackageKind, excludes: Sequence[str], store: PackageStore) -> str:
        """The URI of the package of ``path``, which is in ``store`` afterwards."""
        async with self._package(path, kind, tuple(excludes)) as package:
            return await self._upload(package.uri, store, lambda: package.path)

    async def ship_stored(self, stored: str, store: PackageStore) -> str:
        """The same for one that a program gave to its service. Raises TaskSubmissionError if it is gone."""
        digest, name = digest_and_name(stored)

        def content() -> bytes:
            data = self._stored(digest)
            if data is None:
                raise TaskSubmissionError(
                    f"The package {name} of the runtime_env is not kept here.",
                    cluster=store.name,
                    next_step="submit it again, with the folder itself",
                )
            return data

        return await self._upload(f"gcs://{name}", store, content)

    async def _upload(self, uri: str, store: PackageStore, content: Callable[[], Path | bytes]) -> str:
        uri = self._renamed.get(uri, uri)
        # Of many items that need the same package at once, one uploads it.
        async with self._uploads.setdefault((store.name, uri), asyncio.Lock()):
            if not self._surely_there((store.name, uri)):
                asked = asyncio.get_running_loop().time()
                if not await store.package_exists(uri):
                    await store.upload_package(uri, await asyncio.to_thread(content))
                self._seen[store.name, uri] = asked
        return uri

    def report_missing(self, sentence: str) -> None:
        """A cluster says that it does not have the packages in this sentence: from now on they go by other names.

        To upload one again under its old name would not help: for ten minutes Ray remembers of an environment that
        could not be made that it cannot be made.
        """
        for uri in _LOST.findall(sentence):
            stem, number = _NUMBERED.fullmatch(uri).groups()  # type: ignore[union-attr]  # every zip's name is of this form
            self._renamed[f"{stem}.zip"] = f"{stem}-{int(number or 1) + 1}.zip"
        self._seen.clear()

    def _surely_there(self, key: tuple[str, str]) -> bool:
        now = asyncio.get_running_loop().time()
        self._seen = {one: at for one, at in self._seen.items() if now - at < SURE_S}
        return key in self._seen

    def forget_seen(self) -> None:
        """Whoever had a package may have lost it: look before each use."""
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
                        write_package, plan, self._place(), max_bytes=self._max_bytes
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
            self._tidy()

    def _place(self) -> Path:
        if self._folder is None:
            _sweep()
            self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        return self._folder

    def _tidy(self) -> None:
        """Forget the paths that were used longest ago, and remove the files that nobody needs any more."""
        if self._folder is None or any(slot.lock.locked() for slot in self._slots.values()):
            return  # one is being packed: the next one to finish tidies
        idle = [key for key, slot in self._slots.items() if not slot.users]
        for key in idle[: max(0, len(self._slots) - MAX_KEPT)]:
            del self._slots[key]
        self._uploads = {key: lock for key, lock in self._uploads.items() if lock.locked()}
        self._in_use = +self._in_use
        kept = {slot.package.path for slot in self._slots.values() if slot.package is not None}
        for file in self._folder.iterdir():
            if file not in kept and file not in self._in_use:
                file.unlink(missing_ok=True)


async def resolve_runtime_env(
    runtime_env: Mapping[str, Any], base_dir: str | Path | None, client: PackageStore, cache: PackageCache
) -> dict[str, Any]:
    """A copy that the cluster of ``client`` can use: no local path is left in it.

    Relative paths start at ``base_dir``. Raises TaskSubmissionError that names a path which cannot be used,
    and DashboardProblem.
    """
    env = dict(runtime_env)
    excludes = [str(pattern) for pattern in env.pop("excludes", None) or ()]
    base = Path(base_dir) if base_dir is not None else Path.cwd()
    if env.get("working_dir") is not None:
        env["working_dir"] = await _shipped(env["working_dir"], "working_dir", excludes, base, client, cache)
    if env.get("py_modules") is not None:
        modules = [await _shipped(module, "py_module", excludes, base, client, cache) for module in env["py_modules"]]
        env["py_modules"] = list(dict.fromkeys(modules))
    return env


async def _shipped(
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
    return await cache.ship(_local(value, base), kind, excludes, client)


def _local(value: str | Path, base: Path) -> Path:
    return base / Path(value).expanduser()


def _sweep() -> None:
    """Remove what programs left that were killed: their folders carry the number of a process that is gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)
