"""Reader: whoever reads has a connection alone for so long, while somebody else writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import apsw

from ray_multicluster_scheduler.common.exception import StoreError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.store.records import (
    EventRecord,
    FleetState,
    ItemPage,
    ItemQuery,
    ItemStatus,
    NewItem,
    OperationRecord,
    Outcome,
    Step,
    StoredDecision,
    StoredItem,
    UnfinishedCount,
)
from ray_multicluster_scheduler.control_plane.store.sql_files import statements

_AT_ONCE = 1_000
_KEPT_OPEN = 8
_BEYOND = 2**62


class Reader:
    """Sees what is durable, and nothing else. Safe from any thread."""

    def __init__(self, connect: Callable[[], apsw.Connection]) -> None:
        self._connect, self._said = connect, statements("read")
        self._idle: list[apsw.Connection] = []
        self._lent = 0
        self._closed = False
        self._change = threading.Condition()

    def close(self) -> None:
        """Whoever still reads is waited for."""
        with self._change:
            self._closed = True
            self._change.wait_for(lambda: self._lent == 0)
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def rows(self, name: str, values: Any = ()) -> list[Any]:
        """All rows of an answer."""
        return self._ask(self._said[name], values)

    def one(self, name: str, *values: Any) -> Any:
        """The first value of an answer, or None."""
        return next((row[0] for row in self.rows(name, values)), None)

    def owed(self) -> Iterator[StoredItem]:
        last = 0
        while rows := self.rows("owed", (last, _AT_ONCE)):
            yield from map(self._item, rows)
            last = rows[-1][0]

    def item(self, item_id: str) -> StoredItem | None:
        return next(map(self._item, self.rows("item", (item_id,))), None)

    def items(self, wanted: ItemQuery) -> ItemPage:
        """Only the conditions that are asked for are in the question, so that an index can answer it."""
        beginning = 0 if wanted.oldest_first else _BEYOND
        asked: dict[str, Any] = {"after": beginning if wanted.after is None else wanted.after, "limit": wanted.limit}
        parts = ["items", "items_behind" if wanted.oldest_first else "items_before"]
        for name in ("kind", "owner", "cluster", "name", "begins", "since", "until"):
            value = getattr(wanted, name)
            if value is not None:
                parts.append(f"items_{name}")
                asked[name] = value
        if wanted.states:
            parts.append("items_states")
            asked["states"] = json.dumps([str(state) for state in wanted.states])
            if not any(state.terminal for state in wanted.states):
                parts.append("items_unfinished")
        parts.append("items_end_oldest_first" if wanted.oldest_first else "items_end")
        question = "\n".join(self._said[part] for part in parts)
        items = tuple(map(self._item, self._ask(question, asked)))
        return ItemPage(items, items[-1].new.number if len(items) == wanted.limit else None)

    def unfinished(self) -> list[UnfinishedCount]:
        return [
            UnfinishedCount(kind, owner, TaskState(state), *rest)
            for kind, owner, state, *rest in self.rows("unfinished")
        ]

    def steps(self, item_id: str) -> list[Step]:
        return [_step(row) for row in self.rows("steps", {"id": item_id})]

    def told_after(self, number: int, limit: int) -> list[EventRecord]:
        return [_happened(row) for row in self.rows("told_after", {"after": number, "limit": limit})]

    def decisions(self, item_id: str) -> list[StoredDecision]:
        return [StoredDecision(*row) for row in self.rows("decisions", {"id": item_id})]

    def outcome(self, item_id: str) -> Outcome | None:
        return next((Outcome(*row) for row in self.rows("outcome", {"id": item_id})), None)

    def output(self, item_id: str, attempt: int) -> list[str | None]:
        return [digest for (digest,) in self.rows("output", (item_id, attempt))]

    def fleet(self) -> FleetState:
        rows = self.rows("fleet")
        said = [{name: text for kind, name, text in rows if kind == what} for what in ("cluster", "owner")]
        return FleetState(*said)

    def _item(self, row: Any) -> StoredItem:
        number, item_id, *accepted = row[:9]
        blobs = tuple(digest for (digest,) in self.rows("payloads", (number,)))
        *now, owed, rest = row[10:]
        new = NewItem._make((item_id, number, *accepted, blobs))
        return StoredItem(new, ItemStatus._make((item_id, TaskState(row[9]), *now, bool(owed), rest)))

    def _ask(self, question: str, values: Any) -> list[Any]:
        with self._lease() as connection:
            return list(connection.execute(question, values))

    @contextmanager
    def _lease(self) -> Iterator[apsw.Connection]:
        with self._change:
            if self._closed:
                raise StoreError("The store is closed.")
            self._lent += 1
            mine = self._idle.pop() if self._idle else None
        try:
            if mine is None:
                mine = self._connect()
            yield mine
        finally:
            with self._change:
                self._lent -= 1
                if mine is not None and len(self._idle) < _KEPT_OPEN:
                    self._idle.append(mine)
                elif mine is not None:
                    mine.close()
                self._change.notify_all()


def _step(row: Any) -> Step:
    item_id, number, state, *rest = row
    return Step(item_id, number, TaskState(state), *rest)


def _happened(row: Any) -> EventRecord:
    number, what, kind, name, owner, *rest = row
    match what:
        case "step":
            return EventRecord(number, _step(rest), kind, name, owner)
        case "decision":
            return EventRecord(number, StoredDecision(*rest[:5]), kind, name, owner)
        case _:
            return EventRecord(number, OperationRecord(*rest[:5]))
