"""BlobFiles: large payloads and results as files, named by what is in them, beside the database."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ray_multicluster_scheduler.common.exception import StoreError, StoreFullError

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_UNFINISHED = ".part"


class BlobFiles:
    """A file has its name only when all of it is on the disk, so that one that is there is whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, digest: str, data: bytes) -> None:
        """On the disk when this returns. Raises StoreFullError."""
        path = self._path(digest)
        if path.exists():
            return
        unfinished = path.with_name(f"{digest}.{os.getpid()}-{id(data)}{_UNFINISHED}")
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with open(unfinished, "wb") as file:
                file.write(data)
                file.flush()
                _sync(file.fileno())
            unfinished.rename(path)
            _sync_folder(path.parent)
            _sync_folder(self._folder)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()
            raise _trouble(error, path) from error

    def read(self, digest: str) -> bytes | None:
        """None if there is no such file."""
        try:
            return self._path(digest).read_bytes()
        except FileNotFoundError:
            return None

    def remove(self, digest: str) -> None:
        """Nothing happens if it is not there."""
        self._path(digest).unlink(missing_ok=True)

    def sweep(self, known: frozenset[str]) -> int:
        """Remove what a process that ended in the middle has left: unfinished files, and those that nobody knows."""
        strangers = [path for path in self._files() if path.name not in known]
        for path in strangers:
            path.unlink(missing_ok=True)
        return len(strangers)

    def _files(self) -> Iterator[Path]:
        for folder in self._folder.iterdir():
            if folder.is_dir():
                yield from folder.iterdir()

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest


def _trouble(error: OSError, path: Path) -> StoreError:
    if error.errno in NO_ROOM:
        return StoreFullError(
            f"There is no room for a payload in {path.parent.parent}: {error.strerror}.",
            next_step="free some space on that disk, then submit it again",
        )
    return StoreError(f"A payload could not be written to {path}: {error.strerror}.")


def _sync(descriptor: int) -> None:
    """To the disk itself: on macOS fsync alone does not say so."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, full)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
