"""BlobFiles: large payloads and results as files, named by their digest, next to the database."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from ray_multicluster_scheduler.common.blob_names import digest_of, new_digest
from ray_multicluster_scheduler.common.exception import StoreError, StoreFullError
from ray_multicluster_scheduler.control_plane.store.private_file import DISK_FULL, make_folder, sync_folder

PIECE_BYTES = 2**20


class BlobFiles:
    """A file gets its final name only when its content is durable, so a named file is complete."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_folder(folder)

    def write(self, digest: str, data: bytes) -> None:
        """Write content and name durably. Raises StoreFullError."""
        path = self._path(digest)
        draft = path.with_name(f"{digest}.{uuid.uuid4().hex}.part")
        try:
            make_folder(path.parent)
            if not path.exists():
                with open(draft, "wb") as file:
                    file.write(data)
                    file.flush()
                    _sync(file.fileno())
                draft.rename(path)
            sync_folder(path.parent)  # also for an existing file: its name may not be durable yet
        except OSError as error:
            with suppress(OSError):
                draft.unlink()
            raise _write_error(error, path) from error

    def read(self, digest: str) -> bytes | None:
        """None if there is no such file. Raises StoreError for a damaged one."""
        path = self._path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _read_error(error, path) from error
        if digest_of(data) != digest:
            raise _damaged(path)
        return data

    def pieces(self, digest: str) -> tuple[int, Iterator[bytes]] | None:
        """The size of a file, and its content in pieces; None if there is none. The last piece is only yielded if the
        digest is right; otherwise StoreError is raised, so a reader never gets the whole of a damaged file."""
        path = self._path(digest)
        try:
            file = open(path, "rb")  # noqa: SIM115 - the iterator closes it
            return os.fstat(file.fileno()).st_size, _pieces(file, path, digest)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _read_error(error, path) from error

    def remove(self, digest: str) -> None:
        """Does nothing if there is no such file."""
        self._path(digest).unlink(missing_ok=True)

    def any(self) -> bool:
        return next(self._files(), None) is not None

    def sweep(self, known: frozenset[str]) -> int:
        """Remove leftovers of a killed process: unfinished files, and files that the database does not know."""
        orphans = [path for path in self._files() if path.name not in known]
        for path in orphans:
            path.unlink(missing_ok=True)
        return len(orphans)

    def _files(self) -> Iterator[Path]:
        for folder in self._folder.iterdir():
            if folder.is_dir():
                yield from folder.iterdir()

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest


def _pieces(file: BinaryIO, path: Path, digest: str) -> Iterator[bytes]:
    with file:
        actual, last = new_digest(), b""
        while piece := file.read(PIECE_BYTES):
            actual.update(piece)
            if last:
                yield last
            last = piece
        if actual.hexdigest() != digest:
            raise _damaged(path)
        yield last


def _damaged(path: Path) -> StoreError:
    return StoreError(f"The payload in {path} is damaged.", next_step="restore it from a backup")


def _read_error(error: OSError, path: Path) -> StoreError:
    return StoreError(f"A payload cannot be read from {path}: {error.strerror}.")


def _write_error(error: OSError, path: Path) -> StoreError:
    if error.errno in DISK_FULL:
        return StoreFullError(
            f"There is no room for a payload in {path.parent.parent}: {error.strerror}.",
            next_step="free some space on that disk, then submit it again",
        )
    return StoreError(f"A payload could not be written to {path}: {error.strerror}.")


def _sync(descriptor: int) -> None:
    """Flush to the disk. On macOS fsync alone does not; not every file system there supports F_FULLFSYNC."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        with suppress(OSError):
            fcntl.fcntl(descriptor, full)
            return
    os.fsync(descriptor)
