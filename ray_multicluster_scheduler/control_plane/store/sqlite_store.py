"""SqliteStore: the durable record in one folder, ``rmcs.db`` and the files of large blobs beside it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

from ray_multicluster_scheduler.common.digest import digest_of
from ray_multicluster_scheduler.common.exception import StoreFullError, TaskSubmissionError
from ray_multicluster_scheduler.control_plane.store.blob_files import BlobFiles
from ray_multicluster_scheduler.control_plane.store.change_writer import ChangeWriter
from ray_multicluster_scheduler.control_plane.store.database import bring_up_to_date, close, connect, sentences
from ray_multicluster_scheduler.control_plane.store.group_writer import GroupWriter
from ray_multicluster_scheduler.control_plane.store.reader import Reader
from ray_multicluster_scheduler.control_plane.store.records import (
    Change,
    Decided,
    FleetNow,
    Outcome,
    Page,
    Step,
    StoredItem,
    Wanted,
)
from ray_multicluster_scheduler.control_plane.store.sql_files import statements

SMALL_BYTES = 32 * 1024
"""Blobs up to this size are rows, which one commit makes durable by the hundred; larger ones are files."""
_EXPIRED_AT_ONCE = 500


class SqliteStore:
    """See :class:`Store`. Opening it makes this process its leader.

    Raises StoreError if the file is damaged, newer than this program, or not ours, and StoreFullError.
    """

    def __init__(
        self,
        folder: Path,
        *,
        most_blob_bytes: int = 2 * 2**30,
        quota_bytes: int = 100 * 2**30,
        vfs: str | None = None,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / "rmcs.db"
        self._vfs, self._most_blob_bytes, self._quota_bytes = vfs, most_blob_bytes, quota_bytes
        with sentences(self.path):
            self._connection = connect(self.path, vfs=vfs, writes=True)
            try:
                bring_up_to_date(self._connection, self.path)
                self._changes = ChangeWriter(self._connection)
                self._reader = Reader(lambda: connect(self.path, vfs=vfs, writes=False))
                self._files = BlobFiles(folder / "blobs")
                self._blob_bytes: int = self._reader.one("blob_bytes")
            except BaseException:
                close(self._connection)
                raise
        self.epoch, self.control_plane = self._changes.epoch, self._changes.control_plane
        self._retention = statements("retention")
        self._lock = threading.Lock()
        self._fresh: tuple[set[str], set[str]] = (set(), set())
        self._writer = GroupWriter(self._commit)

    # ---- writing

    @property
    def trouble(self) -> str | None:
        return self._writer.trouble

    def on_trouble(self, hear: Callable[[str | None], object]) -> None:
        self._writer.on_trouble(hear)

    def write(self, change: Change) -> Future[int]:
        for digest, data in change.blobs.items():
            self._take_room(digest, len(data))
        return self._writer.put(change)

    def _commit(self, change: Change) -> int:
        with sentences(self.path):
            return self._changes.commit(change)

    # ---- reading

    def unfinished(self) -> Iterator[StoredItem]:
        with sentences(self.path):
            yield from self._reader.unfinished()

    def item(self, item_id: str) -> StoredItem | None:
        with sentences(self.path):
            return self._reader.item(item_id)

    def items(self, wanted: Wanted) -> Page:
        with sentences(self.path):
            return self._reader.items(wanted)

    def steps(self, item_id: str) -> list[Step]:
        with sentences(self.path):
            return self._reader.steps(item_id)

    def steps_after(self, number: int, limit: int) -> list[tuple[int, Step]]:
        with sentences(self.path):
            return self._reader.steps_after(number, limit)

    def decisions(self, item_id: str) -> list[Decided]:
        with sentences(self.path):
            return self._reader.decisions(item_id)

    def outcome(self, item_id: str) -> Outcome | None:
        with sentences(self.path):
            return self._reader.outcome(item_id)

    def fleet(self) -> FleetNow:
        with sentences(self.path):
            return self._reader.fleet()

    @property
    def next_fence(self) -> int:
        return int(self._reader.row("leader")[2])

    @property
    def next_number(self) -> int:
        return int(self._reader.row("leader")[3]) + 1

    # ---- retention

    def expire(self, ended_before: float, keep: int) -> int:
        forgotten = 0
        while True:
            some: int = self._writer.put(lambda: self._expire_some(ended_before, keep)).result()
            forgotten += some
            if some < _EXPIRED_AT_ONCE:
                return forgotten

    def _expire_some(self, ended_before: float, keep: int) -> int:
        said = self._retention
        with sentences(self.path), self._changes.transaction() as connection:
            asked = {"ended_before": ended_before, "keep": keep, "limit": _EXPIRED_AT_ONCE}
            found = list(connection.execute(said["to_expire"], asked))
            connection.executemany(said["expire"], [(_hash(item_id),) for _, item_id in found])
            for what in ("forget_steps", "forget_decisions", "forget_outcomes", "forget_payloads", "forget_item"):
                connection.executemany(said[what], [(number,) for number, _ in found])
        return len(found)

    def expired(self, item_id: str) -> bool:
        with sentences(self.path):
            return self._reader.one("expired", _hash(item_id)) is not None

    # ---- blobs

    def put_blob(self, data: bytes) -> str:
        digest = digest_of(data)
        if len(data) <= SMALL_BYTES:
            self.write(Change(blobs={digest: data})).result()
            return digest
        self._take_room(digest, len(data))
        self._files.write(digest, data)
        self._writer.put(lambda: self._note_file(digest, len(data))).result()
        return digest

    def blob(self, digest: str) -> bytes | None:
        with sentences(self.path):
            row = self._reader.row("blob", digest)
        if row is None:
            return None
        data: bytes | None = row[0]
        return self._files.read(digest) if data is None else data

    def drop_blobs(self) -> int:
        dropped: int = self._writer.put(self._drop_blobs).result()
        return dropped

    def sweep_files(self) -> int:
        """Remove files that a process before this one left without a row. Only before anybody puts blobs."""
        with sentences(self.path):
            known = frozenset(digest for (digest,) in self._connection.execute("SELECT digest FROM blobs"))
        return self._files.sweep(known)

    def _take_room(self, digest: str, size: int) -> None:
        if size > self._most_blob_bytes:
            raise TaskSubmissionError(
                f"A payload of {size:,} bytes is larger than the control plane takes ({self._most_blob_bytes:,}).",
                next_step="put the data where the clusters can read it, and pass its path; or raise max_payload_bytes",
            )
        with self._lock:
            known = digest in self._fresh[0] or digest in self._fresh[1]
            if known or self._reader.one("has_blob", digest) is not None:
                self._fresh[1].add(digest)
                return
            if self._blob_bytes + size > self._quota_bytes:
                raise StoreFullError(
                    f"Payloads and results take {self._blob_bytes:,} of {self._quota_bytes:,} bytes.",
                    next_step="wait until older items are forgotten, shorten retention, or raise payload_quota_bytes",
                )
            self._fresh[1].add(digest)
            self._blob_bytes += size

    def _note_file(self, digest: str, size: int) -> None:
        with sentences(self.path), self._changes.transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO blobs (digest, bytes, data) VALUES (?, ?, NULL)", (digest, size))

    def _drop_blobs(self) -> int:
        said = self._retention
        with self._lock:
            fresh = self._fresh[0] | self._fresh[1]
            self._fresh = (self._fresh[1], set())
        with sentences(self.path), self._changes.transaction() as connection:
            found = [row for row in connection.execute(said["nameless_blobs"]) if row[0] not in fresh]
            connection.executemany(said["forget_blob"], [(digest,) for digest, *_ in found])
        for digest, _, is_file in found:
            if is_file:
                self._files.remove(digest)
        with self._lock:
            self._blob_bytes = self._reader.one("blob_bytes")
        return len(found)

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
        close(self._connection)


def _hash(item_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(item_id.encode(), digest_size=8).digest(), "big", signed=True)
