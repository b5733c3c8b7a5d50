"""BlobFiles: large payloads and results as files, named by what is in them, beside the database."""

from __future__ import annotations

import errno
import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from ray_multicluster_scheduler.common.digest import digest_of, new_digest
from ray_multicluster_scheduler.common.exception import StoreError, StoreFullError

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What a system says when a disk, or somebody's share of it, is full."""
PIECE_BYTES = 2**20


class BlobFiles:
    """A file has its name only when all of it is on the disk, so that one that is there is whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_folder(folder)

    def write(self, digest: str, data: bytes) -> None:
        """On the disk when this returns, name and all. Raises StoreFullError."""
        path = self._path(digest)
        unfinished = path.with_name(f"{digest}.{uuid.uuid4().hex}.part")
        try:
            make_folder(path.parent)
            if not path.exists():
                with open(unfinished, "wb") as file:
                    file.write(data)
                    file.flush()
                    _sync(file.fileno())
                unfinished.rename(path)
            sync_folder(path.parent)  # of one that was there before, too: its name may not be on the disk yet
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()
            raise _trouble(error, path) from error

    def read(self, digest: str) -> bytes | None:
        """None if there is no such file. Raises StoreError for one that is not what it was."""
        path = self._path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"A payload cannot be read from {path}: {error.strerror}.") from error
        if digest_of(data) != digest:
            raise StoreError(f"The payload in {path} is damaged.", next_step="restore it from a backup")
        return data

    def pieces(self, digest: str) -> tuple[int, Iterator[bytes]] | None:
        """The size of a file, and what is in it piece by piece; None if there is none. The last piece comes only if all
        of it is what it was: else StoreError is raised, and whoever reads has not got the whole."""
        path = self._path(digest)
        try:
            file = open(path, "rb")  # noqa: SIM115 - whoever reads the pieces closes it
            return os.fstat(file.fileno()).st_size, _pieces(file, path, digest)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"A payload cannot be read from {path}: {error.strerror}.") from error

    def remove(self, digest: str) -> None:
        """Nothing happens if it is not there."""
        self._path(digest).unlink(missing_ok=True)

    def any(self) -> bool:
        return next(self._files(), None) is not None

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


def _pieces(file: BinaryIO, path: Path, digest: str) -> Iterator[bytes]:
    with file:
        found, last = new_digest(), b""
        while piece := file.read(PIECE_BYTES):
            found.update(piece)
            if last:
                yield last
            last = piece
        if found.hexdigest() != digest:
            raise StoreError(f"The payload in {path} is damaged.", next_step="restore it from a backup")
        yield last


def make_folder(folder: Path) -> None:
    """For its owner only, and on the disk when this returns."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(folder.parent)


def _trouble(error: OSError, path: Path) -> StoreError:
    if error.errno in NO_ROOM:
        return StoreFullError(
            f"There is no room for a payload in {path.parent.parent}: {error.strerror}.",
            next_step="free some space on that disk, then submit it again",
        )
    return StoreError(f"A payload could not be written to {path}: {error.strerror}.")


def _sync(descriptor: int) -> None:
    """To the disk itself: on macOS fsync alone does not say so, and not every file system there can be told."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        with suppress(OSError):
            fcntl.fcntl(descriptor, full)
            return
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """The names in it are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
