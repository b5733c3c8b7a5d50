"""ChangeWriter: a change as rows, in one transaction. Only one thread calls it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw

from ray_multicluster_scheduler.common.exception import StoreError
from ray_multicluster_scheduler.control_plane.store.records import (
    Change,
    FleetState,
    OperationRecord,
    Step,
    StoredDecision,
)
from ray_multicluster_scheduler.control_plane.store.sql_files import statements


class ChangeWriter:
    """Takes the lead when it is made: the one before it can write no more."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._said = statements("write")
        connection.execute("BEGIN IMMEDIATE")
        taken = list(connection.execute(self._said["take_over"]))
        connection.execute("COMMIT")
        self.control_plane, self.epoch = str(taken[0][0]), int(taken[0][1])
        self.last_told = int(taken[0][2])
        """The number of the last thing that was told; durable."""

    @contextmanager
    def transaction(self, next_fence: int = 0, last_number: int = 0, told: int = 0) -> Iterator[apsw.Connection]:
        """All of it or nothing. Raises StoreError when somebody else leads."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            lead = {
                "next_fence": next_fence,
                "last_number": last_number,
                "last_told": self.last_told + told,
                "epoch": self.epoch,
            }
            connection.execute(self._said["lead"], lead)
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
        self.last_told = lead["last_told"]

    def commit(self, change: Change) -> int:
        """Durable when this returns; returns the number of the last thing that was told."""
        said, epoch = self._said, self.epoch
        last_number = max((one.number for one in change.new), default=0)
        rows: dict[type, list[tuple[Any, ...]]] = {Step: [], StoredDecision: [], OperationRecord: []}
        for at, one in enumerate(change.told, self.last_told + 1):
            rows[type(one)].append((at, *one, epoch))
        with self.transaction(change.next_fence, last_number, len(change.told)) as connection:
            connection.executemany(said["blob"], [(digest, len(data), data) for digest, data in change.blobs.items()])
            connection.executemany(said["putter"], change.putters)
            connection.executemany(said["new_item"], [(*one[:9], epoch) for one in change.new])
            payloads = [(one.number, at, digest) for one in change.new for at, digest in enumerate(one.blobs)]
            connection.executemany(said["payload"], payloads)
            connection.executemany(said["item_now"], [(*one[1:], epoch, one.id) for one in change.now.values()])
            for name, kind in (("step", Step), ("decision", StoredDecision), ("note", OperationRecord)):
                connection.executemany(said[name], rows[kind])
            connection.executemany(said["outcome"], [(*one[1:], epoch, one.item_id) for one in change.outcomes])
            connection.executemany(said["output"], [(*one[1:], epoch, one.item_id) for one in change.printed])
            if change.fleet is not None:
                self._write_fleet(change.fleet)
            for key, value in change.settings.items():
                if value is None:
                    connection.execute(said["forget_setting"], (key,))
                else:
                    connection.execute(said["setting"], (key, value, epoch))
        return self.last_told

    def _write_fleet(self, fleet: FleetState) -> None:
        self._connection.execute(self._said["forget_fleet"])
        rows = [("cluster", *one, self.epoch) for one in fleet.clusters.items()]
        rows += [("owner", *one, self.epoch) for one in fleet.owners.items()]
        self._connection.executemany(self._said["fleet"], rows)
