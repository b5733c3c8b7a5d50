"""SchedulerMachine: the brain. Events in, instructions out; no clock, no threads, no I/O, no chance."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import ClusterMetadata, SchedulingDecision, TaskDescription
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits, Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_registry import ClusterRegistry
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.lifecycle import codes, events, timers
from ray_multicluster_scheduler.scheduler.lifecycle.admission import Admission
from ray_multicluster_scheduler.scheduler.lifecycle.attempts import Attempts
from ray_multicluster_scheduler.scheduler.lifecycle.fleet_events import FleetEvents
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Instruction
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import Core
from ray_multicluster_scheduler.scheduler.lifecycle.placement.dispatching import Sending
from ray_multicluster_scheduler.scheduler.lifecycle.placement.forecast import Forecast
from ray_multicluster_scheduler.scheduler.lifecycle.placement.prefetch import SendingAhead
from ray_multicluster_scheduler.scheduler.lifecycle.placement.reservation import KeptRoom
from ray_multicluster_scheduler.scheduler.lifecycle.placement.scheduling_pass import SchedulingPass
from ray_multicluster_scheduler.scheduler.lifecycle.placement.start_estimate import outlook
from ray_multicluster_scheduler.scheduler.lifecycle.prerequisites import Missing
from ray_multicluster_scheduler.scheduler.lifecycle.queue_control import QueueControl
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.lifecycle.refresher import Refresher
from ray_multicluster_scheduler.scheduler.lifecycle.restore import Restore
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ClusterRow, ItemRow, OwnerRow
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from ray_multicluster_scheduler.scheduler.policy.verdict import Verdict, verdict
from ray_multicluster_scheduler.scheduler.queue.queue_place import QueuePlace, queue_place, queue_positions
from ray_multicluster_scheduler.scheduler.queue.shape import Lane


class SchedulerMachine:
    """One thread drives it. Each call does a bounded amount of work and asks to be continued.

    Whoever drives it makes all Persist and Remember of a call durable before any other of its instructions is carried
    out. A machine that is told Restored goes on from there.
    Raises ConfigurationError when the settings name an unknown score.
    """

    def __init__(
        self,
        settings: Settings,
        clusters: Iterable[ClusterMetadata],
        *,
        policy: PolicyEngine | None = None,
        local_python: str = "3.11",
        first_fence: int = 1,
    ) -> None:
        engine = policy or PolicyEngine(settings, local_python=local_python)
        self._core = Core(settings, clusters, engine, first_fence)
        self._refresher = Refresher(self._core)
        sending = Sending(self._core)
        self._ahead = SendingAhead(self._core, sending)
        kept = KeptRoom(self._core)
        self._scheduling = SchedulingPass(self._core, self._refresher, self._ahead, kept, sending)
        self._control = QueueControl(self._core, self._scheduling, self._ahead)
        self._admission = Admission(self._core, self._scheduling)
        self._attempts = Attempts(self._core, self._scheduling, self._ahead)
        self._fleet = FleetEvents(self._core, self._scheduling, self._ahead, self._attempts)
        self._restore = Restore(self._core, self._admission, self._scheduling, self._ahead)
        self._takers: dict[type[events.Event], Callable[[Any, float], None]] = {
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
            events.LinkClosed: self._fleet.link_closed,
            events.LinkFailed: self._fleet.link_failed,
            events.ClusterChanged: self._fleet.cluster_changed,
            events.CordonChanged: self._fleet.cordon_changed,
            events.ClusterDeclaredDead: self._fleet.declared_dead,
            events.ClusterChecked: self._fleet.checked,
            events.HoldRequested: self._control.hold,
            events.ReleaseRequested: self._control.release,
            events.PriorityChanged: self._control.prioritise,
            events.QueuePaused: self._control.pause,
            events.QueueResumed: self._control.resume,
            events.OwnerLimitsChanged: self._control.limit_owner,
            events.Restored: self._restore.restored,
            events.TimerFired: self._timer_fired,
            events.Continued: _nothing,  # the pass goes on, as after every event
        }

    def handle(self, event: events.Event, now: float) -> list[Instruction]:
        """Take in one event, and say what is to be done. Late, repeated and unknown events change nothing."""
        self._takers[type(event)](event, now)
        self._admission.go_on(now)
        self._scheduling.run(now)
        if self._core.prerequisites.more_to_tell():
            self._core.out.ask_for_more()  # an item ended in the pass itself
        self._refresher.run(now, submitted=isinstance(event, events.Submitted))
        if self._core.registry.rebooked:
            self._core.remember_rebooked()
        return self._core.out.take()

    def _timer_fired(self, event: events.TimerFired, now: float) -> None:
        if not self._core.out.fired(event.key):
            return
        match timers.split(event.key):
            case ("queue", task_id):
                self._admission.queue_timeout(task_id, now)
            case ("begin", task_id):
                self._admission.time_has_come(task_id, now)
            case ("retry", task_id):
                self._attempts.back_off_over(task_id, now)
            case ("run", task_id):
                self._attempts.run_timeout(task_id, now)
            case ("start", task_id):
                self._attempts.ready_timeout(task_id, now)
            case (timers.KEEP, _):
                self._scheduling.keep_room(now)
            case (timers.STARTS, _):
                self._attempts.start_timeout(now)
            case ("lost", cluster):
                self._fleet.link_silent_for_long(cluster, now)
            case ("ahead", cluster):
                self._ahead.patience_over(cluster, now)
            case ("refresh", cluster):
                self._core.touched.add(cluster)
            case _:
                self._scheduling.request()

    # ---- what callers may look at

    @property
    def registry(self) -> ClusterRegistry:
        return self._core.registry

    @property
    def timers(self) -> frozenset[str]:
        """Keys of the timers that have not fired."""
        return self._core.out.timers

    def record(self, task_id: str) -> TaskRecord:
        """The item, to be read only. Raises KeyError for an unknown id."""
        return self._core.records[task_id]

    def row(self, task_id: str) -> ItemRow:
        """All of an item that is to be durable: whenever a Persist or a Remember names it, after the call that says so.
        Raises KeyError for an unknown id."""
        return self._restore.row(self._core.records[task_id])

    def cluster_rows(self) -> tuple[ClusterRow, ...]:
        """The same of clusters: what people said of them."""
        return self._restore.clusters()

    @property
    def next_fence(self) -> int:
        """To be kept beside the rows: no later machine may begin below it."""
        return self._core.next_fence

    def owner_rows(self) -> tuple[OwnerRow, ...]:
        """And of owners: those whose queue is paused, or who have other limits than in the settings."""
        return self._restore.owners()

    def limits_of(self, owner: str) -> OwnerLimits:
        """What this owner may have now."""
        return self._core.limits_of(owner)

    def limits(self) -> dict[str, OwnerLimits]:
        """The same of all owners of whom anything was said, in the settings or since."""
        return {**self._core.settings.owners, **self._core.owner_limits}

    def records(self) -> Iterable[TaskRecord]:
        """All items that were not forgotten, in order of submission."""
        return self._core.records.values()

    def has_unfinished(self) -> bool:
        return self._core.unfinished > 0

    def id_for_key(self, owner: str, key: str) -> str | None:
        """The id of the first item that this owner submitted with this idempotency key, or None."""
        return self._admission.id_for_key(owner, key)

    def id_for_content(self, key: str) -> str | None:
        """The id of the unfinished item with this content key, or None."""
        return self._admission.id_for_content(key)

    def missing(self, task_id: str) -> Missing | None:
        """What an accepted item waits for before it is queued; None if it does not wait for anything of that kind."""
        return self._core.prerequisites.of(task_id)

    def retried_in(self, task_id: str, now: float) -> float | None:
        """In how many seconds the next attempt of one that failed may go; None if it does not wait for that."""
        due = self._core.out.due(timers.retry_key(task_id))
        return None if due is None else max(0.0, due - now)

    def outlook(
        self, task_id: str, position: int | None, decision: SchedulingDecision | None, now: float
    ) -> Forecast | None:
        """When a waiting item may start, by its position in the queue and why it waits; None for one that does not
        wait. Raises KeyError for an unknown id."""
        return outlook(self._core, self._core.records[task_id], position, decision, now)

    def view(self, name: str, now: float) -> ClusterView:
        """The cluster as placement sees it. Raises ConfigurationError for an unknown name."""
        return self._core.view(self._core.registry.state(name), now)

    def queue_depths(self) -> dict[Lane, int]:
        """How many items wait in each queue that is not empty."""
        return self._core.queue.depths()

    def queue_place(self, task_id: str, now: float) -> QueuePlace | None:
        """Which position it has in the queue, and who is before it; None if it does not wait there."""
        return queue_place(self._core.queue, task_id, now)

    def queue_positions(self, task_ids: Iterable[str], now: float) -> dict[str, int]:
        """The positions of those of them that wait in the queue, by their ids."""
        return queue_positions(self._core.queue, task_ids, now)

    @property
    def filter_names(self) -> tuple[str, ...]:
        """The filters that every decision goes through, in their order."""
        return self._core.engine.filter_names

    def fresh_views(self, now: float) -> tuple[ClusterView, ...]:
        """All clusters as placement sees them, with every sentence as of now: for whoever asks :meth:`why` of many."""
        return self._core.fresh_views(now)

    def why(self, task_id: str, now: float, views: tuple[ClusterView, ...] | None = None) -> SchedulingDecision | None:
        """Why it waits, as of this moment; None if it is not ready to be placed, or was. ``views``: the fresh ones.
        Raises KeyError for an unknown id, PolicyEvaluationError."""
        return self._scheduling.why(self._core.records[task_id], now, views)

    def plan(self, task: TaskDescription, now: float) -> SchedulingDecision:
        """Where it would go, without submitting it, or why it would wait or be refused. Raises ConfigurationError and
        PolicyEvaluationError."""
        name = self._admission.unknown_name(task)
        if name is not None:
            hint = self._core.registry.name_hint(name)
            raise ConfigurationError(self._core.registry.unknown(name), task_id=task.id, cluster=name, next_step=hint)
        decision, full = self._scheduling.plan(task, now), self._admission.no_room_for(task)
        if full is None or verdict(decision) not in (Verdict.PLACED, Verdict.WAIT):
            return decision
        sentence = f"it would be refused: {full[0]}"
        helps = f"something that waits leaves the queue, or {full[1]} is raised"
        return replace(decision, cluster=None, code=codes.QUEUE_FULL, sentence=sentence, unblocked_by=helps)

    def forget(self, task_id: str) -> None:
        """Drop the record of an item that is over. Raises KeyError if unknown, ValueError if it is not over."""
        record = self._core.records[task_id]
        if not record.state.terminal:
            raise ValueError(f"{task_id} is {record.state}: only an item that is over can be forgotten")
        del self._core.records[task_id]
        self._admission.forget(record)


def _nothing(event: events.Event, now: float) -> None:
    """It says only that time has passed."""
