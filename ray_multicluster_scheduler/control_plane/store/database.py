"""The SQLite file: how it is opened, brought up to date, and what is said when that fails."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from ray_multicluster_scheduler.common.exception import StoreError, StoreFullError
from ray_multicluster_scheduler.control_plane.store.blob_files import NO_ROOM, sync_folder
from ray_multicluster_scheduler.control_plane.store.group_writer import StoreBusyError
from ray_multicluster_scheduler.control_plane.store.sql_files import migrations

APPLICATION = 0x524D4353
"""Says to whom such a file belongs: RMCS."""

_DAMAGED = (apsw.CorruptError, apsw.NotADBError)
_BESIDE = frozenset({"-wal", "-shm", "-journal"})
"""Files of SQLite itself: it writes to these first."""
_CHECKED_BYTES = 256 * 2**20


def connect(path: Path, *, vfs: str | None = None, writes: bool) -> apsw.Connection:
    """A connection that waits for others a while, and that is told of every commit only when the disk has it."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE if writes else apsw.SQLITE_OPEN_READONLY
    connection = apsw.Connection(str(path), flags=flags, vfs=vfs)
    connection.set_busy_timeout(10_000)
    if writes:
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "full")
        connection.pragma("secure_delete", "fast")  # what is forgotten is overwritten where its page is written anyway
        if sys.platform == "darwin":
            connection.pragma("fullfsync", True)
            connection.pragma("checkpoint_fullfsync", True)
    return connection


def close(connection: apsw.Connection) -> None:
    """What the disk has no room for now stays in the file beside, and is taken up when it is opened again."""
    try:
        connection.close()
    except (apsw.FullError, apsw.IOError):
        connection.close(True)


@contextmanager
def sentences(path: Path, connection: apsw.Connection | None = None) -> Iterator[None]:
    """What SQLite says, as an error that tells an operator what to do. One change that breaks a rule of the tables is
    not the store's trouble: that ConstraintError goes on as it is."""
    try:
        yield
    except apsw.ConstraintError:
        raise
    except apsw.Error as error:
        system = connection.system_errno if connection is not None else 0
        if isinstance(error, apsw.FullError) or (isinstance(error, apsw.IOError) and system in NO_ROOM):
            raise StoreFullError(
                f"There is no room for {path}: {error}.", next_step="free some space on that disk; nothing is lost"
            ) from error
        if isinstance(error, apsw.BusyError):
            raise StoreBusyError(
                f"Somebody else is writing to {path}.", next_step="end whatever else has that file open"
            ) from error
        if isinstance(error, _DAMAGED):
            raise _damaged(path, str(error)) from error
        raise StoreError(f"The database {path} cannot be used: {error}.", next_step="look at that disk") from error


def _damaged(path: Path, what: str) -> StoreError:
    return StoreError(
        f"The database {path} is damaged: {what}.",
        next_step="restore it from a backup, or move the folder aside to begin without what it knows",
    )


def refuse_to_begin_anew(path: Path, *, made: bool, payloads: bool) -> None:
    """Raises StoreError where there was a database: it is lost, and a new one would hide that. An empty one that was
    never ``made`` is what a process left that was killed before anything could be accepted."""
    if path.exists() and path.stat().st_size:
        return
    left = [one.name for one in path.parent.glob(f"{path.name}?*") if one.stat().st_size]
    if path.exists() and not made:
        left = [one for one in left if one.removeprefix(path.name) not in _BESIDE]
    if left or made or payloads:
        what = "is empty" if path.exists() else "is missing"
        raise _damaged(path, f"it {what}, and {', '.join(left) or 'what is'} beside it shows that there was one")


def bring_up_to_date(connection: apsw.Connection, path: Path) -> None:
    """Apply what is missing, after a backup. Raises StoreError for a file that is not ours, newer, or damaged."""
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
    if path.stat().st_size < _CHECKED_BYTES:
        problem = connection.execute("PRAGMA quick_check(1)").get
        if problem != "ok":
            raise _damaged(path, str(problem))
    if 0 < version < len(known):
        connection.execute("UPDATE leader SET epoch = epoch + 1")  # nobody else writes between here and there
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
    """Another file with all of it, which has its name only when it is whole and on the disk."""
    unfinished = to.with_name(f"{to.name}.part")
    unfinished.unlink(missing_ok=True)
    copy = apsw.Connection(str(unfinished))
    try:
        copy.pragma("synchronous", "full")
        with copy.backup("main", connection, "main") as backup:
            backup.step()
    finally:
        copy.close()
    unfinished.replace(to)
    sync_folder(to.parent)
