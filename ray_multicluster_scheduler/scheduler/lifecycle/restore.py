"""Restore: writes the durable rows of a machine, and continues from them after a restart.

Load, run times and past use of owners are not stored; they are learnt again. Items keep their states. For every attempt
that may be alive a request goes to its cluster, and it is not started again before the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState
from ray_multicluster_scheduler.scheduler.cluster.fit import may_spread
from ray_multicluster_scheduler.scheduler.lifecycle import codes, timers
from ray_multicluster_scheduler.scheduler.lifecycle.admission import Admission
from ray_multicluster_scheduler.scheduler.lifecycle.events import Restored
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    AdoptAttempt,
    Ahead,
    CancelAttempt,
    Dispatch,
    RecallAttempt,
    StartAttempt,
)
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import MachineState
from ray_multicluster_scheduler.scheduler.lifecycle.placement.prefetch import Prefetch
from ray_multicluster_scheduler.scheduler.lifecycle.placement.scheduling_pass import SchedulingPass
from ray_multicluster_scheduler.scheduler.lifecycle.preemption import Preemption
from ray_multicluster_scheduler.scheduler.lifecycle.record import NO_FAILURES, Ending, TaskRecord
from ray_multicluster_scheduler.scheduler.lifecycle.rows import (
    ClusterRow,
    ItemRow,
    OwnerRow,
    PlaceState,
    PoolRow,
    SentRow,
)


class Restore:
    """Both directions: the rows that one machine writes, the next one reads."""

    def __init__(
        self,
        machine: MachineState,
        admission: Admission,
        scheduling: SchedulingPass,
        prefetch: Prefetch,
        preemption: Preemption,
    ) -> None:
        self._machine, self._admission, self._scheduling, self._prefetch = machine, admission, scheduling, prefetch
        self._preemption = preemption

    # ---- writing rows

    def row(self, record: TaskRecord) -> ItemRow:
        """The durable row of an item."""
        task_id = record.task.id
        state = self._machine.registry.find(record.cluster) if record.live else None
        reservation = None if state is None else state.ledger.reservations.get(task_id)
        missing = self._machine.prerequisites.of(task_id)
        return ItemRow(
            task=record.task,
            number=record.number,
            history=tuple(record.history),
            priority=record.wanted.priority,
            attempt=record.attempt,
            cluster=record.cluster,
            fence=record.fence,
            earlier_fences=record.earlier_fences,
            queued_at=record.queued_at,
            started_at=record.started_at,
            finished_at=record.finished_at,
            decision=record.placed,
            ending=record.ending,
            failures=dict(record.failures),
            restarts=record.restarts,
            load_bytes=record.load_bytes,
            pinned=record.pinned,
            pool=record.wanted.pool,
            held=record.held,
            waits_for="" if missing is None else missing.arguments,
            after=() if missing is None else tuple(missing.after),
            retry_at=self._machine.output.timers.get(timers.retry_key(task_id)),
            holding=record.holding,
            place=self._slot_state(record, state),
            parts={} if reservation is None else dict(reservation.parts),
            given_up=record.given_up,
            room=None if record.room is None else self._machine.current_room(record),
            saved=record.saved,
            saved_at=record.saved_at,
            preempted_at=record.preempted_at,
            resumes=record.resumes,
        )

    def _slot_state(self, record: TaskRecord, state: ClusterState | None) -> PlaceState:
        if not record.live:
            return "none"
        if state is None:
            return "away"
        if record.task.id in state.slots.prefetched:
            return "ahead"
        return "held" if record.task.id in state.slots.held else "none"

    def clusters(self) -> tuple[ClusterRow, ...]:
        return tuple(
            ClusterRow(state.name, state.cordoned, state.paused, state.dead, state.cordon_reason)
            for state in self._machine.registry
        )

    def owners(self) -> tuple[OwnerRow, ...]:
        paused, limits = self._machine.queue.paused_owners(), self._machine.owner_limits
        return tuple(OwnerRow(name, paused.get(name), limits.get(name)) for name in sorted({*paused, *limits}))

    def pools(self) -> tuple[PoolRow, ...]:
        return self._machine.pools.rows()

    # ---- loading rows

    def restored(self, event: Restored, now: float) -> None:
        """Load the rows. Raises ValueError for a machine that has items already."""
        if self._machine.records:
            raise ValueError("only a machine that has no items yet can be restored")
        self._machine.next_fence = max(self._machine.next_fence, event.next_fence)
        self._admission.set_next_number(event.next_number)
        for one in event.clusters:
            self._machine.clusters.restore(
                one.name, cordoned=one.cordoned, cordon_reason=one.cordon_reason, paused=one.paused, dead=one.dead
            )
        for owner in event.owners:
            if owner.limits is not None:
                self._machine.owner_limits[owner.name] = owner.limits
            if owner.paused is not None:
                self._machine.queue.pause(owner.name, owner.paused)
        self._machine.pools.restore(event.pools)
        rows = sorted(event.items, key=lambda row: row.number)
        for row in rows:
            self._admission.register(_record(row))
            self._machine.next_fence = max(self._machine.next_fence, *(fence + 1 for fence in _fences(row)))
        self._restore_submission_times(rows, event.sent)
        self._restore_turns(rows, event.sent)
        self._machine.registry.changed.update(self._machine.registry.names())  # their next submission times changed
        for row in rows:
            self._restore_item(row, self._machine.records[row.task.id], now)
            for attempt, cluster_name in row.given_up:
                self._machine.output.add(CancelAttempt(row.task.id, attempt, cluster_name, force=True))
        self._scheduling.request_full_scan()

    def _restore_item(self, row: ItemRow, record: TaskRecord, now: float) -> None:
        if record.live:
            self._restore_attempt(row, record, now)
        elif record.state is TaskState.PENDING:
            self._admission.restore_pending(record, row.waits_for, row.after, now)
        elif record.state is TaskState.QUEUED:
            self._scheduling.restore_queued(record, now)
            self._preemption.restore(record, now)
        elif record.state is TaskState.RETRYING:
            self._machine.output.set_timer(timers.retry_key(record.task.id), max(now, row.retry_at or now))

    def _restore_attempt(self, row: ItemRow, record: TaskRecord, now: float) -> None:
        task, cluster = record.task, record.cluster or ""
        assert row.holding is not None, f"{task.id} has an attempt and no share"
        record.holding = row.holding
        self._machine.queue.charge(task.owner, row.holding, now)
        self._machine.pools.dispatched(record)
        if record.started_at is not None:
            self._machine.pools.started(record)
        self._restore_bookings(row, record, now)
        if record.started_at is not None and task.run_timeout is not None:
            due = max(now, record.started_at + task.run_timeout)
            self._machine.output.set_timer(timers.run_key(task.id, record.attempt), due)
        fence = record.fence or 0
        if record.started_at is not None:
            self._machine.output.add(AdoptAttempt(task.id, record.attempt, fence, cluster))
        else:
            ahead: Ahead = "queue" if row.place == "ahead" else ""
            self._machine.output.add(
                Dispatch(task.id, record.attempt, fence, cluster, ahead, again=True, saved=record.saved)
            )
            if row.place == "held" and row.decision is not None and row.decision.code == codes.SENT_AHEAD:
                self._machine.output.add(StartAttempt(task.id, record.attempt, cluster))
        if record.started_at is not None:
            self._machine.note_preemptible(record)
        if record.ending is not None and record.ending.kind == "preempt":
            self._preemption.request(record, now)
        elif record.ending is not None:  # requested before the restart, but maybe not delivered
            self._machine.output.add(_end_of(record, record.ending, cluster))

    def _restore_bookings(self, row: ItemRow, record: TaskRecord, now: float) -> None:
        state = self._machine.registry.find(record.cluster)
        if state is None:
            return
        if row.place == "ahead":
            state.slots.add_prefetched(record.wanted, row.sent_at)
            self._prefetch.start_timer(state)
        elif row.place == "away":
            state.assign(record.task, now, begun=record.started_at is not None)
        elif row.place == "held":
            task = record.task
            state.ledger.reserve(task.id, row.parts, row.sent_at, spreads=may_spread(task))
            state.slots.assign(task)
            if record.started_at is not None:
                state.ledger.reservations[task.id].started_at = record.started_at
                if task.runs_actors:
                    state.slots.actor_ready(task.id)
        self._machine.clusters_to_refresh.add(state.name)

    def _restore_submission_times(self, rows: Iterable[ItemRow], over: Iterable[SentRow]) -> None:
        """Restore when each cluster last got new work, for the submission interval."""
        first = [next((step for step in row.history if step.state is TaskState.DISPATCHING), None) for row in rows]
        known = [
            SentRow(self._machine.records[step.task_id].task.base_kind, step.cluster or "", step.at)
            for step in first
            if step is not None
        ]
        for sent in sorted((*known, *over), key=lambda one: one.at):
            self._machine.submissions.record_at(sent.kind, sent.cluster, sent.at)

    def _restore_turns(self, rows: Iterable[ItemRow], over: Iterable[SentRow]) -> None:
        """Restore the order in which the clusters last got an item, for the rotation among near-equal scores. Fences
        order what was sent at the same time."""
        sent = [(one.at, 0, one.cluster) for one in over]
        for row in rows:
            steps = [step for step in row.history if step.state is TaskState.DISPATCHING]
            sent += [(step.at, fence, step.cluster or "") for step, fence in zip(steps, _fences(row)[1:], strict=False)]
        for _, _, cluster in sorted(sent):
            self._machine.engine.record_placement(cluster)


def _end_of(record: TaskRecord, ending: Ending, cluster: str) -> RecallAttempt | CancelAttempt:
    if ending.kind == "take_back":
        return RecallAttempt(record.task.id, record.attempt, cluster)
    return CancelAttempt(record.task.id, record.attempt, cluster, ending.force)


def _record(row: ItemRow) -> TaskRecord:
    record = TaskRecord(
        row.task,
        row.number,
        state=row.state,
        attempt=row.attempt,
        cluster=row.cluster,
        fence=row.fence,
        earlier_fences=row.earlier_fences,
        history=list(row.history),
        queued_at=row.queued_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        placed=row.decision,
        ending=row.ending,
        failures=dict(row.failures) or NO_FAILURES,
        restarts=row.restarts,
        load_bytes=row.load_bytes,
        held=row.held,
        given_up=row.given_up,
        restored=True,
        room=row.room,
        saved=row.saved,
        saved_at=row.saved_at,
        preempted_at=row.preempted_at,
        resumes=row.resumes,
    )
    if row.pinned is not None:
        record.pin(row.pinned)
    if row.pool != row.task.pool:
        record.wanted = replace(record.wanted, pool=row.pool)
    if row.priority != row.task.priority:
        record.prioritise(row.priority)
    return record


def _fences(row: ItemRow) -> tuple[int, ...]:
    return (0, *row.earlier_fences) if row.fence is None else (0, *row.earlier_fences, row.fence)
