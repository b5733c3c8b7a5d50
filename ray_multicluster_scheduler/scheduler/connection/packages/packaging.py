"""Folders and modules of this machine, made into packages that a cluster can fetch.

A package is named by its content: equal files give an equal ``gcs://_ray_pkg_<hash>.zip``, on every machine and at
every time. The cluster drops a package that nothing refers to, so it is looked for before each use.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import os
import uuid
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.scheduler.connection.packages.package_files import Entry, file_entry, list_entries

MAX_PACKAGE_BYTES = 500 * 1024 * 1024
"""What Ray itself takes at most."""

PackageKind = Literal["working_dir", "py_module"]

_EPOCH = (1980, 1, 1, 0, 0, 0)
_CHUNK = 1024 * 1024
_UNIX = 3
_FILE, _PROGRAM, _FOLDER = 0o100644, 0o100755, 0o040755
_NOT_WORK = (".venv", "venv")
"""Left out of a working_dir as Ray does it; a pattern such as `!venv` in `excludes` takes it back in."""

_MODULES = tuple(importlib.machinery.all_suffixes())


@dataclass(frozen=True, slots=True)
class Package:
    """A file ready to be uploaded under ``uri``."""

    uri: str
    path: Path
    size: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a package would hold: cheap to make, and equal as long as no file was touched.

    ``ready_made`` is a file that is uploaded as it is (a wheel, or a zip as working_dir).
    """

    source: Path
    entries: tuple[Entry, ...]
    ready_made: bool = False

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for entry in self.entries:
            digest.update(repr((entry.name, entry.stamp)).encode())
        return digest.hexdigest()


def plan_package(path: Path, kind: PackageKind, excludes: Sequence[str] = ()) -> Plan:
    """List what belongs into the package. Raises TaskSubmissionError that names the path."""
    if kind == "py_module":
        return _plan_module(path, excludes)
    if path.is_file() and path.suffix == ".zip":
        return Plan(path, (file_entry(path),), ready_made=True)
    if not path.is_dir():
        raise _unusable("working_dir", path, "give a folder, a .zip file, or a URI such as s3://…")
    return Plan(path, tuple(list_entries(path, [*_NOT_WORK, *excludes])))


def write_package(plan: Plan, folder: Path, *, max_bytes: int = MAX_PACKAGE_BYTES) -> Package:
    """Make the package in ``folder``. Raises TaskSubmissionError if it grows too large or a file vanishes."""
    try:
        if plan.ready_made:
            return _take_as_is(plan.source, max_bytes)
        draft = folder / f"{uuid.uuid4().hex}.draft"
        digest = _zip(plan, draft, max_bytes)
        final = draft.with_name(f"_ray_pkg_{digest}.zip")
        draft.replace(final)
        return Package(f"gcs://{final.name}", final, final.stat().st_size)
    except OSError as error:
        raise TaskSubmissionError(
            f"{plan.source} could not be packed: {error.filename}: {error.strerror}.",
            next_step="see that nothing changes or removes files there while it is submitted",
        ) from error


def _plan_module(path: Path, excludes: Sequence[str]) -> Plan:
    if path.is_dir():
        # The folder is the package's name in `import`, so it stays a part of every name. A link has a name of its own.
        inner = list_entries(path, excludes)
        prefix = f"{os.path.basename(os.path.abspath(path))}/"
        entries = (Entry(prefix + e.name, e.path, e.executable, e.is_dir, e.stamp) for e in inner)
        return Plan(path, tuple(entries))
    if path.is_file() and path.name.endswith(_MODULES):
        return Plan(path, (file_entry(path),))
    if path.is_file() and path.suffix == ".whl":
        return Plan(path, (file_entry(path),), ready_made=True)
    raise _unusable("py_modules", path, "give the folder of a package, a .py or .whl file, or a URI such as s3://…")


def _take_as_is(path: Path, max_bytes: int) -> Package:
    size = path.stat().st_size
    if size > max_bytes:
        raise _too_large(path, max_bytes)
    if path.suffix == ".whl":  # pip reads name, version and platform out of a wheel's file name
        return Package(f"gcs://{path.name}", path, size)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:40]
    return Package(f"gcs://_ray_pkg_{digest}.zip", path, size)


def _zip(plan: Plan, target: Path, max_bytes: int) -> str:
    """Write the zip; the hash is over names, modes and contents, so that it does not depend on the compressor."""
    digest = hashlib.sha256()
    try:
        with target.open("wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for entry in plan.entries:
                _add(archive, entry, digest.update)
                if file.tell() > max_bytes:
                    raise _too_large(plan.source, max_bytes)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return digest.hexdigest()[:40]


def _add(archive: zipfile.ZipFile, entry: Entry, update: Callable[[bytes], object]) -> None:
    info = zipfile.ZipInfo(entry.name + "/" if entry.is_dir else entry.name, _EPOCH)
    info.create_system = _UNIX
    mode = _FOLDER if entry.is_dir else _PROGRAM if entry.executable else _FILE
    info.external_attr = mode << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    content = hashlib.sha256()
    if entry.is_dir:
        archive.writestr(info, b"")
    else:
        with entry.path.open("rb") as source, archive.open(info, "w", force_zip64=True) as target:
            for chunk in iter(lambda: source.read(_CHUNK), b""):
                content.update(chunk)
                target.write(chunk)
    update(f"{len(info.filename)}:{info.filename}:{mode}:{content.hexdigest()};".encode())


def _unusable(key: str, path: Path, next_step: str) -> TaskSubmissionError:
    what = "is of a kind that cannot be shipped" if path.exists() else "does not exist"
    return TaskSubmissionError(f"{key} of the runtime_env is {path}, which {what}.", next_step=next_step)


def _too_large(path: Path, max_bytes: int) -> TaskSubmissionError:
    return TaskSubmissionError(
        f"The package of {path} is larger than {max_bytes / 1024**2:.0f} MiB, the most that Ray takes.",
        next_step="leave data out with `excludes` in runtime_env or a .gitignore, and read it from shared storage",
    )
