"""EventHub: tells events to whoever subscribed; nobody who is slow keeps another one waiting."""

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
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import TELEMETRY, Event, event_of
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event_filter import EventFilter

MOST_WAITING = 2_000
"""So many events wait for one reader before it misses some."""
MOST_SUBSCRIPTIONS = 1_000
LONGEST_PACE_S = 0.5
_PACE_EACH_S = 0.001
_TIDY_EACH = 64

About = Callable[[str], tuple[str, str, str]]
"""Kind, name and owner of an item."""


class Batch(NamedTuple):
    """What came since the last one. ``missed`` are the numbers, from and to, between which some were left out, before
    these: too many came while nobody took them. ``over``: no more will come. ``read``: of the past, what came up to
    this number was looked through."""

    events: Sequence[Event] = ()
    missed: tuple[int, int] | None = None
    over: bool = False
    read: int | None = None


class _Channel:
    """The events of all readers who want the same: kept once, and each reader knows how far it is."""

    def __init__(self) -> None:
        self.readers: set[Subscription] = set()
        self._events: list[Event] = []
        self._gone = 0
        self._idle: set[Subscription] = set()
        """Those who took all there was, and wait."""

    @property
    def end(self) -> int:
        return self._gone + len(self._events)

    def put(self, event: Event) -> None:
        self._events.append(event)
        if self.end % _TIDY_EACH == 0:
            self._tidy()
        self.wake()

    def put_latest(self, event: Event) -> None:
        for reader in self.readers:
            reader.note_latest(event)
        self.wake()

    def since(self, position: int) -> tuple[list[Event], bool]:
        """What came after it, and whether some of that is gone."""
        return self._events[max(0, position - self._gone) :], position < self._gone

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

    def _tidy(self) -> None:
        """What everybody has is not kept, and not more than a slow one may be behind."""
        slowest = min((one.position for one in self.readers if one.position is not None), default=self.end)
        done = max(slowest - self._gone, len(self._events) - MOST_WAITING)
        if done > 0:
            del self._events[:done]
            self._gone += done


class Subscription:
    """One reader's events, in their order, on the hub's loop. To be closed."""

    def __init__(self, hub: EventHub, channel: _Channel, wanted: EventFilter, only_owner: str | None) -> None:
        self.wanted, self.only_owner = wanted, only_owner
        self._hub, self._channel = hub, channel
        self.position: int | None = None
        self._last = 0
        self._latest: dict[str, Event] = {}
        self._news = asyncio.Event()
        self._over = False
        self._next_at = 0.0
        self._stride = 0.75 + 0.5 * random.random()  # nosec B311 # only spreads readers in time

    async def take(self, timeout: float | None = None) -> Batch:
        """What there is, or what comes next; empty after so many seconds without any. The more readers there are, the
        more is left to come together first."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                await self._news.wait()
        except TimeoutError:
            return Batch(over=self._over)
        pause = self._next_at - loop.time()
        if pause > 0 and not self._over:
            await asyncio.sleep(pause)
        self._next_at = loop.time() + self._hub.pace * self._stride
        batch = self._batch()
        if not self._over:
            self._news.clear()
            self._channel.wait(self)
        return batch

    def go_on(self, after: int) -> None:
        """From now on, but nothing up to this number."""
        self._last, self.position = after, self._channel.end
        self._channel.wait(self)

    def close(self) -> None:
        """No more is wanted. Idempotent."""
        self._hub.forget(self)
        self.end()

    def wants(self, event: Event) -> bool:
        """Is it one of those, and may this reader know of it?"""
        return self.wanted.holds(event) and self._may_hear(event)

    @property
    def over(self) -> bool:
        """Will no more come?"""
        return self._over

    def _may_hear(self, event: Event) -> bool:
        if self.only_owner is None:
            return True
        return event.kind != "action" and event.said.get("owner", self.only_owner) == self.only_owner

    def _batch(self) -> Batch:
        if self.position is None:
            return Batch(over=self._over)
        events, some_gone = self._channel.since(self.position)
        self.position = self._channel.end
        if events and (events[0].number or 0) <= self._last:
            events = [one for one in events if (one.number or 0) > self._last]
        missed = (self._last + 1, (events[0].number or 0) - 1) if some_gone and events else None
        if events:
            self._last = events[-1].number or 0
        if self._latest:
            events = [*events, *self._latest.values()]
            self._latest.clear()
        return Batch(events, missed, self._over)

    # ---- the hub's

    def note_latest(self, event: Event) -> None:
        if self.position is not None:
            self._latest[str(event.said.get("cluster"))] = event

    def wake(self) -> None:
        self._news.set()

    def end(self) -> None:
        self._over = True
        self._news.set()


class EventHub:
    """On one loop. ``about`` describes an item that lives."""

    def __init__(self, about: About, number: int = 0, *, most: int = MOST_SUBSCRIPTIONS) -> None:
        self.number = number
        """The last one that was told."""
        self.most = most
        self._about = about
        self._channels: dict[tuple[EventFilter, str | None], _Channel] = {}
        self._by_key: dict[tuple[str, str], dict[_Channel, Subscription]] = {}
        """Where an event with this field and word may be wanted, and one who knows whether it is."""
        self._broad: dict[_Channel, Subscription] = {}
        self._all: set[Subscription] = set()
        self._closed = False

    @property
    def pace(self) -> float:
        """About so many seconds lie between two batches for one reader."""
        return min(LONGEST_PACE_S, _PACE_EACH_S * len(self._all))

    def __len__(self) -> int:
        return len(self._all)

    @property
    def wants_load(self) -> bool:
        """Does anybody listen to telemetry?"""
        return any(TELEMETRY in wanted.types for wanted, _ in self._channels)

    def subscribe(
        self, wanted: EventFilter, *, after: int | None = None, only_owner: str | None = None
    ) -> Subscription:
        """From now on, but nothing up to number ``after``; without one, nothing before it is told to go on. With
        ``only_owner`` nothing of anybody else's work, and nothing that operators did.

        Raises ServiceUnavailableError if too many listen already.
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
            reader.go_on(after)
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
        for word in reader.wanted.found_by():
            self._by_key[word].pop(channel)
            if not self._by_key[word]:
                del self._by_key[word]

    def publish(self, last: int, told: Sequence[LogEntry]) -> None:
        """These are durable; the last of them has this number."""
        self.number = last
        if not self._all:
            return
        for number, one in enumerate(told, last - len(told) + 1):
            about = self._about(one.item_id) if isinstance(one, (Step, StoredDecision)) else ("", "", "")
            places = self._places(one, about[2])
            if places:
                event = event_of(EventRecord(number, one, *about))
                for channel, reader in places.items():
                    if reader.wants(event):
                        channel.put(event)

    def tell_latest(self, event: Event) -> None:
        """Telemetry: of each cluster only the newest matters."""
        places = {**self._broad, **self._by_key.get(("cluster", str(event.said.get("cluster"))), {})}
        for channel, reader in places.items():
            if reader.wants(event):
                channel.put_latest(event)

    def close(self) -> None:
        """Whoever listens hears that it is over."""
        self._closed = True
        for reader in list(self._all):
            reader.end()

    def _groups(self, reader: Subscription) -> Iterable[dict[_Channel, Subscription]]:
        words = reader.wanted.found_by()
        return [self._by_key.setdefault(word, {}) for word in words] if words else [self._broad]

    def _places(self, one: LogEntry, owner: str) -> dict[_Channel, Subscription]:
        """Where it may be wanted."""
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
