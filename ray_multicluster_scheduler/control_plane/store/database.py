"""The SQLite file: connections, the reader pool, SQL statements, migrations, and the sentences of its errors.

SQL lives in ``sql/*.sql``, where each statement begins with a line ``-- name: something``, and in ``migrations/*.sql``.
"""

from __future__ import annotations

import re
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import apsw

from ray_multicluster_scheduler.common.exception import StoreError, StoreFullError
from ray_multicluster_scheduler.control_plane.store.group_writer import StoreBusyError
from ray_multicluster_scheduler.control_plane.store.private_file import DISK_FULL, sync_folder

APPLICATION = 0x524D4353
"""SQLite's application id of our files: RMCS."""

_DAMAGED = (apsw.CorruptError, apsw.NotADBError)
_SQLITE_FILES = frozenset({"-wal", "-shm", "-journal"})
"""Suffixes of SQLite's own files, which it writes before the database."""
_CHECK_UP_TO_BYTES = 256 * 2**20
_MAX_IDLE = 8
_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_PACKAGE = files("ray_multicluster_scheduler.control_plane.store")


def statements(file: str) -> dict[str, str]:
    """All statements of ``sql/<file>.sql`` by name."""
    text = (_PACKAGE / "sql" / f"{file}.sql").read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    return {name: statement.strip() for name, statement in zip(parts[::2], parts[1::2], strict=True)}


def migrations() -> list[tuple[int, str, str]]:
    """Number, name and text of each migration in order; numbers begin with 1 and have no gaps."""
    found = []
    for path in sorted((_PACKAGE / "migrations").iterdir(), key=lambda one: one.name):
        if path.name.endswith(".sql"):
            number, _, name = path.name.removesuffix(".sql").partition("_")
            found.append((int(number), name, path.read_text(encoding="utf-8")))
    return found


def connect(path: Path, *, vfs: str | None = None, writes: bool) -> apsw.Connection:
    """A connection with a busy timeout. A commit returns only when the disk has it."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE if writes else apsw.SQLITE_OPEN_READONLY
    connection = apsw.Connection(str(path), flags=flags, vfs=vfs)
    connection.set_busy_timeout(10_000)
    if writes:
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "full")
        connection.pragma("secure_delete", "fast")  # deleted data is overwritten where its page is written anyway
        if sys.platform == "darwin":
            connection.pragma("fullfsync", True)
            connection.pragma("checkpoint_fullfsync", True)
    return connection


def close(connection: apsw.Connection) -> None:
    """Close. If the disk is full, the write-ahead log stays and is applied when the database is opened again."""
    try:
        connection.close()
    except (apsw.FullError, apsw.IOError):
        connection.close(True)


class ReaderPool:
    """Read-only connections, each lent to one reader at a time. Readers see what is durable. Thread-safe."""

    def __init__(self, path: Path, vfs: str | None) -> None:
        self._path, self._vfs = path, vfs
        self._sql = statements("read")
        self._idle: list[apsw.Connection] = []
        self._lent = 0
        self._closed = False
        self._returned = threading.Condition()

    def close(self) -> None:
        """Wait for readers, then close all connections."""
        with self._returned:
            self._closed = True
            self._returned.wait_for(lambda: self._lent == 0)
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def rows(self, *names: str, values: Any = ()) -> list[Any]:
        """All rows of a query that is put together of these named parts. Raises StoreError."""
        sql = self._sql[names[0]] if len(names) == 1 else "\n".join(self._sql[name] for name in names)
        with translated_errors(self._path), self._lend() as connection:
            return list(connection.execute(sql, values))

    def value(self, name: str, *values: Any) -> Any:
        """The first value of the first row, or None. Raises StoreError."""
        return next((row[0] for row in self.rows(name, values=values)), None)

    @contextmanager
    def _lend(self) -> Iterator[apsw.Connection]:
        with self._returned:
            if self._closed:
                raise StoreError("The store is closed.")
            self._lent += 1
            connection = self._idle.pop() if self._idle else None
        try:
            if connection is None:
                connection = connect(self._path, vfs=self._vfs, writes=False)
            yield connection
        finally:
            with self._returned:
                self._lent -= 1
                if connection is not None and len(self._idle) < _MAX_IDLE:
                    self._idle.append(connection)
                elif connection is not None:
                    connection.close()
                self._returned.notify_all()


@contextmanager
def translated_errors(path: Path, connection: apsw.Connection | None = None) -> Iterator[None]:
    """Turn SQLite's errors into StoreError. ConstraintError passes: it is the fault of one change, not of the store."""
    try:
        yield
    except apsw.ConstraintError:
        raise
    except apsw.Error as error:
        errno = connection.system_errno if connection is not None else 0
        if isinstance(error, apsw.FullError) or (isinstance(error, apsw.IOError) and errno in DISK_FULL):
            raise StoreFullError(
                f"There is no room for {path}: {error}.", next_step="free some space on that disk; no data is lost"
            ) from error
        if isinstance(error, apsw.BusyError):
            raise StoreBusyError(
                f"Another process is writing to {path}.", next_step="end the other process that has that file open"
            ) from error
        if isinstance(error, _DAMAGED):
            raise _damaged(path, str(error)) from error
        raise StoreError(f"The database {path} cannot be used: {error}.", next_step="check that disk") from error


def _damaged(path: Path, what: str) -> StoreError:
    return StoreError(
        f"The database {path} is damaged: {what}.",
        next_step="restore it from a backup, or move the folder away to begin without its data",
    )


def check_not_lost(path: Path, *, was_created: bool, has_payloads: bool) -> None:
    """Raises StoreError if the database was lost: creating a new one would hide that. An empty file without
    ``was_created`` is the leftover of a process that was killed before it could accept anything."""
    if path.exists() and path.stat().st_size:
        return
    left = [one.name for one in path.parent.glob(f"{path.name}?*") if one.stat().st_size]
    if path.exists() and not was_created:
        left = [one for one in left if one.removeprefix(path.name) not in _SQLITE_FILES]
    if left or was_created or has_payloads:
        what = "is empty" if path.exists() else "is missing"
        raise _damaged(path, f"it {what}, but {', '.join(left) or 'files'} in the same folder show that there was one")


def migrate(connection: apsw.Connection, path: Path) -> None:
    """Apply missing migrations, after a backup. Raises StoreError for a file that is foreign, newer, or damaged."""
    known = migrations()
    version, application = connection.pragma("user_version"), connection.pragma("application_id")
    if application not in (0, APPLICATION) or (application == 0 and _has_tables(connection)):
        raise StoreError(f"{path} is a database of another program.", next_step="give another folder")
    if version > len(known):
        raise StoreError(
            f"The database {path} was written by a newer version: its format is {version}, the last one known here "
            f"is {len(known)}.",
            next_step="use that version, or restore the backup that it made",
        )
    if path.stat().st_size < _CHECK_UP_TO_BYTES:
        problem = connection.execute("PRAGMA quick_check(1)").get
        if problem != "ok":
            raise _damaged(path, str(problem))
    if 0 < version < len(known):
        connection.execute("UPDATE leader SET epoch = epoch + 1")  # the previous leader must not write any more
        _back_up(connection, path.with_name(f"{path.name}.before-{version + 1:04}"))
    for number, _, text in known[version:]:
        with connection:
            connection.execute(text)
            if number == 1:
                connection.execute("INSERT INTO leader VALUES (1, ?, 0, 1, 0, 0, 0)", (uuid.uuid4().hex,))
            connection.pragma("user_version", number)
            connection.pragma("application_id", APPLICATION)


def _has_tables(connection: apsw.Connection) -> bool:
    return bool(connection.execute("SELECT count(*) FROM sqlite_schema").get)


def _back_up(connection: apsw.Connection, to: Path) -> None:
    """Copy the database to a file that gets its name only when the copy is complete and durable."""
    draft = to.with_name(f"{to.name}.part")
    draft.unlink(missing_ok=True)
    copy = apsw.Connection(str(draft))
    try:
        copy.pragma("synchronous", "full")
        with copy.backup("main", connection, "main") as backup:
            backup.step()
    finally:
        copy.close()
    draft.replace(to)
    sync_folder(to.parent)
