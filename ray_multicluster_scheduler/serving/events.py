"""TaskEvents: publishes changes of tasks to an EventHub, and replays the newest."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator

from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import SERVING, Event, EventFilter, reset_event
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event_hub import Batch, EventHub, Subscription
from ray_multicluster_scheduler.serving.core import SwarmPilotScheduler
from ray_multicluster_scheduler.serving.task_tracker import TaskInfo

KEPT = 10_000


class TaskEvents:
    """Publishes to the hub of its service, or without one to its own, in one step for all changes of a turn of the
    loop. The last ``KEPT`` events are kept in memory. Numbers begin with the time in microseconds, so that those of an
    earlier process are recognised."""

    def __init__(self, scheduler: SwarmPilotScheduler, hub: EventHub | None = None) -> None:
        self.number = time.time_ns() // 1000
        """The number of the last published event."""
        self._hub = EventHub(lambda _: ("", "", "")) if hub is None else hub
        self._owns_hub = hub is None
        self._first = self.number + 1
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._pending: deque[dict[str, object]] = deque()
        self._loop = scheduler.loop
        scheduler.task_tracker.on_change = self._changed

    def close(self) -> None:
        """End all subscriptions, unless the hub is that of a service, which closes it."""
        if self._owns_hub:
            self._hub.close()

    def subscribe(self, wanted: EventFilter, *, only_owner: str | None = None) -> Subscription:
        """A subscription for :meth:`batches`; the caller closes it. Raises ServiceUnavailableError for too many."""
        return self._hub.subscribe(wanted, only_owner=only_owner)

    async def batches(
        self, reader: Subscription, since: int, *, idle_s: float | None = None, report_progress: bool = False
    ) -> AsyncIterator[Batch]:
        """The kept events after number ``since``, then live ones, as ``EventPublisher.batches``."""
        last = self.number
        reader.resume(last)
        if since > last:
            yield Batch([reset_event(last)])
        elif since < last:
            begin = since + 1 if since else self._first
            oldest = self._kept[0].number or 0
            events = [one for one in self._kept if (one.number or 0) >= begin and reader.wants(one)]
            missed = (begin, oldest - 1) if begin < oldest else None
            if events or missed or report_progress:
                yield Batch(events, missed, read=last)
        while not reader.over:
            yield await reader.take(idle_s)

    def _changed(self, info: TaskInfo) -> None:
        """From any thread, with the tracker's lock held."""
        self._pending.append(_values(info))
        if len(self._pending) == 1:
            self._loop.call_soon_threadsafe(self._publish)

    def _publish(self) -> None:
        while self._pending:
            self.number += 1
            event = Event(SERVING, self._pending.popleft(), self.number)
            self._kept.append(event)
            self._hub.publish_serving(event)


def _values(info: TaskInfo) -> dict[str, object]:
    return {
        "at": time.time(),
        "id": info.task_id,
        "model": info.model_name,
        "owner": info.owner,
        "state": str(info.task_status),
        "instance": info.ti_uuid,
        "reason": info.reason or None,
        "error": info.error,
    }
