"""SchedulerMachine: the deterministic state machine that makes all scheduling decisions. Events in, instructions out;
no clock, no threads, no I/O, no randomness."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import ClusterMetadata, SchedulingDecision, TaskDescription
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits, Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.lifecycle import codes, events, timers
from ray_multicluster_scheduler.scheduler.lifecycle.admission import Admission
from ray_multicluster_scheduler.scheduler.lifecycle.attempts import Attempts
from ray_multicluster_scheduler.scheduler.lifecycle.fleet_events import FleetEvents
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Instruction
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import MachineState
from ray_multicluster_scheduler.scheduler.lifecycle.placement.prefetch import Prefetch
from ray_multicluster_scheduler.scheduler.lifecycle.placement.reservation import WideItemReservations
from ray_multicluster_scheduler.scheduler.lifecycle.placement.scheduling_pass import SchedulingPass
from ray_multicluster_scheduler.scheduler.lifecycle.placement.start_estimate import StartEstimate, estimate_start
from ray_multicluster_scheduler.scheduler.lifecycle.pool_quota import PoolQuota
from ray_multicluster_scheduler.scheduler.lifecycle.preemption import Preemption, PreemptionCounts, preemption_rules
from ray_multicluster_scheduler.scheduler.lifecycle.prerequisites import UnmetPrerequisites
from ray_multicluster_scheduler.scheduler.lifecycle.queue_control import QueueControl
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.lifecycle.refresher import SnapshotRefresher
from ray_multicluster_scheduler.scheduler.lifecycle.restore import Restore
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ClusterRow, ItemRow, OwnerRow, PoolRow
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from ray_multicluster_scheduler.scheduler.policy.verdict import Verdict, verdict
from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from ray_multicluster_scheduler.scheduler.pools.preemption_plan import Candidate, NoPlan, PreemptionPlan
from ray_multicluster_scheduler.scheduler.queue.queue_position import (
    QueuePosition,
    first_positions,
    queue_position,
    queue_positions,
)
from ray_multicluster_scheduler.scheduler.queue.shape import QueueKey


class SchedulerMachine:
    """The state machine. One thread drives it; each call does a bounded amount of work and asks to be continued.

    The caller makes all Persist and Remember of a call durable before it carries out any other instruction of that
    call. A Restored event continues from the rows of an earlier machine. Raises ConfigurationError when the settings
    name an unknown score.
    """

    def __init__(
        self,
        settings: Settings,
        clusters: Iterable[ClusterMetadata],
        *,
        policy: PolicyEngine | None = None,
        local_python: str = "3.11",
        first_fence: int = 1,
        pools: Iterable[Pool] = (),
    ) -> None:
        engine = policy or PolicyEngine(settings, local_python=local_python)
        self._state = MachineState(settings, clusters, engine, first_fence, pools)
        self.registry = self._state.registry
        self.clusters = self._state.clusters
        """Life cycle and recorded health of the clusters; change them only by events."""
        self.filter_names = engine.filter_names
        """All filters, in the order in which every decision applies them."""
        self._refresher = SnapshotRefresher(self._state)
        self._prefetch = Prefetch(self._state)
        reservations = WideItemReservations(self._state)
        self._preemption = Preemption(self._state, self._prefetch, preemption_rules(settings))
        self._scheduling = SchedulingPass(self._state, self._refresher, self._prefetch, reservations, self._preemption)
        self._control = QueueControl(self._state, self._scheduling, self._prefetch)
        self._admission = Admission(self._state, self._scheduling)
        self._attempts = Attempts(self._state, self._scheduling, self._prefetch)
        self._fleet = FleetEvents(self._state, self._scheduling, self._prefetch, self._attempts)
        self._restore = Restore(self._state, self._admission, self._scheduling, self._prefetch, self._preemption)
        self._handlers: dict[type[events.Event], Callable[[Any, float], None]] = {
            events.Submitted: self._admission.submitted,
            events.ArgumentsReady: self._admission.arguments_ready,
            events.ArgumentsFailed: self._admission.arguments_failed,
            events.CancelRequested: self._admission.cancel_requested,
            events.DispatchAccepted: self._attempts.accepted,
            events.DispatchRefused: self._attempts.refused,
            events.Started: self._attempts.started,
            events.PlaceMoved: self._attempts.place_moved,
            events.AttemptFinished: self._attempts.finished,
            events.SnapshotTaken: self._fleet.snapshot_taken,
            events.SnapshotFailed: self._fleet.snapshot_failed,
            events.DashboardChecked: self._fleet.dashboard_checked,
            events.HeadSilent: self._fleet.head_silent,
            events.LinkUp: self._fleet.link_up,
            events.LinkDown: self._fleet.link_down,
            events.ProcessesDead: self._fleet.processes_dead,
            events.LinkClosed: self._fleet.link_closed,
            events.LinkFailed: self._fleet.link_failed,
            events.ClusterChanged: self._fleet.cluster_changed,
            events.CordonChanged: self._fleet.cordon_changed,
            events.ClusterDeclaredDead: self._fleet.declared_dead,
            events.ClusterChecked: self._fleet.checked,
            events.HoldRequested: self._control.hold,
            events.ReleaseRequested: self._control.release,
            events.PriorityChanged: self._control.change_priority,
            events.QueuePaused: self._control.pause,
            events.QueueResumed: self._control.resume,
            events.OwnerLimitsChanged: self._control.change_owner_limits,
            events.StateSaved: self._attempts.state_saved,
            events.PoolChanged: self._control.change_pool,
            events.PoolDeleted: self._control.delete_pool,
            events.Restored: self._restore.restored,
            events.TimerFired: self._timer_fired,
            events.Continued: lambda _event, _now: None,  # the pass that follows every event does the work
        }
        self._timer_handlers: dict[str, Callable[[str, float], object]] = {
            "queue": self._admission.queue_timeout,
            "begin": self._admission.start_after_reached,
            "retry": self._attempts.back_off_over,
            "run": self._attempts.run_timeout,
            "start": self._attempts.ready_timeout,
            "grace": self._preemption.grace_over,
            "room": self._preemption.room_unused,
            timers.PREEMPT: self._preemption.make_plan,
            timers.KEEP: self._scheduling.reserve_for_wide_items,
            timers.STARTS: self._attempts.start_timeout,
            "lost": self._fleet.still_silent,
            "ahead": self._prefetch.recall_overdue,
            "refresh": lambda cluster, _now: self._state.clusters_to_refresh.add(cluster),
        }

    def handle(self, event: events.Event, now: float) -> list[Instruction]:
        """Process one event and return the resulting instructions. Late, repeated and unknown events change nothing."""
        self._handlers[type(event)](event, now)
        self._admission.notify_dependents(now)
        self._scheduling.run(now)
        if self._state.prerequisites.has_notifications():
            self._state.output.request_continue()  # an item ended in the pass itself
        self._refresher.run(now, submitted=isinstance(event, events.Submitted))
        if self.registry.rebooked:
            self._state.persist_rebooked()
        return self._state.output.drain()

    def _timer_fired(self, event: events.TimerFired, now: float) -> None:
        if not self._state.output.consume_timer(event.key):
            return
        kind, subject = timers.split(event.key)
        self._timer_handlers.get(kind, self._wake)(subject, now)

    def _wake(self, _subject: str, _now: float) -> None:
        self._scheduling.request_full_scan()

    # ---- queries

    @property
    def timers(self) -> frozenset[str]:
        """Keys of the timers that have not fired."""
        return frozenset(self._state.output.timers)

    def record(self, task_id: str) -> TaskRecord:
        """The record of an item, read-only. Raises KeyError for an unknown id."""
        return self._state.records[task_id]

    def row(self, task_id: str) -> ItemRow:
        """The durable row of an item: write it after each call that returned a Persist or a Remember for it. Raises
        KeyError for an unknown id."""
        return self._restore.row(self._state.records[task_id])

    def cluster_rows(self) -> tuple[ClusterRow, ...]:
        """The durable rows of clusters: what operators ordered for them."""
        return self._restore.clusters()

    @property
    def next_fence(self) -> int:
        """Store it with the rows: no later machine may start with a lower fence."""
        return self._state.next_fence

    def owner_rows(self) -> tuple[OwnerRow, ...]:
        """The durable rows of owners that are paused or have limits other than in the settings."""
        return self._restore.owners()

    def pool_rows(self) -> tuple[PoolRow, ...]:
        """The durable rows of pools that were created, changed or deleted at run time."""
        return self._state.pools.rows()

    @property
    def pools(self) -> PoolQuota:
        """The pools and the use of their quota, read-only."""
        return self._state.pools

    def limits_of(self, owner: str) -> OwnerLimits:
        """The current limits of this owner."""
        return self._state.limits_of(owner)

    def limits(self) -> dict[str, OwnerLimits]:
        """The current limits of all owners that have any, from the settings or set since."""
        return {**self._state.settings.owners, **self._state.owner_limits}

    def records(self) -> Iterable[TaskRecord]:
        """All items that were not forgotten, in order of submission."""
        return self._state.records.values()

    def has_unfinished(self) -> bool:
        return self._state.unfinished > 0

    def id_for_key(self, owner: str, key: str) -> str | None:
        """The id of the first item that this owner submitted with this idempotency key, or None."""
        return self._admission.id_for_key(owner, key)

    def id_for_content(self, key: str) -> str | None:
        """The id of the unfinished item with this content key, or None."""
        return self._admission.id_for_content(key)

    def unmet_prerequisites(self, task_id: str) -> UnmetPrerequisites | None:
        """The conditions that an accepted item waits for before it is queued; None if nothing is missing."""
        return self._state.prerequisites.of(task_id)

    def retry_delay_left(self, task_id: str, now: float) -> float | None:
        """Seconds until the next attempt of a failed item may be placed; None if it is not in back-off."""
        due = self._state.output.timers.get(timers.retry_key(task_id))
        return None if due is None else max(0.0, due - now)

    def estimate_start(
        self, task_id: str, position: int | None, decision: SchedulingDecision | None, now: float
    ) -> StartEstimate | None:
        """When a waiting item may start, from its position in the queue and the reason why it waits; None if it does
        not wait. Raises KeyError for an unknown id."""
        return estimate_start(self._state, self._state.records[task_id], position, decision, now)

    def view(self, name: str, now: float) -> ClusterView:
        """The cluster as placement sees it. Raises ConfigurationError for an unknown name."""
        return self._state.view(self.registry.state(name), now)

    def queue_depths(self) -> dict[QueueKey, int]:
        """The number of waiting items of each queue that is not empty."""
        return self._state.queue.depths()

    def queue_position(self, task_id: str, now: float) -> QueuePosition | None:
        """The position of an item in the queue and the items before it; None if it is not queued."""
        return queue_position(self._state.queue, task_id, now)

    def queue_positions(self, task_ids: Iterable[str], now: float) -> dict[str, int]:
        """The positions of those of these items that are queued, by id."""
        return queue_positions(self._state.queue, task_ids, now)

    def first_positions(self, most: int, now: float, owner: str | None = None) -> dict[str, int]:
        """The next ``most`` items in the order of the queue, of one owner if given: their positions by id."""
        return first_positions(self._state.queue, most, now, owner)

    def fresh_views(self, now: float) -> tuple[ClusterView, ...]:
        """All clusters with current sentences; pass them to :meth:`explain_wait` when it is called for many items."""
        return self._state.fresh_views(now)

    def explain_wait(
        self, task_id: str, now: float, views: tuple[ClusterView, ...] | None = None
    ) -> SchedulingDecision | None:
        """Why an item waits, as of ``now``; None if it is not queued. ``views``: from :meth:`fresh_views`. Raises
        KeyError for an unknown id, PolicyEvaluationError."""
        return self._scheduling.explain_wait(self._state.records[task_id], now, views)

    def plan(self, task: TaskDescription, now: float) -> SchedulingDecision:
        """The decision for an item if it were submitted now; submits nothing. Raises
        ConfigurationError and PolicyEvaluationError."""
        name = self._admission.unknown_name(task)
        if name is not None:
            hint = self.registry.name_hint(name)
            raise ConfigurationError(
                self.registry.unknown_name_message(name), task_id=task.id, cluster=name, next_step=hint
            )
        task = self._state.pools.assigned(task)
        refusal = self._state.pools.inadmissible(task)
        if refusal is not None:
            _, sentence, step = refusal
            raise ConfigurationError(f"The item would be refused: {sentence}.", task_id=task.id, next_step=step)
        decision, full = self._scheduling.plan(task, now), self._admission.queue_limit_refusal(task)
        if full is None or verdict(decision) is not Verdict.WAIT:
            return decision
        sentence = f"it would be refused: {full[0]}"
        helps = f"something that waits leaves the queue, or {full[1]} is raised"
        return replace(decision, cluster=None, code=codes.QUEUE_FULL, sentence=sentence, unblocked_by=helps)

    def preemption_plan(self, task_id: str, now: float) -> PreemptionPlan | NoPlan | None:
        """Which running items would give way to a waiting item, or why none would; None if it is not queued, or if the
        room for it is being freed already. Changes nothing. Raises KeyError for an unknown id."""
        record = self._state.records[task_id]
        if record.group is None or record.room is not None:
            return None
        return self._preemption.plan(record.wanted, now, retry=record.retry)

    def preemption_plan_for(self, task: TaskDescription, now: float) -> PreemptionPlan | NoPlan:
        """The same for an item that was not submitted."""
        return self._preemption.plan(self._state.pools.assigned(task), now, retry=False)

    def preemption_candidates(self, task_id: str, place: str, now: float) -> list[Candidate]:
        """Every preemptible item that runs, and why it may or may not give way to this one on a cluster."""
        return self._preemption.candidates(self._state.records[task_id].wanted, place, now)

    def preemption_counts(self, now: float) -> PreemptionCounts:
        """Numbers of preemptions since the start, for metrics."""
        return self._preemption.counts(now)

    def queue_full(self, task: TaskDescription, now: float, *, blocked: bool) -> tuple[str, str] | None:
        """Message and next step if the item would be refused now because too many items wait; ``blocked``: it waits for
        something else before it is queued."""
        return self._admission.queue_full(task, now, blocked=blocked)

    def may_be_full(self, owner: str, unhandled: int) -> bool:
        """Whether a submission of this owner may find the queue full, if ``unhandled`` submissions were posted and not
        handled. From any thread, and never falsely False."""
        return self._admission.may_be_full(owner, unhandled)

    def awaited_clusters(self, now: float) -> set[str]:
        """Clusters without a current snapshot, which was requested: items that wait may start there."""
        problems = {state.name: state.problem(now) for state in self.registry}
        return {name for name, problem in problems.items() if problem is not None and problem.being_asked}

    def forget(self, task_id: str) -> None:
        """Drop the record of an ended item. Raises KeyError if it is unknown, ValueError if it has not ended."""
        record = self._state.records[task_id]
        if not record.state.terminal:
            raise ValueError(f"{task_id} is {record.state}: only an item that has ended can be forgotten")
        del self._state.records[task_id]
        self._admission.forget(record)
