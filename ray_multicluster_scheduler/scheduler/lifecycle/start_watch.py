"""StartWatch: which attempts were accepted over there and have not started in time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from ray_multicluster_scheduler.scheduler.lifecycle import timers
from ray_multicluster_scheduler.scheduler.lifecycle.outbox import Outbox
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord


class StartWatch:
    """All have the same time, so the oldest is the first to be late: one timer does for all of them."""

    def __init__(self, records: Mapping[str, TaskRecord], out: Outbox, grace_s: float) -> None:
        self._records, self._out, self._grace_s = records, out, grace_s
        self._expected: deque[tuple[float, str, int]] = deque()

    def expect(self, record: TaskRecord, now: float) -> None:
        """It was accepted just now."""
        self._drop_settled()
        self._expected.append((now + self._grace_s, record.task.id, record.attempt))
        if timers.STARTS not in self._out.timer_keys:
            self._out.set_timer(timers.STARTS, now + self._grace_s)

    def late(self, now: float) -> list[TaskRecord]:
        """Those whose time is over; the timer is set for the next one."""
        late = []
        while self._drop_settled() and self._expected[0][0] <= now:
            late.append(self._records[self._expected.popleft()[1]])
        if self._expected:
            self._out.set_timer(timers.STARTS, self._expected[0][0])
        return late

    def clear(self) -> None:
        """Nothing is left to be done."""
        self._expected.clear()
        self._out.clear_timer(timers.STARTS)

    def _drop_settled(self) -> bool:
        """Forget the oldest as far as they have started or are over. Is there one that is not?"""
        while self._expected:
            _, task_id, attempt = self._expected[0]
            record = self._records.get(task_id)
            waits = record is not None and record.live and record.attempt == attempt and record.started_at is None
            if waits:
                return True
            self._expected.popleft()
        return False
