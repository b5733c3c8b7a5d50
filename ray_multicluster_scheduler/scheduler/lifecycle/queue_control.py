"""QueueControl: people hold, release and re-order what waits, and pause queues."""

from __future__ import annotations

from ray_multicluster_scheduler.scheduler.lifecycle import codes
from ray_multicluster_scheduler.scheduler.lifecycle.events import (
    HoldRequested,
    OwnerLimitsChanged,
    PriorityChanged,
    QueuePaused,
    QueueResumed,
    ReleaseRequested,
)
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Remember, RememberFleet
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import Core
from ray_multicluster_scheduler.scheduler.lifecycle.placement.prefetch import SendingAhead
from ray_multicluster_scheduler.scheduler.lifecycle.placement.scheduling_pass import SchedulingPass
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord


class QueueControl:
    """Only what has not been sent yet is touched. Requests that change nothing are no mistakes."""

    def __init__(self, core: Core, scheduling: SchedulingPass, ahead: SendingAhead) -> None:
        self._core, self._scheduling, self._ahead = core, scheduling, ahead

    def hold(self, event: HoldRequested, now: float) -> None:
        """One that was sent, or waits for something else first, is held when it would be queued (again)."""
        record = self._unfinished(event.task_id)
        if record is None or record.held is not None:
            return
        record.held = event.reason
        self._core.out.put(Remember(event.task_id))
        if event.task_id in self._core.queue:
            self._core.leave_queue(record)
            self._core.keep_held(record, now)

    def release(self, event: ReleaseRequested, now: float) -> None:
        record = self._unfinished(event.task_id)
        if record is None or record.held is None:
            return
        record.held = None
        self._core.out.put(Remember(event.task_id))
        if event.task_id in self._core.held:
            self._core.held.discard(event.task_id)
            self._scheduling.enqueue(record, codes.QUEUED, "was released and waits to be placed", now)

    def prioritise(self, event: PriorityChanged, now: float) -> None:
        record = self._unfinished(event.task_id)
        if record is None:
            return
        before = record.wanted.priority
        record.prioritise(event.priority)
        if record.wanted.priority == before:
            return
        self._core.out.put(Remember(event.task_id))
        if event.task_id in self._core.queue:
            self._core.leave_queue(record)
            sentence = f"its priority was changed from {before} to {record.wanted.priority}"
            self._scheduling.enqueue(record, codes.PRIORITY_CHANGED, sentence, now)

    def pause(self, event: QueuePaused, now: float) -> None:
        if event.what == "owner":
            self._core.out.put(RememberFleet())
            self._core.queue.pause(event.name, event.reason)
            self._scheduling.owner_paused(event.name, now)
            self._ahead.leave_owner(event.name, "the queue of its owner is paused", now)
        else:
            self._pause_cluster(event.name, event.reason, now)

    def resume(self, event: QueueResumed, now: float) -> None:
        if event.what == "owner":
            self._core.out.put(RememberFleet())
            self._core.queue.resume(event.name)
            self._scheduling.owner_resumed(event.name, now)
        else:
            self._pause_cluster(event.name, None, now)

    def limit_owner(self, event: OwnerLimitsChanged, now: float) -> None:
        """What runs goes on, also if it is more than there may be; what only waits over there comes back then."""
        core, owner = self._core, event.owner
        if core.owner_limits.get(owner) == event.limits:
            return
        core.out.put(RememberFleet())
        if event.limits is None:
            del core.owner_limits[owner]
        else:
            core.owner_limits[owner] = event.limits
        is_over = core.queue.limits_changed(owner, now)
        self._scheduling.owner_limited(owner, now)
        if is_over:
            self._ahead.leave_owner(owner, "its owner may have less on clusters", now)

    def _pause_cluster(self, name: str, reason: str | None, now: float) -> None:
        state = self._core.registry.find(name)
        if state is not None:
            self._core.out.put(RememberFleet())
            state.paused = reason
            self._core.touched.add(name)
            if reason is not None:
                self._ahead.leave(state, "its queue is paused", now)
            self._scheduling.request()

    def _unfinished(self, task_id: str) -> TaskRecord | None:
        record = self._core.records.get(task_id)
        return None if record is None or record.state.terminal else record
