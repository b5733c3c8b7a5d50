"""News: what happens in a control plane, from its log and its clusters to whoever listens."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from ray_multicluster_scheduler.control_plane.runtime.fleet_watch import (
    LOOK_AGAIN_S,
    Face,
    FleetWatch,
    load_of,
    shared_with,
)
from ray_multicluster_scheduler.control_plane.store.records import EventRecord, LogEntry, OperationRecord
from ray_multicluster_scheduler.scheduler.lifecycle.events import SnapshotTaken
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import Event, event_of, missed, reset
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event_filter import EventFilter
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event_hub import Batch, EventHub, Subscription

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime

_AT_ONCE = 500
Read = Callable[[int, int], Sequence[EventRecord]]


class Feed(Protocol):
    """A log that tells what it has written."""

    tell: Callable[[int, list[LogEntry]], object]

    def note(self, note: OperationRecord) -> None: ...


class News:
    """On the loop of its control plane. ``read`` reads what was told after a number, at most so much of it; if it is
    ``slow``, in a thread."""

    def __init__(self, runtime: Runtime, feed: Feed, last: int, read: Read, *, slow: bool = False) -> None:
        self._runtime, self._feed, self._read, self._slow = runtime, feed, read, slow
        self.hub = EventHub(self._about, last)
        feed.tell = self.hub.publish
        self._loop = asyncio.get_running_loop()
        self.watch = FleetWatch(self._faces, self.note, runtime.clock)
        self._due = False
        self._checked_at = -inf
        self._timer = self._loop.call_later(LOOK_AGAIN_S, self._now_and_then)

    def close(self) -> None:
        self._timer.cancel()
        self.hub.close()

    def heard(self, event: object) -> None:
        """From any thread: the brain is told this."""
        if FleetWatch.may_change(event) and not self._due:
            self._due = True
            self._runtime.soon(self._look_in_turn)
        if isinstance(event, SnapshotTaken) and len(self.hub):
            self._runtime.soon(self._tell_load, event)

    def looked_at(self) -> None:
        """On the loop: somebody looks, at a page or by a scrape. It is to be worth it, so clusters are asked that were
        not lately."""
        now = self._loop.time()
        if now - self._checked_at >= self._runtime.settings.health_check_interval_s:
            self._checked_at = now
            self._runtime.leave(self._runtime.health.check_all_queryable())

    def note(self, note: OperationRecord) -> None:
        """On the loop: write it down, and tell it then."""
        self._feed.note(note)
        self._runtime.manager.when_durable(lambda: None)

    def listen(self, wanted: EventFilter, *, only_owner: str | None = None) -> Subscription:
        """For :meth:`batches`; to be closed. Raises ServiceUnavailableError if too many listen already."""
        return self.hub.subscribe(wanted, only_owner=only_owner)

    async def batches(
        self, reader: Subscription, since: int, *, idle_s: float | None = None, say_read: bool = False
    ) -> AsyncIterator[Batch]:
        """What was told after number ``since``, then what comes; an empty batch after so many seconds without any. With
        ``say_read`` also one for each piece of the past in which there is nothing for this reader."""
        last = since
        if last > self.hub.number:  # it was counted elsewhere, or by a process that has forgotten all
            last = self.hub.number
            yield Batch([reset(last)])
        while last < self.hub.number and not reader.over:
            durable = self.hub.number
            select = functools.partial(self._select, reader, last)
            events, end, whole = await asyncio.to_thread(select) if self._slow else select()
            # What is not there any more was forgotten; what is there already, and comes to the hub later, is not told
            # twice.
            last = max(end, durable) if whole else end
            if events or say_read:
                yield Batch(events, read=last)
        reader.go_on(last)
        while True:
            batch = await reader.take(idle_s)
            yield batch
            if batch.over:
                return

    def _select(self, reader: Subscription, after: int) -> tuple[list[Event], int, bool]:
        """What this reader wants of the next page, the last number on that, and whether there is no more."""
        page = self._read(after, _AT_ONCE)
        events = [one for one in map(event_of, page) if reader.wants(one)]
        return events, page[-1].number if page else after, len(page) < _AT_ONCE

    def told(self, wanted: EventFilter, since: int | None) -> AsyncGenerator[list[dict[str, Any]], None]:
        """For a program, from now on: what came together, again and again."""
        return self._told(self.listen(wanted), self.hub.number if since is None else since)

    async def _told(self, reader: Subscription, since: int) -> AsyncGenerator[list[dict[str, Any]], None]:
        try:
            async for batch in self.batches(reader, since):
                missing = [] if batch.missed is None else [missed(batch.missed)]
                yield missing + [event.said for event in batch.events]
        finally:
            reader.close()

    def _about(self, item_id: str) -> tuple[str, str, str]:
        record = self._runtime.record(item_id)
        return ("", "", "") if record is None else (record.task.kind, record.task.name, record.task.owner)

    def _faces(self) -> dict[str, Face]:
        from ray_multicluster_scheduler.control_plane.runtime import explanation  # noqa: PLC0415 - it imports Runtime

        return {row["name"]: _face(row) for row in explanation.cluster_rows(self._runtime)}

    def _look_in_turn(self) -> None:
        self._runtime.manager.when_durable(self._look)

    def _look(self) -> None:
        self._due = False
        self.watch.look()

    def _tell_load(self, event: SnapshotTaken) -> None:
        name = event.snapshot.cluster
        view = self._runtime.machine.view(name, self._runtime.clock.now())
        self.hub.tell_latest(load_of(event.snapshot, view.in_flight + view.ahead))

    def _now_and_then(self) -> None:
        self._timer = self._loop.call_later(LOOK_AGAIN_S, self._now_and_then)
        self._runtime.manager.guarded(self.watch.look)
        if self.hub.wants_load:
            self.looked_at()


def _face(row: dict[str, Any]) -> Face:
    face = {key: row[key] for key in ("state", "sentence", "cordoned", "paused")}
    others = row["other_control_planes"]
    if not others:
        return face
    sentence = "; ".join(filter(None, (row["sentence"], shared_with(others))))
    return {**face, "sentence": sentence, "other_control_planes": others}


def telemetry_of(rows: Sequence[dict[str, Any]]) -> list[Event]:
    """What is known of the load of clusters now, from their rows."""
    kept = ("nodes", "total", "free", "items")
    return [
        Event("telemetry", {"cluster": row["name"], **{key: row[key] for key in kept}})
        for row in rows
        if row["total"] is not None
    ]
