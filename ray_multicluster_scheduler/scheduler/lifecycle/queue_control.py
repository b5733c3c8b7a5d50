"""QueueControl: hold, release, re-prioritise, pause, resume, owner limits and pools."""

from __future__ import annotations

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.scheduler.lifecycle import codes
from ray_multicluster_scheduler.scheduler.lifecycle.events import (
    HoldRequested,
    OwnerLimitsChanged,
    PoolChanged,
    PoolDeleted,
    PriorityChanged,
    QueuePaused,
    QueueResumed,
    ReleaseRequested,
)
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Remember, RememberFleet
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import MachineState
from ray_multicluster_scheduler.scheduler.lifecycle.placement.prefetch import Prefetch
from ray_multicluster_scheduler.scheduler.lifecycle.placement.scheduling_pass import SchedulingPass
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord


class QueueControl:
    """Handlers for operators' orders about the queue. They affect only items that were not sent yet; a repeated order
    has no effect."""

    def __init__(self, machine: MachineState, scheduling: SchedulingPass, prefetch: Prefetch) -> None:
        self._machine, self._scheduling, self._prefetch = machine, scheduling, prefetch

    def hold(self, event: HoldRequested, now: float) -> None:
        """An item that was already sent, or still waits for prerequisites, is held when it would next be queued."""
        record = self._unfinished(event.task_id)
        if record is None or record.held is not None:
            return
        record.held = event.reason
        self._machine.output.add(Remember(event.task_id))
        if event.task_id in self._machine.queue:
            self._machine.leave_queue(record)
            self._machine.hold(record, now)

    def release(self, event: ReleaseRequested, now: float) -> None:
        record = self._unfinished(event.task_id)
        if record is None or record.held is None:
            return
        record.held = None
        self._machine.output.add(Remember(event.task_id))
        if event.task_id in self._machine.held_items:
            self._machine.held_items.discard(event.task_id)
            self._scheduling.enqueue(record, codes.QUEUED, "was released and waits to be placed", now)

    def change_priority(self, event: PriorityChanged, now: float) -> None:
        record = self._unfinished(event.task_id)
        if record is None:
            return
        before = record.wanted.priority
        record.prioritise(event.priority)
        if record.wanted.priority == before:
            return
        self._machine.output.add(Remember(event.task_id))
        if record.live:
            self._machine.note_preemptible(record)
        if event.task_id in self._machine.queue:
            self._machine.leave_queue(record)
            sentence = f"its priority was changed from {before} to {record.wanted.priority}"
            self._scheduling.enqueue(record, codes.PRIORITY_CHANGED, sentence, now)

    def pause(self, event: QueuePaused, now: float) -> None:
        if event.what == "owner":
            self._machine.output.add(RememberFleet())
            self._machine.queue.pause(event.name, event.reason)
            self._scheduling.owner_paused(event.name, now)
            self._prefetch.recall_owner(event.name, "the queue of its owner is paused", now)
        else:
            self._pause_cluster(event.name, event.reason, now)

    def resume(self, event: QueueResumed, now: float) -> None:
        if event.what == "owner":
            self._machine.output.add(RememberFleet())
            self._machine.queue.resume(event.name)
            self._scheduling.owner_resumed(event.name, now)
        else:
            self._pause_cluster(event.name, None, now)

    def change_owner_limits(self, event: OwnerLimitsChanged, now: float) -> None:
        """Running items continue even above a lowered limit; prefetched ones are recalled."""
        machine, owner = self._machine, event.owner
        if machine.owner_limits.get(owner) == event.limits:
            return
        machine.output.add(RememberFleet())
        if event.limits is None:
            del machine.owner_limits[owner]
        else:
            machine.owner_limits[owner] = event.limits
        is_over = machine.queue.limits_changed(owner, now)
        self._scheduling.owner_limited(owner, now)
        if is_over:
            self._prefetch.recall_owner(owner, "its owner may have less on clusters", now)

    def change_pool(self, event: PoolChanged, now: float) -> None:
        """Running items continue even above a lowered quota; prefetched ones are recalled."""
        try:
            self._machine.change_pool(event.pool.name, event.pool)
        except ConfigurationError:  # another change came first; who posted this one checks the outcome
            return
        self._scheduling.request_full_scan()
        for record in self._prefetch.records_of_pool(event.pool.name):
            self._prefetch.recall(record, "its pool was changed", now)

    def delete_pool(self, event: PoolDeleted, now: float) -> None:
        del now  # what runs in it continues
        self._machine.change_pool(event.name, None)

    def _pause_cluster(self, name: str, reason: str | None, now: float) -> None:
        state = self._machine.registry.find(name)
        if state is not None:
            self._machine.output.add(RememberFleet())
            self._machine.clusters_to_refresh.add(name)
            if reason is None:
                self._machine.clusters.resume(name)
            else:
                self._machine.clusters.pause(name, reason)
                self._prefetch.recall_cluster(state, "its queue is paused", now)
            self._scheduling.request_full_scan()

    def _unfinished(self, task_id: str) -> TaskRecord | None:
        record = self._machine.records.get(task_id)
        return None if record is None or record.state.terminal else record
