"""ChangeWriter: writes a change as rows, in one transaction. Only one thread calls it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw

from ray_multicluster_scheduler.common.exception import StoreError
from ray_multicluster_scheduler.control_plane.store.database import statements
from ray_multicluster_scheduler.control_plane.store.records import (
    Change,
    FleetState,
    OperationRecord,
    Step,
    StoredDecision,
)


class ChangeWriter:
    """Becomes the leader when created; the previous leader can write no more."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._sql = statements("write")
        connection.execute("BEGIN IMMEDIATE")
        leader = next(iter(connection.execute(self._sql["take_over"])))
        connection.execute("COMMIT")
        self.control_plane, self.epoch = str(leader[0]), int(leader[1])
        self.last_event_number = int(leader[2])
        """The number of the last durable log entry."""

    @contextmanager
    def transaction(self, next_fence: int = 0, last_number: int = 0, entries: int = 0) -> Iterator[apsw.Connection]:
        """Commit on success, roll back on any exception. Raises StoreError when another process leads."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            last_event_number = self.last_event_number + entries
            counters = {
                "next_fence": next_fence,
                "last_number": last_number,
                "last_told": last_event_number,
                "epoch": self.epoch,
            }
            connection.execute(self._sql["lead"], counters)
            if connection.changes() != 1:
                raise StoreError(
                    "Another control plane has taken over this state folder; this one writes no more.",
                    next_step="let only one control plane use the folder",
                )
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        self.last_event_number = last_event_number

    def commit(self, change: Change) -> int:
        """Write a change durably; returns the number of the last log entry."""
        sql, epoch = self._sql, self.epoch
        last_number = max((one.number for one in change.new), default=0)
        rows: dict[type, list[tuple[Any, ...]]] = {Step: [], StoredDecision: [], OperationRecord: []}
        for number, entry in enumerate(change.entries, self.last_event_number + 1):
            rows[type(entry)].append((number, *entry, epoch))
        with self.transaction(change.next_fence, last_number, len(change.entries)) as connection:
            connection.executemany(sql["blob"], [(digest, len(data), data) for digest, data in change.blobs.items()])
            connection.executemany(sql["putter"], change.putters)
            connection.executemany(sql["new_item"], [(*one[:9], epoch) for one in change.new])
            payloads = [(one.number, at, digest) for one in change.new for at, digest in enumerate(one.blobs)]
            connection.executemany(sql["payload"], payloads)
            connection.executemany(sql["item_status"], [(*one[1:], epoch, one.id) for one in change.statuses.values()])
            for name, kind in (("step", Step), ("decision", StoredDecision), ("operation", OperationRecord)):
                connection.executemany(sql[name], rows[kind])
            connection.executemany(sql["outcome"], [(*one[1:], epoch, one.item_id) for one in change.outcomes])
            connection.executemany(sql["output"], [(*one[1:], epoch, one.item_id) for one in change.output])
            connection.executemany(sql["delete_serving_task"], [(one,) for one in change.forgotten_serving])
            connection.executemany(sql["serving_task"], [(*one, epoch) for one in change.new_serving])
            statuses = [(epoch, *one) for one in change.serving_statuses.values()]
            connection.executemany(sql["serving_status"], statuses)
            if change.fleet is not None:
                self._write_fleet(change.fleet)
            for key, value in change.settings.items():
                if value is None:
                    connection.execute(sql["delete_setting"], (key,))
                else:
                    connection.execute(sql["setting"], (key, value, epoch))
        return self.last_event_number

    def _write_fleet(self, fleet: FleetState) -> None:
        self._connection.execute(self._sql["delete_fleet"])
        rows = [("cluster", *one, self.epoch) for one in fleet.clusters.items()]
        rows += [("owner", *one, self.epoch) for one in fleet.owners.items()]
        rows += [("pool", *one, self.epoch) for one in fleet.pools.items()]
        self._connection.executemany(self._sql["fleet"], rows)
