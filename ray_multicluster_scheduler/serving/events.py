"""TaskEvents: numbered events of tasks, with replay of the newest, delivered by an EventHub."""

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
    """Publishes each change of a task, on the scheduler's loop. The last ``KEPT`` events are kept in memory. Numbers
    begin with the time in microseconds, so that those of an earlier process are recognised."""

    def __init__(self, scheduler: SwarmPilotScheduler) -> None:
        start = time.time_ns() // 1000
        self.hub = EventHub(lambda _: ("", "", ""), start)
        self._first = start + 1
        self._kept: deque[Event] = deque(maxlen=KEPT)
        scheduler.task_tracker.on_change = lambda info: scheduler.call_soon(self._publish, _values(info))

    def close(self) -> None:
        """End all subscriptions."""
        self.hub.close()

    def subscribe(self, wanted: EventFilter, *, only_owner: str | None = None) -> Subscription:
        """A subscription for :meth:`batches`; the caller closes it. Raises ServiceUnavailableError for too many."""
        return self.hub.subscribe(wanted, only_owner=only_owner)

    async def batches(
        self, reader: Subscription, since: int, *, idle_s: float | None = None, report_progress: bool = False
    ) -> AsyncIterator[Batch]:
        """The kept events after number ``since``, then live ones, as ``EventPublisher.batches``."""
        last = self.hub.number
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

    def _publish(self, values: dict[str, object]) -> None:
        event = Event(SERVING, values, self.hub.number + 1)
        self._kept.append(event)
        self.hub.publish_event(event)


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
