"""SqliteStore: the durable record in one folder, ``rmcs.db`` and the files of large blobs beside it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from math import inf
from pathlib import Path
from time import perf_counter

import apsw

from ray_multicluster_scheduler.common.digest import digest_of
from ray_multicluster_scheduler.common.exception import StoreError, StoreFullError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.store.blob_files import BlobFiles, make_folder, sync_folder
from ray_multicluster_scheduler.control_plane.store.blob_quota import BlobQuota
from ray_multicluster_scheduler.control_plane.store.change_writer import ChangeWriter
from ray_multicluster_scheduler.control_plane.store.database import (
    bring_up_to_date,
    close,
    connect,
    refuse_to_begin_anew,
    sentences,
)
from ray_multicluster_scheduler.control_plane.store.group_writer import GroupWriter
from ray_multicluster_scheduler.control_plane.store.reader import Reader
from ray_multicluster_scheduler.control_plane.store.records import (
    Change,
    EventRecord,
    FleetState,
    ItemPage,
    ItemQuery,
    Outcome,
    Step,
    StorageUsage,
    StoredDecision,
    StoredItem,
    UnfinishedCount,
)
from ray_multicluster_scheduler.control_plane.store.secret_encryption import KEY_FILE, SecretCipher
from ray_multicluster_scheduler.control_plane.store.sql_files import statements
from ray_multicluster_scheduler.control_plane.store.state_folder import DATABASE

_log = get_logger(__name__)
SMALL_BYTES = 32 * 1024
"""Blobs up to this size are rows, which one commit makes durable by the hundred; larger ones are files, but for
output, which is written with the end of its attempt."""
_EXPIRED_AT_ONCE = 500
_OF_AN_ITEM = (
    "forget_steps",
    "forget_decisions",
    "forget_outcomes",
    "forget_outputs",
    "forget_payloads",
    "forget_item",
)


class SqliteStore:
    """See :class:`Store`. Opening it makes this process its leader.

    Raises StoreError if the file is damaged, lost, newer than this program, or not ours, and StoreFullError.
    """

    def __init__(
        self,
        folder: Path,
        *,
        most_blob_bytes: int = 2 * 2**30,
        quota_bytes: int = 100 * 2**30,
        vfs: str | None = None,
    ) -> None:
        self.path = folder / DATABASE
        try:
            make_folder(folder)
            self._files = BlobFiles(folder / "blobs")
            made = folder / "rmcs.made"
            refuse_to_begin_anew(self.path, made=made.exists(), payloads=self._files.any())
        except OSError as error:
            raise StoreError(f"The state folder {folder} cannot be used: {error.strerror}.") from error
        with sentences(self.path):
            self._connection = connect(self.path, vfs=vfs, writes=True)
            self._reader = Reader(lambda: connect(self.path, vfs=vfs, writes=False))
            try:
                bring_up_to_date(self._connection, self.path)
                if not made.exists():  # on the disk before anything is accepted: see refuse_to_begin_anew
                    made.touch(mode=0o600)
                    sync_folder(folder)
                self._changes = ChangeWriter(self._connection)
                kept_bytes: int = self._reader.one("blob_bytes")
            except BaseException:
                self._reader.close()
                close(self._connection)
                raise
        self.epoch, self.control_plane = self._changes.epoch, self._changes.control_plane
        self._room = BlobQuota(kept_bytes, most_blob_bytes, quota_bytes, self._has_blob)
        self.cipher = SecretCipher(folder / KEY_FILE)
        self._retention = statements("retention")
        self._heard_commits: list[Callable[[float], object]] = []
        self._writer = GroupWriter(self._commit)

    # ---- writing

    @property
    def trouble(self) -> str | None:
        return self._writer.trouble

    def on_trouble(self, hear: Callable[[str | None], object]) -> None:
        self._writer.on_trouble(hear)

    def on_commit(self, hear: Callable[[float], object]) -> None:
        self._heard_commits.append(hear)

    def room(self) -> StorageUsage:
        try:
            return StorageUsage(shutil.disk_usage(self.path.parent).free, self._room.kept_bytes)
        except OSError as error:
            raise StoreError(f"The state folder {self.path.parent} cannot be looked at: {error.strerror}.") from error

    def write(self, change: Change) -> Future[int]:
        future = self._writer.put(change)
        if change.blobs:
            digests = list(change.blobs)
            future.add_done_callback(lambda done: self._room.settle(digests, written=done.exception() is None))
        return future

    def _commit(self, change: Change) -> int:
        began = perf_counter()
        with sentences(self.path, self._connection):
            number = self._changes.commit(change)
        took = perf_counter() - began
        for hear in self._heard_commits:
            try:
                hear(took)
            except Exception:  # noqa: BLE001 - theirs; it is written, and must not be written once more
                _log.exception("somebody who wanted to hear of commits could not be told")
        return number

    # ---- reading

    def owed(self) -> Iterator[StoredItem]:
        with sentences(self.path):
            yield from self._reader.owed()

    def item(self, item_id: str) -> StoredItem | None:
        with sentences(self.path):
            return self._reader.item(item_id)

    def known(self, item_ids: Sequence[str]) -> set[str]:
        hashes = {_hash(one): one for one in item_ids}
        with sentences(self.path):
            if len(hashes) == 1:
                (number, item_id), *_ = hashes.items()
                return {item_id} if self._reader.one("known_one", item_id, number) is not None else set()
            rows = self._reader.rows("known", (json.dumps(list(item_ids)), json.dumps(list(hashes))))
        return {hashes[one] if isinstance(one, int) else one for (one,) in rows}

    def names_blob(self, owner: str, digest: str) -> bool:
        with sentences(self.path):
            return self._reader.one("names_blob", digest, owner) is not None

    def by_key(self, owner: str, key: str) -> str | None:
        with sentences(self.path):
            found: str | None = self._reader.one("by_key", owner, key)
            return found

    def repetitions(self, item_id: str, most: int) -> list[str]:
        with sentences(self.path):
            return [one for (one,) in self._reader.rows("repetitions", (item_id, most))][::-1]

    def items(self, wanted: ItemQuery) -> ItemPage:
        with sentences(self.path):
            return self._reader.items(wanted)

    def first_run(self, owner: str | None) -> float | None:
        with sentences(self.path):
            found: float | None = self._reader.one("first_run", owner)
            return found

    def unfinished(self) -> list[UnfinishedCount]:
        with sentences(self.path):
            return self._reader.unfinished()

    def steps(self, item_id: str) -> list[Step]:
        with sentences(self.path):
            return self._reader.steps(item_id)

    def told_after(self, number: int, limit: int) -> list[EventRecord]:
        with sentences(self.path):
            return self._reader.told_after(number, limit)

    @property
    def last_told(self) -> int:
        return self._counter(2)

    def decisions(self, item_id: str) -> list[StoredDecision]:
        with sentences(self.path):
            return self._reader.decisions(item_id)

    def outcome(self, item_id: str) -> Outcome | None:
        with sentences(self.path):
            return self._reader.outcome(item_id)

    def output(self, item_id: str, attempt: int) -> list[str | None]:
        with sentences(self.path):
            return self._reader.output(item_id, attempt)

    def fleet(self) -> FleetState:
        with sentences(self.path):
            return self._reader.fleet()

    def sent_since(self, at: float) -> list[tuple[str, str, float]]:
        with sentences(self.path):
            return [(item_id, cluster, when) for item_id, cluster, when in self._reader.rows("sent_since", (at,))]

    def settings(self, begin: str) -> dict[str, bytes]:
        with sentences(self.path):
            return dict(self._reader.rows("settings", {"begin": begin}))

    @property
    def next_fence(self) -> int:
        return self._counter(0)

    @property
    def next_number(self) -> int:
        return self._counter(1) + 1

    def _counter(self, at: int) -> int:
        with sentences(self.path):
            return int(self._reader.rows("leader")[0][at])

    # ---- retention

    def strip(self, ended_before: float, needed: Collection[str] = ()) -> None:
        self._writer.put(lambda: self._strip(ended_before, json.dumps(list(needed)))).result()

    def _strip(self, ended_before: float, needed: str) -> None:
        with sentences(self.path, self._connection), self._changes.transaction() as connection:
            for what in ("forget_payloads_before", "forget_outputs_before", "forget_values_before"):
                connection.execute(self._retention[what], {"ended_before": ended_before, "needed": needed})

    def expire(self, ended_before: float, keep: int, needed: Collection[str] = ()) -> int:
        forgotten, names = 0, json.dumps(list(needed))
        while self._writer.put(lambda: self._forget_notes(ended_before)).result() == _EXPIRED_AT_ONCE:
            pass
        while True:
            some: int = self._writer.put(lambda: self._expire_some(ended_before, keep, names)).result()
            forgotten += some
            if some < _EXPIRED_AT_ONCE:
                return forgotten

    def _forget_notes(self, before: float) -> int:
        with sentences(self.path, self._connection), self._changes.transaction() as connection:
            connection.execute(self._retention["forget_notes_before"], (before, _EXPIRED_AT_ONCE))
            return connection.changes()

    def _expire_some(self, ended_before: float, keep: int, needed: str) -> int:
        said = self._retention
        with sentences(self.path, self._connection), self._changes.transaction() as connection:
            newest = next(connection.execute(said["newest_to_expire"], (keep,)), (-inf, 0))
            asked = {"finished_at": newest[0], "number": newest[1], "ended_before": ended_before, "needed": needed}
            found = list(connection.execute(said["to_expire"], {**asked, "limit": _EXPIRED_AT_ONCE}))
            self._remove(connection, found)
        return len(found)

    def forget(self, item_id: str, needed: Collection[str] = ()) -> bool:
        done: bool = self._writer.put(lambda: self._forget(item_id, json.dumps(list(needed)))).result()
        return done

    def _forget(self, item_id: str, needed: str) -> bool:
        with sentences(self.path, self._connection), self._changes.transaction() as connection:
            found = list(connection.execute(self._retention["to_forget"], {"id": item_id, "needed": needed}))
            self._remove(connection, found)
        return bool(found)

    def _remove(self, connection: apsw.Connection, found: list[tuple[int, str]]) -> None:
        """What is known of these, but for that they were there."""
        connection.executemany(self._retention["expire"], [(_hash(item_id),) for _, item_id in found])
        for what in _OF_AN_ITEM:
            connection.executemany(self._retention[what], [(number,) for number, _ in found])

    def expired(self, item_id: str) -> bool:
        with sentences(self.path):
            return self._reader.one("expired", _hash(item_id)) is not None

    # ---- blobs

    def reserve(self, blobs: Mapping[str, int], *, owed: bool = False) -> None:
        self._room.reserve(blobs, owed=owed)

    def hold(self, digests: Iterable[str]) -> list[str]:
        return self._room.hold(digests)

    def put_blob(self, data: bytes, *, owed: bool = False, user: str | None = None) -> str:
        if self.trouble is not None:
            raise StoreFullError(f"A payload cannot be written now. {self.trouble}", next_step="submit it again later")
        digest = digest_of(data)
        putters = [] if user is None else [(digest, user)]
        self._room.reserve({digest: len(data)}, owed=owed)
        if len(data) <= SMALL_BYTES:
            self.write(Change(blobs={digest: data}, putters=putters)).result()
            return digest
        written = False
        try:
            self._files.write(digest, data)
            self._writer.put(lambda: self._note_file(digest, len(data))).result()
            if putters:
                self.write(Change(putters=putters)).result()
            written = True
        finally:
            self._room.settle([digest], written=written)
        return digest

    def blob(self, digest: str) -> bytes | None:
        with sentences(self.path):
            rows = self._reader.rows("blob", (digest,))
        if not rows:
            return None
        data: bytes | None = rows[0][0]
        return self._files.read(digest) if data is None else data

    def blob_pieces(self, digest: str) -> tuple[int, Iterator[bytes]] | None:
        with sentences(self.path):
            rows = self._reader.rows("blob", (digest,))
        return self._files.pieces(digest) if rows and rows[0][0] is None else None

    def drop_blobs(self) -> int:
        with sentences(self.path):
            nameless = [digest for (digest,) in self._reader.rows("nameless_blobs")]
        dropped: int = self._writer.put(lambda: self._drop_blobs(nameless)).result() if nameless else 0
        self._room.grow_older()
        return dropped

    def sweep_files(self) -> int:
        """Remove files that a process before this one left without a row. Only before anybody puts blobs."""
        with sentences(self.path):
            known = frozenset(digest for (digest,) in self._reader.rows("blob_digests"))
        return self._files.sweep(known)

    def _has_blob(self, digest: str) -> bool:
        with sentences(self.path):
            return self._reader.one("has_blob", digest) is not None

    def _note_file(self, digest: str, size: int) -> None:
        with sentences(self.path, self._connection), self._changes.transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO blobs (digest, bytes, data) VALUES (?, ?, NULL)", (digest, size))

    def _drop_blobs(self, nameless: list[str]) -> int:
        doomed = self._room.doom(nameless)
        gone: dict[str, tuple[int, int]] = {}
        try:
            with sentences(self.path, self._connection), self._changes.transaction() as connection:
                for digest in doomed:
                    for freed in connection.execute(self._retention["forget_blob"], (digest,)):
                        gone[digest] = freed
                connection.executemany(self._retention["forget_putters"], [(digest,) for digest in gone])
        except BaseException:
            gone.clear()
            raise
        finally:
            self._room.dropped(doomed, sum(size for size, _ in gone.values()))
        for digest, (_, is_file) in gone.items():
            if is_file:
                with self._room.lock:  # whoever brings it anew meanwhile has found the file, and counts on it
                    if not self._room.is_fresh(digest):
                        self._files.remove(digest)
        return len(gone)

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
        close(self._connection)


def _hash(item_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(item_id.encode(), digest_size=8).digest(), "big", signed=True)
