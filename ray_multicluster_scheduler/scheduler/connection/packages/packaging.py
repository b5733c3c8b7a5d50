"""Packages of local folders and modules for ``PackageCache``: selects the files of a package, and writes it.

A package is named by its content: equal files give an equal ``gcs://_ray_pkg_<hash>.zip`` on every machine. The cluster
deletes a package that nothing refers to, so check for it before each use.

``.gitignore`` and ``.rayignore`` are read in every folder, as Ray does. A deeper one can undo a pattern with ``!``, as
in git and unlike Ray, which then leaves the file out.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import logging
import os
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISREG, S_IXUSR
from typing import TYPE_CHECKING, Literal

from ray_multicluster_scheduler.common.exception import TaskSubmissionError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

logger = logging.getLogger(__name__)

MAX_PACKAGE_BYTES = 500 * 1024 * 1024
"""The limit of Ray itself."""

PackageKind = Literal["working_dir", "py_module"]

_EPOCH = (1980, 1, 1, 0, 0, 0)
_CHUNK = 1024 * 1024
_UNIX = 3
_FILE, _PROGRAM, _FOLDER = 0o100644, 0o100755, 0o040755
_DEFAULT_EXCLUDES = (".venv", "venv")
"""Left out of a working_dir, as Ray does; a pattern such as `!venv` in `excludes` includes it again."""

_MODULES = tuple(importlib.machinery.all_suffixes())
ALWAYS_SKIPPED = frozenset({".git", "__pycache__"})
NO_GITIGNORE = "RAY_RUNTIME_ENV_IGNORE_GITIGNORE"
"""If set to 1, `.gitignore` is not read: for generated code that git ignores but a cluster needs."""


@dataclass(frozen=True, slots=True)
class Package:
    """A file to upload as ``uri``."""

    uri: str
    path: Path
    size: int


@dataclass(frozen=True, slots=True)
class PackagePlan:
    """The contents of a package: cheap to make, and equal while no file has changed.

    ``ready_made``: the source is uploaded as it is (a wheel, or a zip as working_dir).
    """

    source: Path
    entries: tuple[Entry, ...]
    ready_made: bool = False

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for entry in self.entries:
            digest.update(repr((entry.name, entry.stamp)).encode())
        return digest.hexdigest()


def plan_package(path: Path, kind: PackageKind, excludes: Sequence[str] = ()) -> PackagePlan:
    """List what belongs into the package. Raises TaskSubmissionError with the path."""
    if kind == "py_module":
        return _plan_module(path, excludes)
    if path.is_file() and path.suffix == ".zip":
        return PackagePlan(path, (file_entry(path),), ready_made=True)
    if not path.is_dir():
        raise _unusable("working_dir", path, "give a folder, a .zip file, or a URI such as s3://…")
    return PackagePlan(path, tuple(list_entries(path, [*_DEFAULT_EXCLUDES, *excludes])))


def write_package(plan: PackagePlan, folder: Path, *, max_bytes: int = MAX_PACKAGE_BYTES) -> Package:
    """Write the package to ``folder``. Raises TaskSubmissionError if it is too large or a file vanishes."""
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
            next_step="make sure that nothing changes or removes files there during the submission",
        ) from error


def _plan_module(path: Path, excludes: Sequence[str]) -> PackagePlan:
    if path.is_dir():
        # The folder's name is the package's name in `import`, so every entry begins with it; a link has its own name.
        inner = list_entries(path, excludes)
        prefix = f"{os.path.basename(os.path.abspath(path))}/"
        entries = (Entry(prefix + e.name, e.path, e.executable, e.is_dir, e.stamp) for e in inner)
        return PackagePlan(path, tuple(entries))
    if path.is_file() and path.name.endswith(_MODULES):
        return PackagePlan(path, (file_entry(path),))
    if path.is_file() and path.suffix == ".whl":
        return PackagePlan(path, (file_entry(path),), ready_made=True)
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


def _zip(plan: PackagePlan, target: Path, max_bytes: int) -> str:
    """Write the zip. The hash covers names, modes and contents, so it does not depend on the compressor."""
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


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, or one empty folder. ``stamp`` changes whenever the content may have changed."""

    name: str
    path: Path
    executable: bool
    is_dir: bool
    stamp: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Rules:
    """The ignore patterns of one folder; ``prefix`` is that folder's own name in the package, with a slash."""

    prefix: str
    patterns: GitIgnoreSpec


def list_entries(root: Path, excludes: Sequence[str] = ()) -> list[Entry]:
    """The entries of the package of ``root``, sorted by name. Raises TaskSubmissionError."""
    walk = _Walk(root.resolve(), _patterns(excludes, what="excludes"))
    try:
        entries = list(walk.entries(root, "", (), ()))
    except OSError as error:
        raise TaskSubmissionError(
            f"{error.filename or root} cannot be read: {error.strerror}.",
            next_step="make it readable, or leave it out with `excludes` in runtime_env",
        ) from error
    return sorted(entries, key=lambda entry: entry.name)


def file_entry(path: Path) -> Entry:
    """The entry of a single file, named as it is."""
    return _entry(path.name, path, path.stat())


@dataclass(frozen=True, slots=True)
class _Walk:
    """A walk over a folder. ``excludes`` are relative to its root, and no `.gitignore` can undo them."""

    root: Path
    excludes: GitIgnoreSpec

    def entries(self, folder: Path, prefix: str, above: tuple[Path, ...], rules: tuple[_Rules, ...]) -> Iterator[Entry]:
        """``above``: the resolved parent folders; following a link to one of them would not terminate."""
        here = (*above, folder.resolve())
        rules += _own_rules(folder, prefix)
        for item in sorted(os.scandir(folder), key=lambda item: item.name):
            name, path = prefix + item.name, Path(item.path)
            if item.name in ALWAYS_SKIPPED or (item.is_symlink() and not self._stays_inside(path)):
                continue
            status = item.stat()
            is_dir = S_ISDIR(status.st_mode)
            if self._ignored(name + "/" if is_dir else name, rules):
                continue
            if S_ISREG(status.st_mode):
                yield _entry(name, path, status)
            elif is_dir and path.resolve() not in here:
                inner = list(self.entries(path, name + "/", here, rules))
                yield from inner or [_entry(name, path, status)]

    def _ignored(self, name: str, rules: Sequence[_Rules]) -> bool:
        """The innermost ignore file with a matching pattern decides, as in git."""
        if self.excludes.match_file(name):
            return True
        verdicts = (rule.patterns.check_file(name.removeprefix(rule.prefix)).include for rule in reversed(rules))
        return next((verdict for verdict in verdicts if verdict is not None), False)

    def _stays_inside(self, link: Path) -> bool:
        target = link.resolve()
        if target.exists() and target.is_relative_to(self.root):
            return True
        logger.warning("%s is left out of the package: its target %s is missing or outside of it", link, target)
        return False


def _own_rules(folder: Path, prefix: str) -> tuple[_Rules, ...]:
    names = (".rayignore",) if os.environ.get(NO_GITIGNORE) == "1" else (".gitignore", ".rayignore")
    files = [folder / name for name in names if (folder / name).is_file()]
    return tuple(
        _Rules(prefix, _patterns(file.read_text("utf-8", "replace").splitlines(), what=str(file))) for file in files
    )


def _patterns(lines: Iterable[str], *, what: str) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 - only programs that ship files need it

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise TaskSubmissionError(
            f"{what} holds a pattern that is not in .gitignore syntax: {error}.", next_step="correct the pattern"
        ) from error


def _entry(name: str, path: Path, status: os.stat_result) -> Entry:
    stamp = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)
    is_dir = S_ISDIR(status.st_mode)
    return Entry(name, path, bool(status.st_mode & S_IXUSR) and not is_dir, is_dir, stamp)
