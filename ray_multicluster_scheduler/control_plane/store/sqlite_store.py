"""SqliteStore: the Store in one folder: the database ``rmcs.db``, and files of large blobs."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import apsw

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import StoreError, StoreFullError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.store.blob_files import BlobFiles
from ray_multicluster_scheduler.control_plane.store.blob_quota import BlobQuota
from ray_multicluster_scheduler.control_plane.store.change_writer import ChangeWriter
from ray_multicluster_scheduler.control_plane.store.database import (
    ReaderPool,
    check_not_lost,
    close,
    connect,
    migrate,
    statements,
    translated_errors,
)
from ray_multicluster_scheduler.control_plane.store.group_writer import GroupWriter
from ray_multicluster_scheduler.control_plane.store.private_file import make_folder, sync_folder
from ray_multicluster_scheduler.control_plane.store.records import (
    Change,
    EventRecord,
    FleetState,
    ItemPage,
    ItemQuery,
    ItemStatus,
    NewItem,
    OperationRecord,
    Outcome,
    ServingTask,
    Step,
    StorageUsage,
    StoredDecision,
    StoredItem,
    UnfinishedCount,
)
from ray_multicluster_scheduler.control_plane.store.secret_encryption import KEY_FILE, SecretCipher
from ray_multicluster_scheduler.control_plane.store.state_folder import DATABASE

_log = get_logger(__name__)
_T = TypeVar("_T")
SMALL_BYTES = 32 * 1024
"""Blobs up to this size are rows, of which one commit makes hundreds durable; larger ones are files. Output is always
written as rows, with the end of its attempt."""
_ADD_FILE = "INSERT OR IGNORE INTO blobs (digest, bytes, data) VALUES (?, ?, NULL)"
_READ_BATCH = 1_000
_EXPIRE_BATCH = 500
_BEYOND_LAST_NUMBER = 2**62
_FILTERS = ("kind", "owner", "cluster", "name", "id_prefix", "since", "until")
_DELETE_ITEM = (
    "delete_steps",
    "delete_decisions",
    "delete_outcomes",
    "delete_outputs",
    "delete_payloads",
    "delete_item",
)


class SqliteStore:
    """See :class:`Store`. The process that opens it becomes its leader.

    Raises StoreError if the file is damaged, lost, newer than this program, or not ours, and StoreFullError.
    """

    def __init__(
        self, folder: Path, *, most_blob_bytes: int = 2 * 2**30, quota_bytes: int = 100 * 2**30, vfs: str | None = None
    ) -> None:
        self.path = folder / DATABASE
        try:
            make_folder(folder)
            self._files = BlobFiles(folder / "blobs")
            created = folder / "rmcs.made"
            check_not_lost(self.path, was_created=created.exists(), has_payloads=self._files.any())
        except OSError as error:
            raise StoreError(f"The state folder {folder} cannot be used: {error.strerror}.") from error
        with translated_errors(self.path):
            self._connection = connect(self.path, vfs=vfs, writes=True)
            self._readers = ReaderPool(self.path, vfs)
            try:
                migrate(self._connection, self.path)
                if not created.exists():  # durable before anything is accepted: see check_not_lost
                    created.touch(mode=0o600)
                    sync_folder(folder)
                self._changes = ChangeWriter(self._connection)
                used_bytes: int = self._readers.value("blob_bytes")
            except BaseException:
                self._readers.close()
                close(self._connection)
                raise
        self.epoch, self.control_plane = self._changes.epoch, self._changes.control_plane
        self._quota = BlobQuota(used_bytes, most_blob_bytes, quota_bytes, self._has_blob)
        self.cipher = SecretCipher(folder / KEY_FILE)
        self._retention = statements("retention")
        self._commit_callbacks: list[Callable[[float], object]] = []
        self._writer = GroupWriter(self._commit)

    def close(self) -> None:
        self._writer.close()
        self._readers.close()
        close(self._connection)

    # ---- writing

    @property
    def write_problem(self) -> str | None:
        return self._writer.write_problem

    def on_write_problem(self, callback: Callable[[str | None], object]) -> None:
        self._writer.on_write_problem(callback)

    def on_commit(self, callback: Callable[[float], object]) -> None:
        self._commit_callbacks.append(callback)

    def usage(self) -> StorageUsage:
        try:
            return StorageUsage(shutil.disk_usage(self.path.parent).free, self._quota.used_bytes)
        except OSError as error:
            raise StoreError(f"The state folder {self.path.parent} cannot be read: {error.strerror}.") from error

    def write(self, change: Change) -> Future[int]:
        future = self._writer.put(change)
        if change.blobs:
            digests = list(change.blobs)
            future.add_done_callback(lambda done: self._quota.settle(digests, written=done.exception() is None))
        return future

    def _commit(self, change: Change) -> int:
        began = perf_counter()
        with translated_errors(self.path, self._connection):
            number = self._changes.commit(change)
        took = perf_counter() - began
        for callback in self._commit_callbacks:
            try:
                callback(took)
            except Exception:  # noqa: BLE001 - a defect of the callback; the change is written, and must not be repeated
                _log.exception("a callback for commits of the store failed")
        return number

    # ---- reading

    def open_items(self) -> Iterator[StoredItem]:
        last = 0
        while rows := self._readers.rows("open_items", values=(last, _READ_BATCH)):
            yield from map(self._stored_item, rows)
            last = rows[-1][0]

    def item(self, item_id: str) -> StoredItem | None:
        return next(map(self._stored_item, self._readers.rows("item", values=(item_id,))), None)

    def known_ids(self, item_ids: Sequence[str]) -> set[str]:
        hashes = {_hash(one): one for one in item_ids}
        if len(hashes) == 1:
            (number, item_id), *_ = hashes.items()
            return {item_id} if self._readers.value("known_id", item_id, number) is not None else set()
        rows = self._readers.rows("known_ids", values=(json.dumps(list(item_ids)), json.dumps(list(hashes))))
        return {hashes[one] if isinstance(one, int) else one for (one,) in rows}

    def owns_blob(self, owner: str, digest: str) -> bool:
        return self._readers.value("owns_blob", digest, owner) is not None

    def id_by_key(self, owner: str, key: str) -> str | None:
        item_id: str | None = self._readers.value("id_by_key", owner, key)
        return item_id

    def retries_of(self, item_id: str, most: int) -> list[str]:
        return [one for (one,) in self._readers.rows("retries_of", values=(item_id, most))][::-1]

    def items(self, query: ItemQuery) -> ItemPage:
        """The SQL has only the conditions that are given, so that an index can serve it."""
        first = 0 if query.oldest_first else _BEYOND_LAST_NUMBER
        values: dict[str, Any] = {"after": first if query.after is None else query.after, "limit": query.limit}
        parts = ["items", "items_after" if query.oldest_first else "items_before"]
        for name in _FILTERS:
            value = getattr(query, name)
            if value is not None:
                parts.append(f"items_{name}")
                values[name] = value
        if query.states:
            parts.append("items_states")
            values["states"] = json.dumps([str(state) for state in query.states])
            if not any(state.terminal for state in query.states):
                parts.append("items_unfinished")
        parts.append("items_oldest_first" if query.oldest_first else "items_newest_first")
        items = tuple(map(self._stored_item, self._readers.rows(*parts, values=values)))
        return ItemPage(items, items[-1].new.number if len(items) == query.limit else None)

    def oldest_completed_run(self, owner: str | None) -> float | None:
        at: float | None = self._readers.value("oldest_completed_run", owner)
        return at

    def count_unfinished(self) -> list[UnfinishedCount]:
        rows = self._readers.rows("count_unfinished")
        return [UnfinishedCount(kind, owner, TaskState(state), *rest) for kind, owner, state, *rest in rows]

    def steps(self, item_id: str) -> list[Step]:
        return [_step(row) for row in self._readers.rows("steps", values={"id": item_id})]

    def events_after(self, number: int, limit: int) -> list[EventRecord]:
        return [_event(row) for row in self._readers.rows("events_after", values={"after": number, "limit": limit})]

    @property
    def last_event_number(self) -> int:
        return self._counter(2)

    def decisions(self, item_id: str) -> list[StoredDecision]:
        return [StoredDecision(*row) for row in self._readers.rows("decisions", values={"id": item_id})]

    def outcome(self, item_id: str) -> Outcome | None:
        return next((Outcome(*row) for row in self._readers.rows("outcome", values={"id": item_id})), None)

    def output(self, item_id: str, attempt: int) -> list[str | None]:
        return [digest for (digest,) in self._readers.rows("output", values=(item_id, attempt))]

    def fleet(self) -> FleetState:
        rows = self._readers.rows("fleet")
        documents: dict[str, dict[str, bytes]] = {"cluster": {}, "owner": {}, "pool": {}}
        for what, name, document in rows:
            documents[what][name] = document
        return FleetState(*documents.values())

    def last_dispatches_since(self, at: float) -> list[tuple[str, str, float]]:
        return list(self._readers.rows("last_dispatches_since", values=(at,)))

    def settings(self, prefix: str) -> dict[str, bytes]:
        return dict(self._readers.rows("settings", values={"prefix": prefix}))

    def serving_tasks(self) -> Iterator[ServingTask]:
        last = 0
        while rows := self._readers.rows("serving_tasks", values=(last, _READ_BATCH)):
            yield from (ServingTask(*row[1:]) for row in rows)
            last = rows[-1][0]

    @property
    def next_fence(self) -> int:
        return self._counter(0)

    @property
    def next_number(self) -> int:
        return self._counter(1) + 1

    def _counter(self, column: int) -> int:
        return int(self._readers.rows("leader")[0][column])

    def _stored_item(self, row: Any) -> StoredItem:
        number, item_id, *accepted = row[:9]
        blobs = tuple(digest for (digest,) in self._readers.rows("payloads", values=(number,)))
        *status, is_open, rest = row[10:]
        new = NewItem._make((item_id, number, *accepted, blobs))
        return StoredItem(new, ItemStatus._make((item_id, TaskState(row[9]), *status, bool(is_open), rest)))

    # ---- retention

    def _transact(self, action: Callable[[apsw.Connection], _T]) -> _T:
        """Run ``action`` in a transaction on the writer's thread, and wait for its result."""

        def run() -> _T:
            with translated_errors(self.path, self._connection), self._changes.transaction() as connection:
                return action(connection)

        result: _T = self._writer.put(run).result()
        return result

    def expire_payloads(self, ended_before: float, needed: Collection[str] = ()) -> None:
        values = {"ended_before": ended_before, "needed": json.dumps(list(needed))}

        def delete(connection: apsw.Connection) -> None:
            for name in ("delete_payloads_before", "delete_outputs_before", "delete_values_before"):
                connection.execute(self._retention[name], values)

        self._transact(delete)

    def expire(self, ended_before: float, keep: int, needed: Collection[str] = ()) -> int:
        sql, limits = self._retention, {"ended_before": ended_before, "needed": json.dumps(list(needed))}

        def expire_operations(connection: apsw.Connection) -> int:
            connection.execute(sql["delete_notes_before"], (ended_before, _EXPIRE_BATCH))
            return connection.changes()

        def expire_items(connection: apsw.Connection) -> int:
            newest = next(connection.execute(sql["newest_to_expire"], (keep,)), (-inf, 0))
            values = {"finished_at": newest[0], "number": newest[1], "limit": _EXPIRE_BATCH, **limits}
            return self._delete_items(connection, "to_expire", values)

        while self._transact(expire_operations) == _EXPIRE_BATCH:
            pass
        total = count = self._transact(expire_items)
        while count == _EXPIRE_BATCH:
            count = self._transact(expire_items)
            total += count
        return total

    def forget(self, item_id: str, needed: Collection[str] = ()) -> bool:
        values = {"id": item_id, "needed": json.dumps(list(needed))}
        return self._transact(lambda connection: self._delete_items(connection, "to_forget", values)) > 0

    def _delete_items(self, connection: apsw.Connection, query: str, values: dict[str, Any]) -> int:
        """Delete all rows of the items that a query finds, and keep a hash of each id. Returns the number of items."""
        items = list(connection.execute(self._retention[query], values))
        connection.executemany(self._retention["expire"], [(_hash(item_id),) for _, item_id in items])
        for name in _DELETE_ITEM:
            connection.executemany(self._retention[name], [(number,) for number, _ in items])
        return len(items)

    def expired(self, item_id: str) -> bool:
        return self._readers.value("expired", _hash(item_id)) is not None

    # ---- blobs

    def reserve(self, blobs: Mapping[str, int], *, beyond_quota: bool = False) -> None:
        self._quota.reserve(blobs, beyond_quota=beyond_quota)

    def pin_blobs(self, digests: Iterable[str]) -> list[str]:
        return self._quota.pin(digests)

    def put_blob(
        self, data: bytes, *, beyond_quota: bool = False, user: str | None = None, digest: str | None = None
    ) -> str:
        if self.write_problem is not None:
            raise StoreFullError(
                f"A payload cannot be written now. {self.write_problem}", next_step="submit it again later"
            )
        digest = digest or digest_of(data)
        putters = [] if user is None else [(digest, user)]
        self._quota.reserve({digest: len(data)}, beyond_quota=beyond_quota)
        if len(data) <= SMALL_BYTES:
            self.write(Change(blobs={digest: data}, putters=putters)).result()
            return digest
        written = False
        try:
            self._files.write(digest, data)
            values = digest, len(data)
            self._transact(lambda connection: list(connection.execute(_ADD_FILE, values)))
            if putters:
                self.write(Change(putters=putters)).result()
            written = True
        finally:
            self._quota.settle([digest], written=written)
        return digest

    def blob(self, digest: str) -> bytes | None:
        rows = self._readers.rows("blob", values=(digest,))
        if not rows:
            return None
        data: bytes | None = rows[0][0]
        return self._files.read(digest) if data is None else data

    def blob_pieces(self, digest: str) -> tuple[int, Iterator[bytes]] | None:
        rows = self._readers.rows("blob", values=(digest,))
        return self._files.pieces(digest) if rows and rows[0][0] is None else None

    def delete_unused_blobs(self) -> int:
        unused = [digest for (digest,) in self._readers.rows("unused_blobs")]
        deleted: int = self._writer.put(lambda: self._delete_blobs(unused)).result() if unused else 0
        self._quota.age()
        return deleted

    def sweep_files(self) -> int:
        """Remove files without a row, left by a killed process. Call it before the first blob is put."""
        return self._files.sweep(frozenset(digest for (digest,) in self._readers.rows("blob_digests")))

    def _has_blob(self, digest: str) -> bool:
        return self._readers.value("has_blob", digest) is not None

    def _delete_blobs(self, unused: list[str]) -> int:
        deleting = self._quota.mark_for_deletion(unused)
        deleted: dict[str, tuple[int, int]] = {}
        try:
            with translated_errors(self.path, self._connection), self._changes.transaction() as connection:
                for digest in deleting:
                    for freed in connection.execute(self._retention["delete_blob"], (digest,)):
                        deleted[digest] = freed
                connection.executemany(self._retention["delete_putters"], [(digest,) for digest in deleted])
        except BaseException:
            deleted.clear()
            raise
        finally:
            self._quota.deleted(deleting, sum(size for size, _ in deleted.values()))
        for digest, (_, is_file) in deleted.items():
            if is_file:
                with self._quota.lock:  # a concurrent upload of it found the file, and relies on it
                    if not self._quota.is_fresh(digest):
                        self._files.remove(digest)
        return len(deleted)


def _hash(item_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(item_id.encode(), digest_size=8).digest(), "big", signed=True)


def _step(row: Any) -> Step:
    item_id, number, state, *rest = row
    return Step(item_id, number, TaskState(state), *rest)


def _event(row: Any) -> EventRecord:
    number, what, kind, name, owner, *rest = row
    match what:
        case "step":
            return EventRecord(number, _step(rest), kind, name, owner)
        case "decision":
            return EventRecord(number, StoredDecision(*rest[:5]), kind, name, owner)
        case _:
            return EventRecord(number, OperationRecord(*rest[:5]))
