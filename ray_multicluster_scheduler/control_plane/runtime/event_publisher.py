"""EventPublisher: sends the events of one control plane, durable and live, to its subscribers.

Durable events come from the transition log as it is written. Changes of clusters are found by comparing their rows
(:class:`ClusterChangeDetector`), because some happen only by time passing, and changes of pools likewise; they are
written to the log first, too.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from ray_multicluster_scheduler.common.clock import Clock
from ray_multicluster_scheduler.common.model import Resources, ResourceSnapshot
from ray_multicluster_scheduler.common.notices import shorten
from ray_multicluster_scheduler.control_plane.runtime import explanation
from ray_multicluster_scheduler.control_plane.runtime.pools import changed_pools
from ray_multicluster_scheduler.control_plane.store.records import EventRecord, LogEntry, OperationRecord
from ray_multicluster_scheduler.scheduler.lifecycle import events as scheduler_events
from ray_multicluster_scheduler.scheduler.lifecycle import timers
from ray_multicluster_scheduler.scheduler.lifecycle.events import SnapshotTaken
from ray_multicluster_scheduler.scheduler.policy.reasons import STALE_SNAPSHOT
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import (
    CLUSTER,
    POOL_CHANGED,
    TELEMETRY,
    Event,
    EventFilter,
    event_of,
    missed_event,
    reset_event,
)
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event_hub import Batch, EventHub, Subscription

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime

CHECK_INTERVAL_S = 5.0
"""How often the rows of clusters are compared with the published ones: some change only as time passes."""
MAX_NAMED = 3
_PAGE_SIZE = 500
_FLEET_EVENTS = (
    scheduler_events.SnapshotTaken,
    scheduler_events.SnapshotFailed,
    scheduler_events.DashboardChecked,
    scheduler_events.HeadSilent,
    scheduler_events.LinkUp,
    scheduler_events.LinkDown,
    scheduler_events.ProcessesDead,
    scheduler_events.LinkClosed,
    scheduler_events.LinkFailed,
    scheduler_events.ClusterChanged,
    scheduler_events.CordonChanged,
    scheduler_events.ClusterDeclaredDead,
    scheduler_events.ClusterChecked,
    scheduler_events.QueuePaused,
    scheduler_events.QueueResumed,
    scheduler_events.PoolChanged,
    scheduler_events.PoolDeleted,
)

ReadEvents = Callable[[int, int], Sequence[EventRecord]]
ClusterFacts = Mapping[str, Any]
"""The published fields of a cluster. A change of ``sentence`` alone is not published."""


class PublishingLog(Protocol):
    """A transition log that publishes what it has written."""

    publish: Callable[[int, list[LogEntry]], object]

    def record_operation(self, operation: OperationRecord) -> None: ...


class EventPublisher:
    """Runs on the loop of its control plane. ``read`` returns up to so many event records after a number; if it is
    ``slow``, it is called in a thread."""

    def __init__(
        self, runtime: Runtime, log: PublishingLog, last: int, read: ReadEvents, *, slow: bool = False
    ) -> None:
        self._runtime, self._log, self._read, self._slow = runtime, log, read, slow
        self.hub = EventHub(self._item_facts, last)
        log.publish = self.hub.publish
        self._loop = asyncio.get_running_loop()
        self.changes = ClusterChangeDetector(self._cluster_facts, self.note, runtime.clock)
        self._pools = runtime.machine.pools.ledger.pools
        self._check_due = False
        self._checked_at = -inf
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check_periodically)

    def close(self) -> None:
        self._timer.cancel()
        self.hub.close()

    def on_scheduler_event(self, event: object) -> None:
        """From any thread, for each event that is posted to the scheduler."""
        begins_probe = isinstance(event, scheduler_events.TimerFired) and timers.is_refresh(event.key)
        if (begins_probe or isinstance(event, _FLEET_EVENTS)) and not self._check_due:
            self._check_due = True
            self._runtime.call_soon(lambda: self._runtime.manager.when_durable(self._check))
        if isinstance(event, SnapshotTaken) and len(self.hub):
            self._runtime.call_soon(self._publish_load, event)

    def request_checks(self) -> None:
        """On the loop, for a view of the fleet or of metrics: check the clusters not checked recently."""
        now = self._loop.time()
        if now - self._checked_at >= self._runtime.settings.health_check_interval_s:
            self._checked_at = now
            self._runtime.spawn(self._runtime.health.check_all_queryable())

    def note(self, note: OperationRecord) -> None:
        """On the loop: write an operation to the log, which publishes it."""
        self._log.record_operation(note)
        self._runtime.manager.when_durable(lambda: None)

    @property
    def number(self) -> int:
        """The number of the last published event."""
        return self.hub.number

    def subscribe(self, wanted: EventFilter, *, only_owner: str | None = None) -> Subscription:
        """A subscription for :meth:`batches`; the caller closes it. Raises ServiceUnavailableError for too many."""
        return self.hub.subscribe(wanted, only_owner=only_owner)

    async def batches(
        self, reader: Subscription, since: int, *, idle_s: float | None = None, report_progress: bool = False
    ) -> AsyncIterator[Batch]:
        """Past events after number ``since``, then live ones; an empty batch after ``idle_s`` without any. With
        ``report_progress`` also an empty batch for each page of the past without an event for this reader."""
        last = since
        if last > self.hub.number:  # numbered elsewhere, or by a process whose events are gone
            last = self.hub.number
            yield Batch([reset_event(last)])
        while last < self.hub.number and not reader.over:
            durable = self.hub.number
            select = functools.partial(self._select, reader, last)
            events, end, complete = await asyncio.to_thread(select) if self._slow else select()
            # Missing numbers were pruned; the hub does not send again what was read here.
            last = max(end, durable) if complete else end
            if events or report_progress:
                yield Batch(events, read=last)
        reader.resume(last)
        while True:
            batch = await reader.take(idle_s)
            yield batch
            if batch.over:
                return

    def _select(self, reader: Subscription, after: int) -> tuple[list[Event], int, bool]:
        """The events for this reader on the next page, the page's last number, and whether it is the last page."""
        page = self._read(after, _PAGE_SIZE)
        events = [one for one in map(event_of, page) if reader.wants(one)]
        return events, page[-1].number if page else after, len(page) < _PAGE_SIZE

    def stream(self, wanted: EventFilter, since: int | None) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Batches of events for a program in this process."""
        reader, after = self.subscribe(wanted), self.hub.number if since is None else since

        async def batches() -> AsyncGenerator[list[dict[str, Any]], None]:
            try:
                async for batch in self.batches(reader, after):
                    missing = [] if batch.missed is None else [missed_event(batch.missed)]
                    yield missing + [event.fields for event in batch.events]
            finally:
                reader.close()

        return batches()

    def _item_facts(self, item_id: str) -> tuple[str, str, str]:
        record = self._runtime.record(item_id)
        return ("", "", "") if record is None else (record.task.kind, record.task.name, record.task.owner)

    def _cluster_facts(self) -> dict[str, ClusterFacts]:
        return {row["name"]: _facts(row) for row in explanation.cluster_rows(self._runtime)}

    def _check(self) -> None:
        self._check_due = False
        self.changes.check()
        self._check_pools()

    def reset(self) -> None:
        """Treat the present state of clusters and pools as published."""
        self.changes.reset()
        self._pools = self._runtime.machine.pools.ledger.pools

    def _check_pools(self) -> None:
        """A change replaces the whole mapping of pools; a drained pool disappears when its last item ends."""
        before, self._pools = self._pools, self._runtime.machine.pools.ledger.pools
        if before is not self._pools:
            for name, change in changed_pools(before, self._pools):
                document = json.dumps(change).encode()
                self.note(OperationRecord(POOL_CHANGED, name, self._runtime.clock.now(), None, document))

    def _publish_load(self, event: SnapshotTaken) -> None:
        name = event.snapshot.cluster
        state = self._runtime.machine.registry.find(name)
        if state is not None:
            view = self._runtime.machine.view(name, self._runtime.clock.now())
            self.hub.publish_latest(_load_event(event.snapshot, state.ledger.free(), view.in_flight + view.prefetched))

    def _check_periodically(self) -> None:
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check_periodically)
        self._runtime.manager.run_guarded(self._check)
        if self.hub.wants_load:
            self.request_checks()


class ClusterChangeDetector:
    """On one loop: finds clusters whose ``facts`` changed since the last check, and passes each to ``note``."""

    def __init__(
        self, facts: Callable[[], Mapping[str, ClusterFacts]], note: Callable[[OperationRecord], object], clock: Clock
    ) -> None:
        self._facts, self._note, self._clock = facts, note, clock
        self._published: dict[str, ClusterFacts] = {}
        self.reset()

    def reset(self) -> None:
        """Treat the present facts as published."""
        self._published = dict(self._facts())

    def check(self) -> None:
        """Compare, and note what changed."""
        now = {name: _unless_only_old(facts, self._published.get(name)) for name, facts in self._facts().items()}
        for name in [*now, *(set(self._published) - set(now))]:
            facts = now.get(name, {"state": "REMOVED", "sentence": "is not configured any more"})
            before = self._published.get(name, {})
            if _compared(facts) != _compared(before):
                shown = {key: value for key, value in facts.items() if key != "stale"}
                document = json.dumps({"before": before.get("state"), **shown}).encode()
                self._note(OperationRecord(CLUSTER, name, self._clock.now(), None, document))
        self._published = now


def _compared(facts: ClusterFacts) -> Iterable[Any]:
    return sorted((key, value) for key, value in facts.items() if key not in ("sentence", "stale"))


def _unless_only_old(facts: ClusterFacts, before: ClusterFacts | None) -> ClusterFacts:
    """The facts, with the state that was published before if the cluster is only stale because nobody queries it."""
    if before is None or facts["state"] != STALE_SNAPSHOT or not facts["stale"]:
        return facts
    known = before["state"] in explanation.ANSWERING
    return {**facts, "state": before["state"], "sentence": before["sentence"]} if known else facts


def _facts(row: dict[str, Any]) -> ClusterFacts:
    facts = {key: row[key] for key in ("state", "sentence", "stale", "cordoned", "cordon_reason", "paused")}
    others = row["other_control_planes"]
    if not others:
        return facts
    sentence = "; ".join(filter(None, (row["sentence"], shared_with(others))))
    return {**facts, "sentence": sentence, "other_control_planes": others}


def shared_with(others: Sequence[str]) -> str:
    """A warning about a cluster that other control planes use as well; empty if none does."""
    if not others:
        return ""
    named = shorten(others, MAX_NAMED)
    return f"agents of other control planes ran there when ours was started ({named}); each keeps its own limits only"


def _load_event(snapshot: ResourceSnapshot, free: Resources | None, items: int) -> Event:
    fields = {
        "at": snapshot.taken_at,
        "cluster": snapshot.cluster,
        "nodes": len(snapshot.nodes),
        "total": snapshot.total(),
        "free": free,
        "items": items,
    }
    return Event(TELEMETRY, fields)
