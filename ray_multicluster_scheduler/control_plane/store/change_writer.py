"""ChangeWriter: a change as rows, in one transaction. Only one thread calls it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from ray_multicluster_scheduler.common.exception import StoreError
from ray_multicluster_scheduler.control_plane.store.records import Change
from ray_multicluster_scheduler.control_plane.store.sql_files import statements


class ChangeWriter:
    """Takes the lead when it is made: the one before it can write no more."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._said = statements("write")
        asked = statements("read")
        with connection:
            connection.execute("UPDATE leader SET epoch = epoch + 1")
        self.control_plane, self.epoch, _, self._last_item = next(connection.execute(asked["leader"]))
        self._last_step: int = connection.execute(asked["last_step"]).get
        self._last_decision: int = connection.execute(asked["last_decision"]).get

    @contextmanager
    def transaction(self, next_fence: int = 0, last_item: int = 0) -> Iterator[apsw.Connection]:
        """All of it or nothing. Raises StoreError when somebody else leads."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            lead = {"next_fence": next_fence, "last_number": last_item, "epoch": self.epoch}
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

    def commit(self, change: Change) -> int:
        """Durable when this returns; returns the number of the last step."""
        said, epoch = self._said, self.epoch
        steps, decisions = self._last_step, self._last_decision
        last_item = max((one.number for one in change.new), default=0)
        with self.transaction(change.next_fence, last_item) as connection:
            connection.executemany(said["blob"], [(digest, len(data), data) for digest, data in change.blobs.items()])
            connection.executemany(said["new_item"], [(*one[:7], epoch) for one in change.new])
            connection.executemany(
                said["payload"], [(one.number, digest) for one in change.new for digest in one.blobs]
            )
            connection.executemany(said["item_now"], [(*one[1:], epoch, one.id) for one in change.now.values()])
            connection.executemany(
                said["step"], [(steps + at, *step, epoch) for at, step in enumerate(change.steps, 1)]
            )
            connection.executemany(
                said["decision"], [(decisions + at, *one, epoch) for at, one in enumerate(change.decisions, 1)]
            )
            connection.executemany(said["outcome"], [(*one, epoch) for one in change.outcomes])
            if change.fleet is not None:
                connection.execute(said["forget_fleet"])
                rows = [("cluster", *one, epoch) for one in change.fleet.clusters.items()]
                rows += [("owner", *one, epoch) for one in change.fleet.owners.items()]
                connection.executemany(said["fleet"], rows)
        self._last_step, self._last_decision = steps + len(change.steps), decisions + len(change.decisions)
        return self._last_step
