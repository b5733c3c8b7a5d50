"""Reader: each thread reads over a connection of its own, while somebody writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import apsw

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.store.records import (
    Decided,
    FleetNow,
    ItemNow,
    NewItem,
    Outcome,
    Page,
    Step,
    StoredItem,
    Wanted,
)
from ray_multicluster_scheduler.control_plane.store.sql_files import statements

_AT_ONCE = 1_000
_BEYOND = 2**62


class Reader:
    """Sees what is durable, and nothing else."""

    def __init__(self, connect: Callable[[], apsw.Connection]) -> None:
        self._connect, self._said = connect, statements("read")
        self._own = threading.local()
        self._all: list[apsw.Connection] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            for connection in self._all:
                connection.close()

    def row(self, name: str, *values: Any) -> Any:
        """The first row of an answer, or None."""
        return next(self._rows(name, values), None)

    def one(self, name: str, *values: Any) -> Any:
        """The first value of an answer, or None."""
        row = self.row(name, *values)
        return None if row is None else row[0]

    def unfinished(self) -> Iterator[StoredItem]:
        last = 0
        while rows := list(self._rows("unfinished", (last, _AT_ONCE))):
            yield from map(self._item, rows)
            last = rows[-1][0]

    def item(self, item_id: str) -> StoredItem | None:
        row = self.row("item", item_id)
        return None if row is None else self._item(row)

    def items(self, wanted: Wanted) -> Page:
        asked = {
            "before": _BEYOND if wanted.after is None else wanted.after,
            "kind": wanted.kind,
            "owner": wanted.owner,
            "cluster": wanted.cluster,
            "states": json.dumps([str(state) for state in wanted.states]),
            "limit": wanted.limit,
        }
        items = tuple(map(self._item, self._rows("items", asked)))
        return Page(items, items[-1].new.number if len(items) == wanted.limit else None)

    def steps(self, item_id: str) -> list[Step]:
        return [_step(row) for row in self._rows("steps", {"id": item_id})]

    def steps_after(self, number: int, limit: int) -> list[tuple[int, Step]]:
        return [(row[0], _step(row[1:])) for row in self._rows("steps_after", (number, limit))]

    def decisions(self, item_id: str) -> list[Decided]:
        return [Decided(*row) for row in self._rows("decisions", {"id": item_id})]

    def outcome(self, item_id: str) -> Outcome | None:
        row = next(self._rows("outcome", {"id": item_id}), None)
        return None if row is None else Outcome(*row)

    def fleet(self) -> FleetNow:
        rows = list(self._rows("fleet", ()))
        said = [{name: text for kind, name, text in rows if kind == what} for what in ("cluster", "owner")]
        return FleetNow(*said)

    def _item(self, row: Any) -> StoredItem:
        number, item_id, *accepted = row[:7]
        blobs = tuple(digest for (digest,) in self._rows("payloads", (number,)))
        now = ItemNow(item_id, TaskState(row[7]), *row[8:])
        return StoredItem(NewItem._make((item_id, number, *accepted, blobs)), now)

    def _rows(self, name: str, values: Any) -> Iterator[Any]:
        return self._connection().execute(self._said[name], values)

    def _connection(self) -> apsw.Connection:
        mine: apsw.Connection | None = getattr(self._own, "connection", None)
        if mine is None:
            mine = self._own.connection = self._connect()
            with self._lock:
                self._all.append(mine)
        return mine


def _step(row: Any) -> Step:
    item_id, number, state, *rest = row
    return Step(item_id, number, TaskState(state), *rest)
