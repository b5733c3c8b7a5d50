"""EventHub: tells events to whoever subscribed; nobody who is slow keeps another one waiting."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ray_multicluster_scheduler.app.client_api.events.event import TELEMETRY, Event, event_of
from ray_multicluster_scheduler.app.client_api.events.event_filter import EventFilter
from ray_multicluster_scheduler.common.exception import ServiceUnavailableError
from ray_multicluster_scheduler.control_plane.store import Decided, Happened, Note, Step, Told

MOST_WAITING = 2_000
"""So many events wait for one reader before it misses some."""
MOST_SUBSCRIPTIONS = 1_000
LONGEST_PACE_S = 0.5
_PACE_EACH_S = 0.001

About = Callable[[str], tuple[str, str, str]]
"""Kind, name and owner of an item."""


class Batch(NamedTuple):
    """What came since the last one. ``missed`` are the numbers, from and to, between which some were left out, before
    these: too many came while nobody took them. ``over``: no more will come."""

    events: Sequence[Event] = ()
    missed: tuple[int, int] | None = None
    over: bool = False


class Subscription:
    """One reader's events, in their order, on the hub's loop. To be closed."""

    def __init__(self, hub: EventHub, wanted: EventFilter, after: int | None, only_owner: str | None) -> None:
        self.wanted, self.only_owner = wanted, only_owner
        self._after = after
        self._hub = hub
        self._waiting: deque[Event] = deque()
        self._latest: dict[str, Event] = {}
        self._missed: tuple[int, int] | None = None
        self._news = asyncio.Event()
        self._over = False
        self._taken_at = 0.0

    async def take(self, timeout: float | None = None) -> Batch:
        """What there is, or what comes next; empty after so many seconds without any. The more readers there are, the
        more is left to come together first."""
        loop = asyncio.get_running_loop()
        if timeout is None:
            await self._news.wait()
        else:
            try:
                await asyncio.wait_for(self._news.wait(), timeout)
            except TimeoutError:
                return Batch(over=self._over)
        pause = self._taken_at + self._hub.pace - loop.time()
        if pause > 0 and not self._over:
            await asyncio.sleep(pause)
        self._taken_at = loop.time()
        batch = Batch([*self._waiting, *self._latest.values()], self._missed, self._over)
        self._waiting.clear()
        self._latest.clear()
        self._missed = None
        if not self._over:
            self._news.clear()
        return batch

    def go_on(self, after: int) -> None:
        """From now on, but nothing up to this number."""
        self._after = after

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

    # ---- the hub's

    def put(self, event: Event) -> None:
        if self._after is None:
            return
        if event.number is None:
            self._latest[str(event.said.get("cluster"))] = event
        elif event.number <= self._after:
            return
        else:
            if len(self._waiting) >= MOST_WAITING:
                first = self._missed[0] if self._missed else self._waiting[0].number or 0
                self._missed = (first, self._waiting[-1].number or 0)
                self._waiting.clear()
            self._waiting.append(event)
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
        self._by_key: dict[tuple[str, str], set[Subscription]] = {}
        self._broad: set[Subscription] = set()
        self._all: set[Subscription] = set()
        self._closed = False

    @property
    def pace(self) -> float:
        """So many seconds lie between two batches for one reader."""
        return min(LONGEST_PACE_S, _PACE_EACH_S * len(self._all))

    def __len__(self) -> int:
        return len(self._all)

    @property
    def wants_load(self) -> bool:
        """Does anybody listen to telemetry?"""
        return any(TELEMETRY in reader.wanted.types for reader in self._all)

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
        reader = Subscription(self, wanted, after, only_owner)
        self._all.add(reader)
        for group in self._groups(reader):
            group.add(reader)
        return reader

    def forget(self, reader: Subscription) -> None:
        """Idempotent."""
        if reader not in self._all:
            return
        self._all.discard(reader)
        self._broad.discard(reader)
        for key in reader.wanted.found_by():
            group = self._by_key.get(key)
            if group is not None:
                group.discard(reader)
                if not group:
                    del self._by_key[key]

    def publish(self, last: int, told: Sequence[Told]) -> None:
        """These are durable; the last of them has this number."""
        self.number = last
        if not self._all:
            return
        for number, one in enumerate(told, last - len(told) + 1):
            about = self._about(one.item_id) if isinstance(one, (Step, Decided)) else ("", "", "")
            readers = self._readers(one, about[2])
            if readers:
                self._tell(event_of(Happened(number, one, *about)), readers)

    def tell_latest(self, event: Event) -> None:
        """Telemetry: of each cluster only the newest matters."""
        if self._all:
            self._tell(event, {*self._broad, *self._by_key.get(("cluster", str(event.said.get("cluster"))), ())})

    def close(self) -> None:
        """Whoever listens hears that it is over."""
        self._closed = True
        for reader in list(self._all):
            reader.end()

    def _groups(self, reader: Subscription) -> Iterable[set[Subscription]]:
        keys = reader.wanted.found_by()
        return [self._by_key.setdefault(key, set()) for key in keys] if keys else [self._broad]

    def _readers(self, one: Told, owner: str) -> set[Subscription]:
        """Who may want it."""
        match one:
            case Note(subject=cluster):
                keys = [("cluster", cluster)]
            case Step(item_id=item, cluster=cluster) | Decided(item_id=item, cluster=cluster):
                keys = [("id", item), ("owner", owner), ("cluster", cluster or "")]
        found = set(self._broad)
        for key in keys:
            found |= self._by_key.get(key, set())
        return found

    @staticmethod
    def _tell(event: Event, readers: Iterable[Subscription]) -> None:
        for reader in readers:
            if reader.wants(event):
                reader.put(event)
