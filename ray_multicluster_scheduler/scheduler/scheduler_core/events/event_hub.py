"""EventHub: publishes events to subscriptions. A slow subscriber misses events; it never delays the others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ray_multicluster_scheduler.common.exception import ServiceUnavailableError
from ray_multicluster_scheduler.control_plane.store.records import (
    EventRecord,
    LogEntry,
    OperationRecord,
    Step,
    StoredDecision,
)
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import TELEMETRY, Event, EventFilter, event_of

MAX_PENDING = 2_000
"""A reader that is more events behind misses some."""
MAX_SUBSCRIPTIONS = 1_000
MAX_PACE_S = 0.5
_PACE_PER_READER_S = 0.001
_TRIM_INTERVAL = 64

ItemFacts = Callable[[str], tuple[str, str, str]]
"""Kind, name and owner of an item."""


class Batch(NamedTuple):
    """Events since the last batch. ``missed``: the first and last number of events that were dropped before
    these, because the reader was too slow. ``over``: there will be no more. ``read``: past events up to this number
    were searched."""

    events: Sequence[Event] = ()
    missed: tuple[int, int] | None = None
    over: bool = False
    read: int | None = None


class _Channel:
    """The events for all readers with the same filter, held once; each reader has its position."""

    def __init__(self) -> None:
        self.readers: set[Subscription] = set()
        self._events: list[Event] = []
        self._dropped = 0
        self._idle: set[Subscription] = set()
        """Readers that wait for new events."""

    @property
    def end(self) -> int:
        return self._dropped + len(self._events)

    def put(self, event: Event) -> None:
        self._events.append(event)
        if self.end % _TRIM_INTERVAL == 0:
            self._trim()
        self.wake()

    def put_latest(self, event: Event) -> None:
        for reader in self.readers:
            reader.set_latest(event)
        self.wake()

    def since(self, position: int) -> tuple[list[Event], bool]:
        """The events after a position, and whether some of them were dropped."""
        return self._events[max(0, position - self._dropped) :], position < self._dropped

    def wait(self, reader: Subscription) -> None:
        self._idle.add(reader)

    def forget(self, reader: Subscription) -> None:
        self.readers.discard(reader)
        self._idle.discard(reader)

    def wake(self) -> None:
        if self._idle:
            for reader in self._idle:
                reader.wake()
            self._idle.clear()

    def _trim(self) -> None:
        """Drop what every reader has, and what exceeds the limit for slow readers."""
        slowest = min((one.position for one in self.readers if one.position is not None), default=self.end)
        done = max(slowest - self._dropped, len(self._events) - MAX_PENDING)
        if done > 0:
            del self._events[:done]
            self._dropped += done


class Subscription:
    """The events for one reader, in order, on the hub's loop. The reader must close it."""

    def __init__(self, hub: EventHub, channel: _Channel, wanted: EventFilter, only_owner: str | None) -> None:
        self.wanted, self.only_owner = wanted, only_owner
        self._hub, self._channel = hub, channel
        self.position: int | None = None
        self._last = 0
        self._latest: dict[str, Event] = {}
        self._available = asyncio.Event()
        self.over = False
        """Whether there will be no more events."""
        self._next_at = 0.0
        self._stride = 0.75 + 0.5 * random.random()  # nosec B311 # only spreads readers in time

    async def take(self, timeout: float | None = None) -> Batch:
        """The next events; an empty batch after ``timeout`` seconds. With many readers, more events are collected into
        one batch."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                await self._available.wait()
        except TimeoutError:
            return Batch(over=self.over)
        pause = self._next_at - loop.time()
        if pause > 0 and not self.over:
            await asyncio.sleep(pause)
        self._next_at = loop.time() + self._hub.pace * self._stride
        batch = self._batch()
        if not self.over:
            self._available.clear()
            self._channel.wait(self)
        return batch

    def resume(self, after: int) -> None:
        """Receive live events from now on, except those up to this number."""
        self._last, self.position = after, self._channel.end
        self._channel.wait(self)

    def close(self) -> None:
        """End the subscription. Idempotent."""
        self._hub.forget(self)
        self.end()

    def wants(self, event: Event) -> bool:
        """Whether the event matches the filter, and this reader may see it."""
        return self.wanted.matches(event) and self._may_see(event)

    def _may_see(self, event: Event) -> bool:
        if self.only_owner is None:
            return True
        return (
            event.kind not in ("action", "pool_changed")
            and event.fields.get("owner", self.only_owner) == self.only_owner
        )

    def _batch(self) -> Batch:
        if self.position is None:
            return Batch(over=self.over)
        events, some_dropped = self._channel.since(self.position)
        self.position = self._channel.end
        first = _first_number(events)
        if first is not None and first <= self._last:
            events = [one for one in events if one.number is None or one.number > self._last]
            first = _first_number(events)
        missed = None
        if some_dropped and events:  # without a numbered event: all up to the hub's number may have been dropped
            to = self._hub.number if first is None else first - 1
            missed = (self._last + 1, to) if to > self._last else None
        self._last = _first_number(reversed(events)) or (missed or (0, self._last))[1]
        if self._latest:
            events = [*events, *self._latest.values()]
            self._latest.clear()
        return Batch(events, missed, self.over)

    # ---- for the hub

    def set_latest(self, event: Event) -> None:
        if self.position is not None:
            self._latest[str(event.fields.get("cluster"))] = event

    def wake(self) -> None:
        self._available.set()

    def end(self) -> None:
        self.over = True
        self._available.set()


def _first_number(events: Iterable[Event]) -> int | None:
    return next((one.number for one in events if one.number is not None), None)


class EventHub:
    """Used on one loop. ``item_facts`` describes an item that is in memory."""

    def __init__(self, item_facts: ItemFacts, number: int = 0, *, most: int = MAX_SUBSCRIPTIONS) -> None:
        self.number = number
        """The number of the last published event."""
        self.most = most
        self._item_facts = item_facts
        self._channels: dict[tuple[EventFilter, str | None], _Channel] = {}
        self._by_key: dict[tuple[str, str], dict[_Channel, Subscription]] = {}
        """Channels by a field and value of their filter, each with one reader that can check the filter."""
        self._broad: dict[_Channel, Subscription] = {}
        self._all: set[Subscription] = set()
        self._closed = False

    @property
    def pace(self) -> float:
        """About how many seconds are between two batches of one reader."""
        return min(MAX_PACE_S, _PACE_PER_READER_S * len(self._all))

    def __len__(self) -> int:
        return len(self._all)

    @property
    def wants_load(self) -> bool:
        """Whether any reader wants telemetry."""
        return any(TELEMETRY in wanted.types for wanted, _ in self._channels)

    def subscribe(
        self, wanted: EventFilter, *, after: int | None = None, only_owner: str | None = None
    ) -> Subscription:
        """Subscribe to events after number ``after``; without it, none are delivered before
        :meth:`Subscription.resume`. With ``only_owner``, only events of that owner's items and of clusters.

        Raises ServiceUnavailableError if there are too many subscriptions.
        """
        if self._closed or len(self._all) >= self.most:
            why = "is stopping" if self._closed else f"has {self.most} readers of its events, and takes no more"
            raise ServiceUnavailableError(f"The service {why}.", next_step="try again later")
        channel = self._channels.get((wanted, only_owner))
        if channel is None:
            channel = self._channels[wanted, only_owner] = _Channel()
        reader = Subscription(self, channel, wanted, only_owner)
        self._all.add(reader)
        channel.readers.add(reader)
        for group in self._groups(reader):
            group.setdefault(channel, reader)
        if after is not None:
            reader.resume(after)
        return reader

    def forget(self, reader: Subscription) -> None:
        """Idempotent."""
        if reader not in self._all:
            return
        self._all.discard(reader)
        key = (reader.wanted, reader.only_owner)
        channel = self._channels[key]
        channel.forget(reader)
        if channel.readers:
            return
        del self._channels[key]
        self._broad.pop(channel, None)
        for word in reader.wanted.index_keys():
            self._by_key[word].pop(channel)
            if not self._by_key[word]:
                del self._by_key[word]

    def publish(self, last: int, entries: Sequence[LogEntry]) -> None:
        """Publish durable entries; ``last`` is the number of the last one."""
        self.number = last
        if not self._all:
            return
        for number, one in enumerate(entries, last - len(entries) + 1):
            facts = self._item_facts(one.item_id) if isinstance(one, (Step, StoredDecision)) else ("", "", "")
            places = self._places(one, facts[2])
            if places:
                event = event_of(EventRecord(number, one, *facts))
                for channel, reader in places.items():
                    if reader.wants(event):
                        channel.put(event)

    def publish_serving(self, event: Event) -> None:
        """Publish an event of serving: with its number to readers of nothing else, without it to the others."""
        if not self._all:
            return
        places = dict(self._broad)
        for name in ("id", "owner"):
            places.update(self._by_key.get((name, str(event.fields.get(name))), {}))
        for channel, reader in places.items():
            if reader.wants(event):
                channel.put(event if reader.wanted.serving_only else event.unnumbered)

    def publish_latest(self, event: Event) -> None:
        """Publish telemetry, of which a reader gets only the newest per cluster."""
        places = {**self._broad, **self._by_key.get(("cluster", str(event.fields.get("cluster"))), {})}
        for channel, reader in places.items():
            if reader.wants(event):
                channel.put_latest(event)

    def close(self) -> None:
        """End all subscriptions."""
        self._closed = True
        for reader in list(self._all):
            reader.end()

    def _groups(self, reader: Subscription) -> Iterable[dict[_Channel, Subscription]]:
        words = reader.wanted.index_keys()
        return [self._by_key.setdefault(word, {}) for word in words] if words else [self._broad]

    def _places(self, one: LogEntry, owner: str) -> dict[_Channel, Subscription]:
        """Channels with a filter that may match."""
        match one:
            case OperationRecord(subject=cluster):
                words = [("cluster", cluster)]
            case Step(item_id=item, cluster=cluster) | StoredDecision(item_id=item, cluster=cluster):
                words = [("id", item), ("owner", owner), ("cluster", cluster or "")]
        found = self._broad
        for word in words:
            some = self._by_key.get(word)
            if some:
                found = {**found, **some}
        return found
